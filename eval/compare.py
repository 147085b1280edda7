# SPDX-License-Identifier: Apache-2.0
"""Compare two finished runs problem by problem: which is better, and on which problems.

    prime-ext eval-compare RUN_A RUN_B                    prints the table
    prime-ext eval-compare RUN_A RUN_B --output DIR       compare.json and compare.md in DIR

Differences are the second run minus the first. Runs with other problems are never compared; other
decoding or prompts only on request, and the reports name them.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_ext.utils.arguments import add_output_argument, build_parser
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.report_page import Page
from prime_ext.utils.run_store import RunError, command

from .formats import NONE, format_number, format_percent, format_score
from .published import find_differences
from .results import FinishedRun, TaskRun, load_run
from .statistics import compare_runs

HEAD = (
    "task",
    "difference ± SE, points",
    "95 % interval",
    "first, %",
    "second, %",
    "gained",
    "lost",
    "problems",
)
NOTE = (
    "Differences are the second run minus the first, in points, paired by problem. Each interval is"
    " for its task alone: of 20 intervals of runs that do not differ, one leaves out 0. Gained and"
    " lost: problems of which more than half of the responses are right in one run only;"
    " compare.json names them."
)


def compare(
    before: FinishedRun, after: FinishedRun, decoding: bool = False, prompts: bool = False
) -> dict[str, Any]:
    """Compare two runs on the tasks that both have.

    Returns:
        For JSON. ``tasks`` by name: ``title``, ``changes`` (in words, decoding or prompts that
        differ; only if allowed) and ``comparison`` (see :func:`eval.statistics.compare_runs`).
        ``only_in_one``: run by the name of a task. ``versions``: of packages that differ.

    Raises:
        RunError: no task in common, other problems, or another decoding or other prompts where that
            is not allowed.
    """
    common = [name for name in before.tasks if name in after.tasks]
    if not common:
        lists = [f"{run.folder} has {', '.join(run.tasks)}" for run in (before, after)]
        raise RunError(f"the runs have no task in common: {lists[0]}; {lists[1]}")
    tasks: dict[str, Any] = {}
    for name in common:
        first = before.tasks[name]
        second = after.tasks[name]
        changes = _find_changes(first, second, decoding, prompts)
        # A problem of which every response failed has no scores.
        names = dict.fromkeys([*first.problems, *second.problems])
        scores = [
            {problem: [row["score"] for row in run.problems.get(problem, ())] for problem in names}
            for run in (first, second)
        ]
        comparison = compare_runs(*scores)
        tasks[name] = {"title": second.entry["title"], "changes": changes, "comparison": comparison}
    old = before.results["versions"]
    new = after.results["versions"]
    return {
        "before": {"run": before.name, "model": before.results["model"]},
        "after": {"run": after.name, "model": after.results["model"]},
        "tasks": tasks,
        "only_in_one": {
            name: run.name for run in (before, after) for name in run.tasks if name not in tasks
        },
        "versions": {
            name: [old.get(name), new.get(name)]
            for name in [*old, *new]
            if old.get(name) != new.get(name)
        },
    }


def _find_changes(before: TaskRun, after: TaskRun, decoding: bool, prompts: bool) -> list[str]:
    """Return the differences between the two that are allowed; ``RunError``: one is not."""
    name = before.name
    first = before.entry
    second = after.entry
    for key, what in (("data_sha256", "problems"), ("split", "split"), ("grader", "grader")):
        if first[key] != second[key]:
            pair = f"{first[key][:12]} and {second[key][:12]}"
            raise RunError(
                f"{name}: the runs have different {what} ({key} {pair}), so they cannot be compared"
            )
    changes = []
    if first["prompt_sha256"] != second["prompt_sha256"]:
        changes.append(
            f"prompts differ ({first['prompt']} and {second['prompt']}, by their hashes)"
        )
        if not prompts:
            raise RunError(f"{name}: {changes[-1]}; --allow-prompts compares all the same")
    pairs = find_differences(
        *({**entry["decoding"], "stop": entry["stop"]} for entry in (first, second))
    )
    if pairs:
        changes.append(
            "decoding differs: " + ", ".join(f"{key} {a} and {b}" for key, (a, b) in pairs.items())
        )
        if not decoding:
            raise RunError(f"{name}: {changes[-1]}; --allow-decoding compares all the same")
    return changes


def format_difference(value: float) -> str:
    """Return a difference of fractions in points, with its sign."""
    return f"{100 * value:+.1f}"


def _format_row(title: str, paired: Mapping[str, Any] | None, scores: Sequence[str]) -> list[str]:
    """Return a task's row of the table, with the columns of :data:`HEAD`."""
    if paired is None:
        return [title, NONE, NONE, *scores, "0", "0", "0"]
    difference = format_difference(paired["difference"])
    if paired["low"] is None:
        ends = NONE
    else:
        difference += f" ± {format_percent(paired['standard_error'])}"
        ends = f"{format_difference(paired['low'])} to {format_difference(paired['high'])}"
    counts = (len(paired["gained"]), len(paired["lost"]), paired["problems"])
    return [title, difference, ends, *scores, *map(format_number, counts)]


def build_comparison_page(
    result: Mapping[str, Any], before: FinishedRun, after: FinishedRun
) -> Page:
    """Return the comparison as a page: remarks, then a row of numbers for each task."""
    page = Page("Comparison of two runs")
    for which, run in (("First", before), ("Second", after)):
        page.text(f"{which}: {run.model} ({run.name}).")
    remarks = [
        f"{task['title']}: {change}."
        for task in result["tasks"].values()
        for change in task["changes"]
    ]
    remarks += [
        f"{name} is only in {run} and not compared." for name, run in result["only_in_one"].items()
    ]
    lines = []
    for name, task in result["tasks"].items():
        paired = task["comparison"]
        left_out = before.tasks[name].entry["summary"]["problems"] - (
            paired["problems"] if paired else 0
        )
        if left_out:
            remarks.append(
                f"{task['title']}: {left_out:,} problems were not judged in both runs and are left"
                " out."
            )
        lines.append(
            _format_row(
                task["title"],
                paired,
                [format_score(run.tasks[name].mean) for run in (before, after)],
            )
        )
    if result["versions"]:
        pairs = (
            f"{name} {a or 'none'} and {b or 'none'}" for name, (a, b) in result["versions"].items()
        )
        remarks.append(f"Versions differ: {', '.join(pairs)}.")
    page.bullets(remarks)
    page.table(HEAD, lines)
    page.text(NOTE)
    return page


@command("compare", OSError)
def main(words: Sequence[str] | None = None) -> int:
    parser = build_parser("eval-compare", __doc__)
    parser.add_argument("before", type=Path, metavar="RUN_A", help="folder that eval.run wrote")
    parser.add_argument("after", type=Path, metavar="RUN_B", help="the same of the other model")
    add_output_argument(parser, "of the reports", required=False)
    parser.add_argument(
        "--allow-decoding", action="store_true", help="compare although the decoding differs"
    )
    parser.add_argument(
        "--allow-prompts", action="store_true", help="compare although the prompts differ"
    )
    arguments = parser.parse_args(words)
    runs = (load_run(arguments.before), load_run(arguments.after))
    output = arguments.output
    comparison = compare(*runs, decoding=arguments.allow_decoding, prompts=arguments.allow_prompts)
    text = build_comparison_page(comparison, *runs).markdown()
    print(text)
    if output is not None:
        write_json(output / "compare.json", comparison)
        write_text(output / "compare.md", text)
        print(f"{output / 'compare.json'}\n{output / 'compare.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
