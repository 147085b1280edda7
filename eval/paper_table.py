# SPDX-License-Identifier: Apache-2.0
"""Tables of benchmarks by models: those of the papers with our columns beside the published ones, and runs in a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.finished_run import FinishedRun
from eval.published import Published, mean_of_tasks, our_score, published
from eval.report_html import render
from eval.report_text import NONE, markdown_table, markdown_text, percent, score
from prime_ext.tasks.task_file import load_task


@dataclass(frozen=True)
class Paper:
    """A published table.

    Attributes:
        title: of the table.
        metric: of its numbers, as the task files call it.
        tasks: its rows.
    """

    title: str
    metric: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table to be shown.

    Attributes:
        title: of the table.
        head: names of the columns; the first is that of the rows.
        ours: number of columns that are ours, after the first.
        rows: cells; the last row is the average if there is one.
        notes: what to know before comparing, one sentence each.
    """

    title: str
    head: Sequence[str]
    ours: int
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


TABLES = {
    "prime": Paper(
        "Mathematics of PRIME, table 1 (arXiv 2502.01456)",
        "accuracy",
        ("aime2024", "amc", "math500", "minerva_math", "olympiadbench"),
    ),
    "pspo": Paper(
        "Numeric reasoning of PSPO (README of github.com/DIRECT-BIT/PSPO, arXiv 2411.11681)",
        "micro_f1",
        ("awpnli", "newsnli", "redditnli", "rte_quant", "stresstest", "qqa"),
    ),
}


def paper_table(name: str, runs: Mapping[str, FinishedRun]) -> Table:
    """A published table with a column for every run.

    Our numbers are mean scores of a response with their standard errors over problems. The average is given where every
    row has a number; its standard error is that of a mean of independent scores. Averages of published columns are
    computed from the rows.

    Args:
        name: one of :data:`TABLES`.
        runs: by the name of their column.
    """
    paper = TABLES[name]
    known = {task: load_task(task) for task in paper.tasks}
    references = {
        task: next(own for own in known[task].references if own.metric == paper.metric) for task in paper.tasks
    }
    models = list(dict.fromkeys(model for own in references.values() for model in own.values))
    entries = {column: {task: own.entry for task, own in run.tasks.items()} for column, run in runs.items()}
    ours = {
        column: {task: our_score(own[task], paper.metric) if task in own else None for task in paper.tasks}
        for column, own in entries.items()
    }
    rows = [
        [
            known[task].title,
            *(score(ours[column][task]) for column in runs),
            *(_plain(references[task].values.get(model)) for model in models),
        ]
        for task in paper.tasks
    ]
    means = [mean_of_tasks([ours[column][task] for task in paper.tasks]) for column in runs]
    theirs = [[references[task].values.get(model) for task in paper.tasks] for model in models]
    rows.append(["average", *map(_mean, means), *map(_published_mean, theirs)])
    notes = [
        f"Percent. Ours: mean score of a response ± standard error over problems ({_same(paper.metric)}). The average "
        "is the plain mean, given where every row has a number; averages of published columns are computed from the "
        "rows.",
        *_models(runs),
    ]
    for column, own in entries.items():
        there = {known[task].title: published(task, own[task]) for task in paper.tasks if task in own}
        notes += [f"{column}: {words}." for words in _differences(there, paper.metric)]
    notes += [f"Published: {source}." for source in dict.fromkeys(own.source for own in references.values())]
    notes += [f"{own.title}: {own.notes}" for own in known.values() if own.notes]
    return Table(paper.title, ["", *runs, *models], len(runs), rows, notes)


def _differences(found: Mapping[str, Sequence[Published]], metric: str) -> list[str]:
    """What is known to differ from the published, each once with the titles of the tasks it holds for."""
    titles: dict[str, list[str]] = {}
    for title, own in found.items():
        for words in next(one for one in own if one.metric == metric).differences:
            titles.setdefault(words, []).append(title)
    shared = [
        words if len(own) == len(found) > 1 else f"{', '.join(own)}: {words}"
        for words, own in titles.items()
        if len(own) > 1
    ]
    single = [f"{own[0]}: {words}" for words, own in titles.items() if len(own) == 1]
    return [*shared, "; ".join(single)] if single else shared


def runs_table(runs: Mapping[str, FinishedRun]) -> Table:
    """All runs side by side: the score of every task that one of them has."""
    titles = {task: own.entry["title"] for run in runs.values() for task, own in run.tasks.items()}
    rows = []
    for task, title in titles.items():
        own = [run.tasks[task] if task in run.tasks else None for run in runs.values()]
        cells = [NONE if one is None else score(one.entry["summary"]["scores"].get(f"avg@{one.n}")) for one in own]
        rows.append([title, *cells])
    notes = [
        "Percent: mean score of a response ± standard error over problems. Whether two runs differ is told by "
        "`python -m eval.compare`, which pairs their problems.",
        *_models(runs),
    ]
    return Table("Runs", ["", *runs], len(runs), rows, notes)


def table_markdown(table: Table) -> str:
    """A table as Markdown."""
    head = [markdown_text(cell) for cell in table.head]
    rows = [[markdown_text(cell) for cell in row] for row in table.rows]
    notes = [f"- {markdown_text(note, 2000)}" for note in table.notes]
    return "\n".join([f"# {markdown_text(table.title)}", "", *markdown_table(head, rows), *notes]) + "\n"


def table_html(table: Table) -> str:
    """A table as a page."""
    return render("table.html", table=table)


def _models(runs: Mapping[str, FinishedRun]) -> list[str]:
    return [f"{column}: {run.model}." for column, run in runs.items()]


def _same(metric: str) -> str:
    return "the accuracy" if metric == "accuracy" else f"which is {metric}"


def _plain(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _mean(mean: tuple[float, float | None] | None) -> str:
    if mean is None:
        return NONE
    value, error = mean
    return percent(value) + (f" ± {percent(error)}" if error is not None else "")


def _published_mean(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{sum(there) / len(there):.1f}" if len(there) == len(values) else NONE
