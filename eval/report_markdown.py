# SPDX-License-Identifier: Apache-2.0
"""The report of a run as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.finished_run import FinishedRun
from eval.published import Published
from eval.report_model import KINDS, ProblemLine, TaskView, length_table, published_cell
from eval.report_text import (
    NONE,
    flatten,
    interval,
    markdown_fence,
    markdown_table,
    markdown_text,
    number,
    percent,
    score,
    shorten,
    show_prompt,
)

# Problems in a list, and characters of a response; the HTML report has more.
MOST_PROBLEMS, MOST_TEXT = 100, 1500
SUMMARY_HEAD = ("task", "score ± SE, %", "95 % interval", "published, %", "problems x n", "tokens, mean")
RATES_HEAD = ("truncated, %", "no answer, %", "not judged", "failed")
SUMMARY_NOTE = (
    "Score: mean over problems of the mean score of a response (`avg@n`; with one greedy response per problem it is "
    "the accuracy). SE and interval are over problems. Responses that the grader could not judge and responses that "
    "failed are in no mean. Published: the same model if its numbers are known, else the best one; each task says "
    "where the numbers come from and what is known to differ."
)


def summary_cells(view: TaskView, model: str) -> list[str]:
    """The numbers of a task in the summary table, after its name."""
    entry = view.task.entry
    summary = entry["summary"]
    return [
        score(view.mean),
        interval(view.mean),
        published_cell(view.headline, model, view.metric if view.task.n > 1 else ""),
        f"{summary['problems']:,} x {view.task.n}",
        number(float(summary["tokens"]["mean"])),
        percent(summary["truncated"]),
        percent(summary["no_answer"]),
        number(summary["grader_failures"]),
        number(entry["failed_responses"]),
    ]


def markdown_report(run: FinishedRun, views: Sequence[TaskView]) -> str:
    """The whole report."""
    lines = [f"# Evaluation of {markdown_text(run.model)}", ""]
    if run.unfinished:
        lines += [f"**Not finished, and not in this report: {', '.join(map(markdown_text, run.unfinished))}.**", ""]
    rows = [
        [markdown_text(view.task.entry["title"]), *map(markdown_text, summary_cells(view, run.model))] for view in views
    ]
    lines += [*markdown_table([*SUMMARY_HEAD, *RATES_HEAD], rows), SUMMARY_NOTE, ""]
    for view in views:
        lines += _task(view)
    lines += ["## Model, settings, versions", "", *_settings(run_settings(run))]
    return "\n".join(lines).rstrip() + "\n"


def run_settings(run: FinishedRun) -> list[tuple[str, str]]:
    """Everything that a run depends on besides its tasks."""
    results = run.results
    shown = ("model", "seed", "settings", "versions", "regraded_with")
    parts = {key: results[key] for key in shown if key in results}
    return flatten({**parts, "format of results.json": results["format"]})


def task_settings(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that a task of a run depends on."""
    # What is shown elsewhere, or is a result.
    shown = ("title", "summary", "choice", "references", "notes", "seconds", "response_tokens_per_second")
    return flatten({key: value for key, value in entry.items() if key not in (*shown, "failed_responses")})


def _settings(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return markdown_table(["setting", "value"], [[markdown_text(k), markdown_text(v, 400)] for k, v in pairs])


def _task(view: TaskView) -> list[str]:
    entry = view.task.entry
    lines = [f"## {markdown_text(entry['title'])}", ""]
    rows = [
        [name, score(own), interval(own), number(own["problems"]), number(own["left_out"])]
        if own
        else [name, NONE, NONE, "0", number(entry["summary"]["problems"])]
        for name, own in entry["summary"]["scores"].items()
    ]
    lines += markdown_table(["metric", "score ± SE, %", "95 % interval", "problems", "left out"], rows)
    lines += markdown_table(["", ""], [[markdown_text(name), value] for name, value in view.facts])
    for own in view.published:
        lines += _published(own)
    for name, parts in view.groups.items():
        cells = [[markdown_text(k), score(own), interval(own), number(own["problems"])] for k, own in parts.items()]
        head = [markdown_text(name), f"{view.metric} ± SE, %", "95 % interval", "problems"]
        lines += [f"### By {markdown_text(name)}", "", *markdown_table(head, cells)]
    for name, points in view.curves.items():
        cells = [[str(k), score(own), interval(own)] for k, own in points]
        lines += [f"### {name}", "", *markdown_table(["k", "score ± SE, %", "95 % interval"], cells)]
    head = ["response", "number", "mean tokens", "median", "90th percentile"]
    lines += ["### Length", "", *markdown_table(head, length_table(view.task)), *_problems(view)]
    if entry["notes"]:
        lines += [f"Note: {markdown_text(entry['notes'], 2000)}", ""]
    lines += [*_details("Settings and hashes", _settings(task_settings(entry))), *_examples(view)]
    return lines


def _published(own: Published) -> list[str]:
    head = ["model", f"{markdown_text(own.metric)}, %"]
    rows = [[markdown_text(model), f"{value:.1f}"] for model, value in own.values.items()]
    lines = ["### Published", "", *markdown_table(head, [["**this run**", f"**{score(own.ours)}**"], *rows])]
    lines += [f"Source: {markdown_text(own.source, 400)}.", ""]
    if own.differences:
        lines += [f"To know before comparing: {'; '.join(map(markdown_text, own.differences))}.", ""]
    return lines


def _problems(view: TaskView) -> list[str]:
    never, sometimes, always = view.solved
    lines = [f"### Problems: {never:,} never solved, {sometimes:,} sometimes, {always:,} always", ""]
    rows = [problem_cells(line) for line in view.problems[:MOST_PROBLEMS]]
    head = ["problem", "mean score, %", "judged", "mean tokens", "truncated", "gold"]
    table = markdown_table(head, [[markdown_text(cell, 60) for cell in row] for row in rows])
    more = len(view.problems) - len(rows)
    if more:
        table += [f"{more:,} more are in report.html and `{view.task.name}/samples.jsonl`.", ""]
    return [*lines, *_details("The problems, the hardest first", table)]


def problem_cells(line: ProblemLine) -> list[str]:
    """A problem in the list."""
    groups = f" ({', '.join(line.groups.values())})" if line.groups else ""
    numbers = [percent(line.mean), number(line.judged), number(line.tokens), number(line.truncated)]
    return [f"{line.name}{groups}", *numbers, line.gold]


def _examples(view: TaskView) -> list[str]:
    lines = []
    for kind, own in view.examples.items():
        example = own[0]
        row = example.row
        answer = "none" if example.extracted is None else markdown_text(example.extracted)
        body = [
            f"Problem {markdown_text(row.problem)}, response {row.sample}: {row.verdict}, {row.tokens:,} tokens. "
            f"Answer: {answer}. Gold: {markdown_text(example.gold)}. {markdown_text(example.detail, 400)}",
            "",
            *markdown_fence(shorten(show_prompt(example.prompt), MOST_TEXT)),
            *markdown_fence(shorten(example.response, MOST_TEXT)),
        ]
        lines += _details(f"A response that is {KINDS[kind]}", body)
    return lines


def _details(title: str, body: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *body, "</details>", ""]
