# SPDX-License-Identifier: Apache-2.0
"""Published numbers, how a run differs from theirs, and the papers' tables with our columns."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from prime_ext.tasks.benchmark_task import CHOICE_METRICS, Decoding
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.utils.report_page import Page
from prime_ext.utils.run_store import Row

from .formats import NONE, format_percent, format_score
from .results import FinishedRun

_AT_K = re.compile(r"(?:avg|pass|maj)@(\d+)")


class Paper(NamedTuple):
    """A published table: title, metric as the task files call it, and tasks of its rows."""

    title: str
    metric: str
    tasks: tuple[str, ...]


PAPERS = {
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


@cache
def read_references(task: str) -> list[Row]:
    """Return a task's published numbers, by metric and source.

    Each has ``metric``, ``source``, ``values`` in percent by model, and ``rows``, None if unknown.
    """
    numbers: dict[tuple[str, str], Row] = {}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["task"] == task:
                key = line["metric"], line["source"]
                rows = int(line["rows"]) if line["rows"] else None
                published = numbers.setdefault(
                    key, {"metric": key[0], "source": key[1], "values": {}, "rows": rows}
                )
                published["values"][line["model"]] = float(line["value"])
    return list(numbers.values())


def find_score(entry: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    """Return our estimate of a task file's metric, or None; ``macro_f1`` has no interval."""
    summary = entry["summary"]
    if metric == "macro_f1":
        value = (entry["choice"] or {}).get(metric)
        if value is None:
            return None
        return {"value": value, "standard_error": None, "low": None, "high": None}
    mean = f"avg@{summary['samples_per_problem']}"
    return summary["scores"].get(mean if metric in CHOICE_METRICS else metric)


def find_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two decodings differ, apart from their names."""
    defaults = asdict(Decoding())
    keys = [key for key in dict.fromkeys([*first, *second]) if key != "name"]
    pairs = {
        key: (first.get(key, defaults.get(key)), second.get(key, defaults.get(key))) for key in keys
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def list_known_differences(
    name: str, entry: Mapping[str, Any], reference: Mapping[str, Any]
) -> list[str]:
    """List known differences between a published measurement and a task of a run, in words.

    Published single responses were made with the decoding ``paper``, ``avg@k`` and the like with
    that of k responses.
    """
    metric = reference["metric"]
    rows = reference.get("rows")
    problems = entry["summary"]["problems"]
    at_k = _AT_K.fullmatch(metric)
    k = int(at_k[1]) if at_k else 1
    known = load_task(name).decoding if name in list_task_names() else {}
    fitting = next(
        (
            decoding
            for key, decoding in known.items()
            if decoding.n == k and (at_k or key == "paper")
        ),
        None,
    )
    if fitting is None:
        words = [f"the published decoding of {metric} is not known"]
    else:
        pairs = find_differences(entry["decoding"], asdict(fitting))
        words = [f"{key} {ours}, published {theirs}" for key, (ours, theirs) in pairs.items()]
    if rows is None:
        return [*words, "the number of published problems is not known"]
    return words if rows == problems else [*words, f"{problems:,} problems, published {rows:,}"]


def format_best_published(entry: Mapping[str, Any], model: str) -> str:
    """Return the published number that fits a run best: its ``avg@n``, else single responses.

    It is that of the model that ran, else the highest score.
    """
    n = entry["summary"]["samples_per_problem"]
    metrics = (f"avg@{n}", "accuracy", "micro_f1")
    fitting = [
        reference
        for metric in metrics
        for reference in entry["references"]
        if reference["metric"] == metric and reference["values"]
    ]
    best = next(
        (reference for reference in fitting if find_score(entry, reference["metric"]) is not None),
        None,
    )
    if best is None:
        return NONE
    values = best["values"]
    base = model.rstrip("/").rpartition("/")[2].casefold()
    name = next(
        (known for known in values if known.casefold() == base),
        max(values, key=lambda known: values[known]),
    )
    other = n > 1 and best["metric"] != metrics[0]
    return f"{values[name]:.1f} ({name})" + (f" {best['metric']}" if other else "")


def build_paper_table(name: str, runs: Mapping[str, FinishedRun]) -> Page:
    """Return a published table with a column for each run, and averages of complete columns."""
    paper = PAPERS[name]
    tasks = {task: load_task(task) for task in paper.tasks}
    published = {
        task: next(
            reference for reference in read_references(task) if reference["metric"] == paper.metric
        )
        for task in tasks
    }
    models = list(
        dict.fromkeys(model for reference in published.values() for model in reference["values"])
    )
    ours = {
        task: [
            find_score(run.tasks[task].entry, paper.metric) if task in run.tasks else None
            for run in runs.values()
        ]
        for task in tasks
    }
    theirs = {
        task: [reference["values"].get(model) for model in models]
        for task, reference in published.items()
    }
    rows = [
        [loaded.title, *map(format_score, ours[task]), *map(_format_value, theirs[task])]
        for task, loaded in tasks.items()
    ]
    means = [format_average(column) for column in zip(*ours.values(), strict=True)]
    their_means = [
        None if None in column else sum(column) / len(column)
        for column in zip(*theirs.values(), strict=True)
    ]
    rows.append(["average", *means, *map(_format_value, their_means)])
    same = "the accuracy" if paper.metric == "accuracy" else f"which is {paper.metric}"
    notes = [
        (
            f"Percent. Ours: mean score of a response ± standard error over problems ({same}). The"
            " average is the plain mean, given where every row has a number; averages of published"
            " columns are computed from the rows."
        ),
        *(f"{column}: {run.model}." for column, run in runs.items()),
    ]
    for column, run in runs.items():
        notes += [f"{column}: {words}." for words in _list_differences(run, tasks, published)]
    notes += [
        f"Published: {source}."
        for source in dict.fromkeys(reference["source"] for reference in published.values())
    ]
    notes += [f"{task.title}: {task.notes}" for task in tasks.values() if task.notes]
    page = Page(paper.title)
    page.table(["", *runs, *models], rows)
    page.bullets(notes)
    return page


def _list_differences(
    run: FinishedRun, tasks: Mapping[str, Any], published: Mapping[str, Row]
) -> list[str]:
    """Return known differences from the published, each once, with titles if not for all tasks."""
    titles: dict[str, list[str]] = {}
    there = [task for task in tasks if task in run.tasks]
    for task in there:
        for words in list_known_differences(task, run.tasks[task].entry, published[task]):
            titles.setdefault(words, []).append(tasks[task].title)
    return [
        words if len(task_titles) == len(there) else f"{', '.join(task_titles)}: {words}"
        for words, task_titles in titles.items()
    ]


def _format_value(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def format_average(estimates: Sequence[Mapping[str, Any] | None]) -> str:
    """Return the mean score of disjoint tasks ± its standard error; a dash if one is missing."""
    there = [estimate for estimate in estimates if estimate is not None]
    if not there or len(there) < len(estimates):
        return NONE
    mean = format_percent(sum(estimate["value"] for estimate in there) / len(there))
    errors = [estimate["standard_error"] for estimate in there]
    if None in errors:
        return mean
    return f"{mean} ± {format_percent(math.hypot(*errors) / len(there))}"
