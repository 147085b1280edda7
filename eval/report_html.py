# SPDX-License-Identifier: Apache-2.0
"""The report of a run as one HTML page that needs nothing else, and the templates of all pages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eval import report_figures
from eval.finished_run import FinishedRun
from eval.report_markdown import (
    RATES_HEAD,
    SUMMARY_HEAD,
    SUMMARY_NOTE,
    problem_cells,
    run_settings,
    summary_cells,
    task_settings,
)
from eval.report_model import KINDS, MOST_TEXT, TaskView, kind_of, length_table
from eval.report_text import NONE, anchor, interval, number, one_line, percent, score, shorten, show_prompt, visible

TEMPLATES = Path(__file__).parent / "templates"
# Problems in a list; the file of samples has all.
MOST_PROBLEMS = 2000


def _finalize(value: Any) -> Any:
    """No text reaches a page with invisible characters in it, whichever way it came."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(template: str, **values: Any) -> str:
    """Fill in a template of ``eval/templates``. Everything is escaped but what we drew ourselves."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
    )
    environment.filters |= {
        "brief": one_line,
        "cut": lambda text: shorten(text, MOST_TEXT),
        "shown": show_prompt,
        "score": score,
        "interval": interval,
        "number": number,
        "percent": percent,
    }
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(style=style, **values)


def html_report(run: FinishedRun, views: Sequence[TaskView]) -> str:
    """The whole report."""
    return render(
        "report.html",
        run=run,
        views=views,
        head=[*SUMMARY_HEAD, *RATES_HEAD],
        note=SUMMARY_NOTE.replace("`", ""),
        kinds=KINDS,
        most_problems=MOST_PROBLEMS,
        anchors={view.task.name: f"task-{anchor(view.task.name)}" for view in views},
        overview=_overview(views),
        figures={view.task.name: _figures(view) for view in views},
        summary=lambda view: summary_cells(view, run.model),
        scores=_scores,
        lengths=lambda view: length_table(view.task),
        points_text=lambda points: [(str(k), own) for k, own in points],
        problems=lambda view: [
            [one_line(cell, 80) for cell in problem_cells(line)] for line in view.problems[:MOST_PROBLEMS]
        ],
        count=lambda view, kind: Counter(map(kind_of, view.task.rows))[kind],
        run_settings=run_settings(run),
        task_settings=task_settings,
    )


def _scores(view: TaskView) -> list[list[str]]:
    problems = view.task.entry["summary"]["problems"]
    return [
        [name, score(own), interval(own), number(own["problems"]), number(own["left_out"])]
        if own
        else [name, NONE, NONE, "0", number(problems)]
        for name, own in view.task.entry["summary"]["scores"].items()
    ]


def _overview(views: Sequence[TaskView]) -> Markup | None:
    rows = [(view.task.entry["title"], view.mean) for view in views if view.mean is not None]
    marks = {
        view.task.entry["title"]: [value / 100 for value in view.headline.values.values()]
        for view in views
        if view.headline is not None
    }
    return Markup(report_figures.intervals(rows, "score, %", marks)) if rows else None


def _figures(view: TaskView) -> Mapping[str, Any]:
    longest = int(view.task.entry["decoding"]["max_new_tokens"])
    return {
        "lengths": Markup(report_figures.lengths(view.lengths, longest)),
        "curves": Markup(report_figures.curves(view.curves, "score, %")) if view.curves else None,
        "groups": {
            name: Markup(report_figures.intervals(list(parts.items()), f"{view.metric}, %"))
            for name, parts in view.groups.items()
        },
    }
