# SPDX-License-Identifier: Apache-2.0
"""Compare two finished runs problem by problem: is the second checkpoint better, and on which problems?

    python -m eval.compare RUN_A RUN_B                    prints the table
    python -m eval.compare RUN_A RUN_B --output DIR       compare.json and compare.md in DIR

Differences are the second run minus the first. Runs with other problems are never compared; other decoding or prompts
only if that is asked for, and the reports say so.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.formats import NONE, number, percent, score
from eval.published import differing
from eval.results import FinishedRun, TaskRun, load_run, refuse_a_file
from eval.statistics import compare_runs
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.report_page import Page, markdown_table, one_line
from prime_ext.utils.run_store import RunError, command

HEAD = ("task", "difference ± SE, points", "95 % interval", "first, %", "second, %", "gained", "lost", "problems")
NOTE = (
    "Differences are the second run minus the first, in points, paired by problem. Each interval is for its task "
    "alone: of 20 intervals of runs that do not differ, one leaves out 0. Gained and lost: problems of which more than "
    "half of the responses are right in one run only; compare.json names them."
)


def compare(before: FinishedRun, after: FinishedRun, decoding: bool = False, prompts: bool = False) -> dict[str, Any]:
    """Compare two runs on the tasks that both have.

    Returns:
        For JSON. By name of the ``tasks``: ``title``, ``changes`` (decoding or prompts that differ, in words; only if
        that was allowed) and ``comparison`` (see :func:`eval.statistics.compare_runs`). ``only_in_one``: run by the
        name of a task. ``versions``: of packages that differ.

    Raises:
        RunError: they have no task in common, or a task with other problems, or with another decoding or other prompts
            where that is not allowed.
    """
    common = [name for name in before.tasks if name in after.tasks]
    if not common:
        lists = [f"{run.folder} has {', '.join(run.tasks)}" for run in (before, after)]
        raise RunError(f"the runs have no task in common: {lists[0]}; {lists[1]}")
    tasks: dict[str, Any] = {}
    for name in common:
        first, second = before.tasks[name], after.tasks[name]
        changes = _changes(first, second, decoding, prompts)
        # A problem of which every response failed has no scores.
        names = dict.fromkeys([*first.problems, *second.problems])
        scores = [
            {own: [row["score"] for row in run.problems.get(own, ())] for own in names} for run in (first, second)
        ]
        found = compare_runs(*scores)
        tasks[name] = {"title": second.entry["title"], "changes": changes, "comparison": found}
    old, new = before.results["versions"], after.results["versions"]
    return {
        "before": {"run": before.name, "model": before.results["model"]},
        "after": {"run": after.name, "model": after.results["model"]},
        "tasks": tasks,
        "only_in_one": {name: run.name for run in (before, after) for name in run.tasks if name not in tasks},
        "versions": {name: [old.get(name), new.get(name)] for name in [*old, *new] if old.get(name) != new.get(name)},
    }


def _changes(before: TaskRun, after: TaskRun, decoding: bool, prompts: bool) -> list[str]:
    """What differs between the two and may."""
    name, first, second = before.name, before.entry, after.entry
    for key, what in (("data_sha256", "problems"), ("split", "split"), ("grader", "grader")):
        if first[key] != second[key]:
            pair = f"{first[key][:12]} and {second[key][:12]}"
            raise RunError(f"{name}: the runs have different {what} ({key} {pair}), so they cannot be compared")
    changes = []
    if first["prompt_sha256"] != second["prompt_sha256"]:
        changes.append(f"prompts differ ({first['prompt']} and {second['prompt']}, by their hashes)")
        if not prompts:
            raise RunError(f"{name}: {changes[-1]}; --allow-prompts compares all the same")
    pairs = differing(*({**entry["decoding"], "stop": entry["stop"]} for entry in (first, second)))
    if pairs:
        changes.append("decoding differs: " + ", ".join(f"{key} {a} and {b}" for key, (a, b) in pairs.items()))
        if not decoding:
            raise RunError(f"{name}: {changes[-1]}; --allow-decoding compares all the same")
    return changes


def table(found: Mapping[str, Any], before: FinishedRun, after: FinishedRun) -> list[list[str]]:
    """Return the lines of the table, one per task."""
    lines = []
    for name, task in found["tasks"].items():
        own = task["comparison"]
        scores = [score(run.tasks[name].mean) for run in (before, after)]
        counts = (len(own["gained"]), len(own["lost"]), own["problems"]) if own else (0, 0, 0)
        lines.append([task["title"], *_difference(own), *scores, *map(number, counts)])
    return lines


def signed(value: float) -> str:
    """A difference of fractions in points, with its sign."""
    return f"{100 * value:+.1f}"


def _difference(own: Mapping[str, Any] | None) -> tuple[str, str]:
    """A difference with its standard error, and its 95 % interval, in points."""
    if own is None:
        return NONE, NONE
    error = "" if own["standard_error"] is None else f" ± {percent(own['standard_error'])}"
    return signed(own["difference"]) + error, NONE if own[
        "low"
    ] is None else f"{signed(own['low'])} to {signed(own['high'])}"


def remarks(found: Mapping[str, Any], before: FinishedRun) -> list[str]:
    """What to know before the numbers, one sentence each."""
    tasks = found["tasks"]
    lines = [f"{task['title']}: {change}." for task in tasks.values() for change in task["changes"]]
    lines += [f"{name} is only in {run} and not compared." for name, run in found["only_in_one"].items()]
    for name, task in tasks.items():
        judged = task["comparison"]["problems"] if task["comparison"] else 0
        left_out = before.tasks[name].entry["summary"]["problems"] - judged
        if left_out:
            lines.append(f"{task['title']}: {left_out:,} problems were not judged in both runs and are left out.")
    if found["versions"]:
        pairs = (f"{name} {a or 'none'} and {b or 'none'}" for name, (a, b) in found["versions"].items())
        lines.append(f"Versions differ: {', '.join(pairs)}.")
    return lines


def comparison_page(found: Mapping[str, Any], before: FinishedRun, after: FinishedRun) -> Page:
    """The comparison as a page."""
    page = Page("Comparison of two runs")
    for which, run in (("First", before), ("Second", after)):
        page.text(f"{which}: {run.model} ({run.name}).")
    page.bullets(remarks(found, before))
    page.table(HEAD, table(found, before, after))
    page.text(NOTE)
    return page


@command("compare")
def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="eval.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, metavar="RUN_A", help="folder that eval.run wrote")
    parser.add_argument("after", type=Path, metavar="RUN_B", help="the same of the other model")
    parser.add_argument("--output", type=Path, help="folder for the reports")
    parser.add_argument("--allow-decoding", action="store_true", help="compare although the decoding differs")
    parser.add_argument("--allow-prompts", action="store_true", help="compare although the prompts differ")
    arguments = parser.parse_args(words)
    output = refuse_a_file(arguments.output)
    runs = load_run(arguments.before), load_run(arguments.after)
    found = compare(*runs, decoding=arguments.allow_decoding, prompts=arguments.allow_prompts)
    for which, run in zip(("First", "Second"), runs, strict=True):
        print(f"{which}: {one_line(run.model)} ({one_line(run.name)})")
    notes = [f"- {line}" for line in remarks(found, runs[0])]
    print("\n".join(["", markdown_table(HEAD, table(found, *runs)), "", *notes]))
    if output is not None:
        write_json(output / "compare.json", found)
        write_text(output / "compare.md", comparison_page(found, *runs).markdown())
        print(f"{output / 'compare.json'}\n{output / 'compare.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
