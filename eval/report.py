# SPDX-License-Identifier: Apache-2.0
"""Reports of finished runs, and the tables of the papers with a column for every run.

prime-ext eval-report RUN [RUN ...]                  report.md in each run's folder
prime-ext eval-report RUN [RUN ...] --table prime    print table 1 of the PRIME paper, with ours
prime-ext eval-report RUN [RUN ...] --table pspo     print the table of PSPO, with ours
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_ext.utils.arguments import build_parser
from prime_ext.utils.files import write_text
from prime_ext.utils.report_page import Page, join_lines
from prime_ext.utils.run_store import Row, RunError, command

from .formats import (
    align_columns,
    flatten,
    format_estimate,
    format_interval,
    format_mean,
    format_number,
    format_percent,
    format_prompt,
    format_score,
)
from .published import (
    PAPERS,
    build_paper_table,
    find_score,
    format_best_published,
    list_known_differences,
)
from .results import FinishedRun, TaskRun, load_run

KINDS = ("right", "wrong", "without an answer", "truncated", "not judged")
_ESTIMATE = ("score ± SE, %", "95 % interval")
_SUMMARY = (
    *("task", *_ESTIMATE, "published, %", "problems x n", "tokens, mean"),
    *("truncated, %", "no answer, %", "not judged", "failed"),
)
_NOTE = (
    "Score: mean over problems of the mean score of a response (avg@n; with one greedy response per"
    " problem it is the accuracy). SE and interval are over problems. Responses that the grader"
    " could not judge and responses that failed are in no mean. Published: the same model if its"
    " numbers are known, else the best one; each task says where the numbers come from and what is"
    " known to differ."
)


def build_report_page(run: FinishedRun) -> Page:
    """Return the whole report of a run."""
    page = Page(f"Evaluation of {run.model}")
    if run.unfinished:
        page.text(f"Not finished, and not in this report: {', '.join(run.unfinished)}.")
    tasks = run.tasks.values()
    page.table(_SUMMARY, _build_summary(run))
    page.text(_NOTE)
    for task in tasks:
        _add_task(page, task)
    page.heading("Model, settings, versions")
    shown = ("model", "seed", "settings", "versions", "regraded_with", "format")
    page.table(
        ["setting", "value"],
        flatten({key: run.results[key] for key in shown if key in run.results}),
    )
    return page


def format_summary(run: FinishedRun) -> str:
    """Return the summary of a run for a terminal."""
    return align_columns([_SUMMARY, *_build_summary(run)])


def _build_summary(run: FinishedRun) -> list[list[str]]:
    """Return a line of the summary for each task."""
    lines = []
    for task in run.tasks.values():
        entry = task.entry
        summary = task.entry["summary"]
        line = [
            entry["title"],
            format_score(task.mean),
            format_interval(task.mean),
            format_best_published(entry, run.model),
            f"{summary['problems']:,} x {task.n}",
            format_number(float(summary["tokens"]["mean"])),
            format_percent(summary["truncated"]),
            format_percent(summary["no_answer"]),
            format_number(summary["grader_failures"]),
            format_number(entry["failed_responses"]),
        ]
        lines.append(line)
    return lines


def _add_task(page: Page, task: TaskRun) -> None:
    entry = task.entry
    summary = task.entry["summary"]
    page.heading(entry["title"])
    rows = []
    for name, estimate in summary["scores"].items():
        left_out = estimate["left_out"] if estimate else summary["problems"]
        rows.append([name, *format_estimate(estimate), format_number(left_out)])
    page.table(["metric", *_ESTIMATE, "problems", "left out"], rows)
    page.table(["", ""], list_facts(entry))
    for reference in entry["references"]:
        page.heading("Published", level=3)
        models = [[model, f"{value:.1f}"] for model, value in reference["values"].items()]
        page.table(
            ["model", f"{reference['metric']}, %"],
            [["this run", format_score(find_score(entry, reference["metric"]))], *models],
        )
        page.text(f"Source: {reference['source']}.")
        if differences := list_known_differences(task.name, entry, reference):
            page.text(f"To know before comparing: {'; '.join(differences)}.")
    for name, parts in summary["groups"].items():
        page.heading(f"By {name}", level=3)
        rows = [
            [value, *format_estimate(estimate)]
            for value, estimate in parts.items()
            if estimate is not None
        ]
        page.table([name, *_ESTIMATE, "problems"], rows)
    # A program that passes some of its tests has a score, and does not solve its problem.
    judged = [[value == 1 for value in scores if value is not None] for scores in task.scores]
    solved = [sum(hits) / len(hits) for hits in judged if hits]
    never = solved.count(0.0)
    always = solved.count(1.0)
    page.text(
        f"Problems: {never:,} never solved, {len(solved) - never - always:,} sometimes, {always:,}"
        " always."
    )
    if entry["notes"]:
        page.text(f"Note: {entry['notes']}")
    for kind, row in choose_examples(task).items():
        with page.details(f"A response that is {kind}"):
            page.code(format_prompt(row["prompt"]))
            answer = "none" if row["extracted"] is None else join_lines(row["extracted"], 200)
            page.text(
                f"Problem {row['problem']}, response {row['sample']}: {row['verdict']},"
                f" {row['tokens']:,} tokens. Answer: {answer}. Gold:"
                f" {join_lines(row['gold'], 200)}. {join_lines(row['detail'], 400)}"
            )
            page.code(row["response"])
    with page.details("Settings and hashes"):
        elsewhere = {
            "title",
            "summary",
            "choice",
            "episodes",
            "references",
            "notes",
            "failed_responses",
            "seconds",
        }
        shown = {key: value for key, value in entry.items() if key not in elsewhere}
        page.table(["setting", "value"], flatten(shown))


def list_episode_facts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what only environments have: reward, turns and invalid moves, and failures."""
    episodes = entry.get("episodes")
    if episodes is None:
        return []
    failures = [f"{name} {number:,}" for name, number in sorted(episodes["failures"].items())]
    most = entry["decoding"]["max_turns"]
    invalid = f"{format_score(episodes['invalid'])} ({format_interval(episodes['invalid'])})"
    return [
        ("reward of an episode", format_mean(episodes["reward"])),
        (f"turns, at most {most:,}", format_mean(episodes["turns"])),
        ("invalid moves, %", invalid),
        ("failures of the environment", ", ".join(failures) or "0"),
    ]


