# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds and problems, and readers of a run's files, for the recipes' reports."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from prime_ext.run.metrics_file import read_metrics

PAIR_ACCURACY = "prm/pair_accuracy/before_update"


def standard_errors(values_RS: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean over the first axis; 0, as in plots, for one run."""
    if len(values_RS) < 2:
        return np.zeros(values_RS.shape[1:])
    return values_RS.std(axis=0, ddof=1) / math.sqrt(len(values_RS))


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error, which is None for a single value."""
    return float(np.mean(values)), float(standard_errors(np.asarray(values))) if len(
        values
    ) > 1 else None


def format_mean(values: Sequence[float], factor: float = 1.0, digits: int = 2) -> str:
    """Format the mean, times ``factor``, with its standard error if there are several values."""
    mean, error = mean_and_error(values)
    return f"{factor * mean:.{digits}f}" + (
        "" if error is None else f" ± {factor * error:.{digits}f}"
    )


def get_paired_error(before: str, after: str) -> float:
    """Return the standard error of the difference of two accuracies on the same problems.

    ``before`` and ``after`` are strings of 0 and 1. ``ValueError``: they differ in length.
    """
    if len(before) != len(after):
        raise ValueError(
            f"the evaluations have {len(before)} and {len(after)} problems; they must be the same"
        )
    return float(
        standard_errors(np.array([int(a) - int(b) for a, b in zip(after, before, strict=True)]))
    )


def find_crossing(
    places: Sequence[float], values: Sequence[float], threshold: float
) -> float | None:
    """Return where the linearly interpolated curve first reaches the threshold, or None."""
    first = next((index for index, value in enumerate(values) if value >= threshold), None)
    if first is None:
        return None
    around = slice(max(0, first - 1), first + 1)
    return float(np.interp(threshold, values[around], places[around]))


def run_metrics(run: Path) -> dict[int, dict[str, float]]:
    """Return the metrics by step of a run and its resumptions. ``ValueError``: there are none."""
    metrics = read_metrics(run / "metrics.jsonl")
    if not metrics:
        raise ValueError(f"no metrics in {run / 'metrics.jsonl'}; was verl's 'file' logger on?")
    return metrics


def get_curve(
    metrics: Mapping[int, Mapping[str, float]], key: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of one metric, at the steps at which it was logged."""
    points = {step: row[key] for step, row in metrics.items() if key in row}
    return np.array(list(points)), np.array(list(points.values()), dtype=float)


def read_seconds(path: Path) -> dict[str, float]:
    """Read lines ``phase<TAB>seconds``; return the sum of each phase, and the ``total``."""
    seconds: dict[str, float] = defaultdict(float)
    for line in path.read_text(encoding="utf-8").splitlines():
        phase, value = line.split("\t")
        seconds[phase] += float(value)
    return {**seconds, "total": sum(seconds.values())}


def read_settings(path: Path) -> dict[str, str]:
    """Read the knobs of a run from lines ``NAME=VALUE``."""
    return dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines())
