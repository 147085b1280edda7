# SPDX-License-Identifier: Apache-2.0
"""The keys of a task file that say what is right and how it is counted: gold, groups, metrics, references."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from prime_ext.tasks.cells import Pick
from prime_ext.tasks.choice_metrics import METRICS
from prime_ext.tasks.gold import Gold
from prime_ext.tasks.task import Decoding, Reference
from prime_ext.tasks.task_checks import Wrong, list_of, mapping, number_of, pattern_of, text_of, texts_of
from prime_ext.verifiers.math.extraction import STYLES

# avg@16 and the like: scores of several responses per problem.
_AT_K = re.compile(r"(avg|pass|maj)@([1-9]\d{0,5})")


def gold_of(value: Any, n_options: int, grader: str) -> tuple[Gold, ...]:
    """What is right in a row, in each way that the file lists."""
    return tuple(_one_gold(item, n_options, grader) for item in list_of(value, "gold"))


def _one_gold(item: Any, n_options: int, grader: str) -> Gold:
    known = ("column", "columns", *(f.name for f in fields(Gold) if f.name != "columns"))
    given = mapping(item, "gold", known=known)
    if ("column" in given) == ("columns" in given):
        raise Wrong("gold needs either column or columns")
    columns = texts_of(given.get("columns", given.get("column")), "gold.column")
    if grader != "code" and len(columns) > 1:
        raise Wrong(f"gold of {grader} needs a single column; several are the tests of programs")
    for key in ("extract", "unit", "tolerance", "corrections"):
        if key in given and grader != "math":
            raise Wrong(f"gold.{key} must be left out: it is for mathematics, not {grader}")
    values = {}
    if "values" in given:
        if grader == "code":
            raise Wrong("gold.values must be left out: the gold of code is its tests")
        for raw, answer in mapping(given["values"], "gold.values").items():
            if n_options:
                number_of(answer, f"gold.values.{raw}", 1, n_options)
            values[raw.casefold()] = str(answer)
    elif n_options:
        raise Wrong("gold of multiple choice needs values: the option that each label stands for")
    extract = text_of(given["extract"], "gold.extract") if "extract" in given else ""
    if extract and extract not in STYLES:
        raise Wrong(f"gold.extract must be one of {', '.join(sorted(STYLES))}, got {extract!r}")
    corrections = mapping(given["corrections"], "gold.corrections") if "corrections" in given else {}
    return Gold(
        columns,
        values,
        extract=extract,
        unit=text_of(given["unit"], "gold.unit") if "unit" in given else "",
        tolerance=text_of(given["tolerance"], "gold.tolerance") if "tolerance" in given else "",
        corrections={raw: text_of(gold, f"gold.corrections.{raw}") for raw, gold in corrections.items()},
    )


def groups_of(value: Any) -> dict[str, Pick]:
    """Where subject, level and so on are."""
    found = {}
    for name, item in mapping(value, "groups").items():
        key = f"groups.{name}"
        if not isinstance(item, Mapping):
            found[name] = Pick(texts_of(item, key))
            continue
        given = mapping(item, key, known=("column", "pattern"), needed=("column", "pattern"))
        pattern = pattern_of(given["pattern"], f"{key}.pattern")
        if re.compile(pattern).groups != 1:
            raise Wrong(f"{key}.pattern must have one group in round brackets, the text, got {pattern!r}")
        found[name] = Pick(texts_of(given["column"], f"{key}.column"), pattern)
    return found


def metrics_of(value: Any, grader: str, decoding: Mapping[str, Decoding]) -> tuple[str, ...]:
    """The names of metrics that the grader and the decodings can give."""
    metrics = texts_of(value, "metrics")
    most = max(way.n for way in decoding.values())
    for metric in metrics:
        at_k = _AT_K.fullmatch(metric)
        if at_k is None and metric not in METRICS:
            raise Wrong(f"metrics has {metric!r}, which is none of {', '.join(METRICS)}, avg@K, pass@K, maj@K")
        if at_k is None and metric != "accuracy" and grader != "choice":
            raise Wrong(f"metrics has {metric!r}, which is for multiple choice, not {grader}")
        if at_k and int(at_k[2]) > most:
            raise Wrong(f"metrics has {metric!r}, but no decoding has n of {at_k[2]} or more")
        if at_k and at_k[1] == "maj" and grader == "code":
            raise Wrong(f"metrics has {metric!r}, but programs do not vote")
    return metrics


def references_of(value: Any, metrics: Sequence[str]) -> tuple[Reference, ...]:
    """Published numbers."""
    found = []
    for item in list_of(value, "references"):
        needed = [f.name for f in fields(Reference) if f.default is MISSING]
        given = mapping(item, "references", known=[f.name for f in fields(Reference)], needed=needed)
        if given["metric"] not in metrics:
            raise Wrong(f"references.metric {given['metric']!r} is none of the metrics {', '.join(metrics)}")
        values = {
            model: number_of(percent, f"references.values.{model}", 0, 100, whole=False)
            for model, percent in mapping(given["values"], "references.values").items()
        }
        rows = given.get("rows")
        if rows is not None:
            number_of(rows, "references.rows", 1, 1e9)
        found.append(Reference(given["metric"], text_of(given["source"], "references.source"), values, rows))
    return tuple(found)