def list_facts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the summary lacks of a task: lengths, F1 of choices, speed."""
    tokens = entry["summary"]["tokens"]
    known = [
        ("longest length allowed, tokens", format_number(entry["decoding"]["max_new_tokens"])),
        ("median length", format_number(tokens["median"])),
        ("longest", format_number(tokens["most"])),
    ]
    f1 = {name: value for name, value in (entry["choice"] or {}).items() if name != "accuracy"}
    known += list_episode_facts(entry)
    known += [(f"{name.replace('_', ' ')}, %", format_percent(value)) for name, value in f1.items()]
    # A run that generated nothing, such as one that only graded again, has no speed.
    if entry.get("response_tokens_per_second") is not None:
        known.append(
            (
                "response tokens per second",
                format_number(float(entry["response_tokens_per_second"])),
            )
        )
    return known + [
        (f"seconds of {phase}", format_number(float(seconds)))
        for phase, seconds in entry.get("seconds", {}).items()
    ]


def find_kind(row: Row) -> str:
    """Return the kind of examples that a response belongs to."""
    if row["score"] is None:
        return "not judged"
    if row["truncated"]:
        return "truncated"
    if row["score"] == 1:
        return "right"
    return "without an answer" if row["extracted"] is None else "wrong"


def choose_examples(task: TaskRun) -> dict[str, Row]:
    """Return the first response of each kind."""
    first: dict[str, Row] = {}
    for row in task.rows:
        first.setdefault(find_kind(row), row)
    return {kind: first[kind] for kind in KINDS if kind in first}


def write_report(folder: Path) -> Path:
    """Write ``report.md`` into the folder of a run, and return it; of a broken one nothing."""
    path = folder / "report.md"
    write_text(path, build_report_page(load_run(folder)).markdown())
    return path


@command("report")
def main(words: Sequence[str] | None = None) -> int:
    parser = build_parser("eval-report", __doc__)
    parser.add_argument("run", nargs="+", type=Path, help="folder that eval.run wrote")
    parser.add_argument("--table", choices=sorted(PAPERS), help="only print this paper's table")
    arguments = parser.parse_args(words)
    loaded = [load_run(folder) for folder in arguments.run]
    runs = {run.name: run for run in loaded}
    if len(runs) < len(loaded):
        raise RunError(
            "two runs have a folder of the same name, so their columns could not be told apart:"
            f" {[*runs]}"
        )
    if arguments.table:
        print(build_paper_table(arguments.table, runs).markdown())
        return 0
    # All is made before anything is written.
    for run, page in [(run, build_report_page(run)) for run in loaded]:
        path = run.folder / "report.md"
        write_text(path, page.markdown())
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
