# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs as Markdown and HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from eval import report_figures
from eval.compare_tasks import RunComparison, TaskComparison
from eval.finished_run import TaskRun
from eval.paired import Flip
from eval.report_html import render
from eval.report_model import Example, example
from eval.report_text import (
    NONE,
    anchor,
    interval,
    markdown_table,
    markdown_text,
    number,
    one_line,
    percent,
    score,
    signed,
)

# Flipped problems per task and direction: in a list, and with both responses.
MOST_FLIPS, MOST_SIDES = 1000, 20
HEAD = ("task", "difference ± SE, points", "95 % interval", "first, %", "second, %", "gained", "lost", "problems")
NOTE = (
    "Differences are the second run minus the first, in points, paired by problem. Each interval is for its task "
    "alone: of 20 intervals of runs that do not differ, one leaves out 0. The mean over tasks is one statement about "
    "all of them. Gained and lost: problems of which more than half of the responses are right in one run only."
)


@dataclass(frozen=True)
class Side:
    """A flipped problem with a typical response of each run.

    Attributes:
        flip: the problem.
        before: a response of the first run.
        after: a response of the second run.
    """

    flip: Flip
    before: Example
    after: Example


def difference(own: Any) -> str:
    """A difference with its standard error, in points."""
    error = "" if own.standard_error is None else f" ± {percent(own.standard_error)}"
    value = own.difference if hasattr(own, "difference") else own.value
    return signed(value) + error


def difference_interval(own: Any) -> str:
    """The 95 % interval of a difference, in points."""
    return NONE if own.low is None else f"{signed(own.low)} to {signed(own.high)}"


def rows(found: RunComparison) -> list[list[str]]:
    """The table: a line per task, and the mean."""
    lines = []
    for task in found.tasks.values():
        scores = [score(_mean(run)) for run in (task.before, task.after)]
        own = task.paired
        if own is None:
            lines.append([task.title, NONE, NONE, *scores, NONE, NONE, "0"])
            continue
        counts = (len(own.gained), len(own.lost), own.problems)
        lines.append([task.title, difference(own), difference_interval(own), *scores, *map(number, counts)])
    if found.overall is not None:
        mean = found.overall
        lines.append(["mean over tasks", difference(mean), difference_interval(mean), "", "", "", "", ""])
    return lines


def remarks(found: RunComparison) -> list[str]:
    """What to know before the numbers, one sentence each."""
    lines = [f"{task.title}: {change}." for task in found.tasks.values() for change in task.changes]
    for name, run in found.only:
        lines.append(f"{name} is only in {run} and not compared.")
    for task in found.tasks.values():
        left_out = task.before.entry["summary"]["problems"] - (task.paired.problems if task.paired else 0)
        if left_out:
            lines.append(f"{task.title}: {left_out:,} problems were not judged in both runs and are left out.")
    if found.shared:
        first, second = found.shared
        lines.append(f"{first} and {second} share problems, so there is no mean over tasks.")
    pairs = [f"{name} {a or 'none'} and {b or 'none'}" for name, (a, b) in found.versions.items()]
    if pairs:
        lines.append(f"Versions differ: {', '.join(pairs)}.")
    return lines


def summary_lines(found: RunComparison) -> list[str]:
    """The table as Markdown with its remarks."""
    lines = [
        f"First: {markdown_text(found.before.model)} ({markdown_text(found.before.name)}).  ",
        f"Second: {markdown_text(found.after.model)} ({markdown_text(found.after.name)}).",
        "",
    ]
    lines += markdown_table(HEAD, [list(map(markdown_text, row)) for row in rows(found)])
    return lines + [f"- {markdown_text(line, 1000)}" for line in remarks(found)]


def markdown_comparison(found: RunComparison) -> str:
    """The whole comparison as Markdown; responses are in the HTML page."""
    lines = ["# Comparison", "", *summary_lines(found), "", NOTE, ""]
    for task in found.tasks.values():
        lines += [f"## {markdown_text(task.title)}", ""]
        lines += [*markdown_table(["", "first", "second"], [list(map(markdown_text, row)) for row in rates(task)])]
        for what, flips in _flips(task).items():
            lines += [f"### {what}: {len(flips):,}", ""]
            cells = [[markdown_text(cell) for cell in row] for row in flip_rows(flips)]
            lines += markdown_table(["problem", "first, %", "second, %"], cells) if cells else []
            lines += _more(flips)
    return "\n".join(lines).rstrip() + "\n"


def _more(flips: Sequence[Flip]) -> list[str]:
    return [f"{len(flips) - MOST_FLIPS:,} more are in compare.json.", ""] if len(flips) > MOST_FLIPS else []


def flip_rows(flips: Sequence[Flip]) -> list[list[str]]:
    """Flipped problems with both scores."""
    return [[one_line(own.problem), percent(own.before), percent(own.after)] for own in flips[:MOST_FLIPS]]


def rates(task: TaskComparison) -> list[list[str]]:
    """Shares and lengths in both runs."""
    parts = {
        "truncated, %": lambda own: percent(own["truncated"]),
        "no answer, %": lambda own: percent(own["no_answer"]),
        "mean length, tokens": lambda own: number(float(own["tokens"]["mean"])),
        "not judged": lambda own: number(own["grader_failures"]),
    }
    summaries = [run.entry["summary"] for run in (task.before, task.after)]
    return [[name, *map(show, summaries)] for name, show in parts.items()]


def html_comparison(found: RunComparison) -> str:
    """The whole comparison as a page, with both responses to flipped problems side by side."""
    named = [(task.title, asdict(task.paired)) for task in found.tasks.values() if task.paired is not None]
    points = [(title, {**own, "value": own["difference"]}) for title, own in named]
    if found.overall is not None:
        points.append(("mean over tasks", asdict(found.overall)))
    return render(
        "compare.html",
        found=found,
        head=HEAD,
        rows=rows(found),
        remarks=remarks(found),
        note=NOTE,
        figure=Markup(report_figures.intervals(points, "difference, points", differences=True)) if points else None,
        anchors={name: f"task-{anchor(name)}" for name in found.tasks},
        rates=rates,
        flips=_flips,
        flip_rows=flip_rows,
        sides=sides,
        most_flips=MOST_FLIPS,
        interval=interval,
    )


def _flips(task: TaskComparison) -> Mapping[str, Sequence[Flip]]:
    own = task.paired
    return {"Gained": own.gained if own else (), "Lost": own.lost if own else ()}


def sides(task: TaskComparison, flips: Sequence[Flip]) -> list[Side]:
    """Both responses to the first flipped problems: a right one where the run solves the problem, else a wrong one."""
    problems = task.before.problems, task.after.problems
    return [
        Side(
            flip,
            _typical(task.before, problems[0], flip.problem, flip.before > 0.5),
            _typical(task.after, problems[1], flip.problem, flip.after > 0.5),
        )
        for flip in flips[:MOST_SIDES]
    ]


def _typical(run: TaskRun, problems: Mapping[str, Sequence[Any]], problem: str, right: bool) -> Example:
    judged = [row for row in problems[problem] if row.score is not None]
    fitting = [row for row in judged if (row.score > 0.5) == right]
    return example(run, (fitting or judged)[0])


def _mean(run: TaskRun) -> Mapping[str, Any] | None:
    return run.entry["summary"]["scores"].get(f"avg@{run.n}")
