# SPDX-License-Identifier: Apache-2.0
"""Statistics of finished runs that the recipes share."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

# Timings of a step that are measurement, not training.
NOT_TRAINING = ("timing_s/save_checkpoint", "timing_s/testing")


def standard_errors(values_RS: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the first axis; 0 where it holds a single run, as a plot draws it."""
    if len(values_RS) < 2:
        return np.zeros(values_RS.shape[1:])
    return values_RS.std(axis=0, ddof=1) / math.sqrt(len(values_RS))


def mean_and_error(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, standard error of the mean (None for a single value), and the number of values."""
    error = float(standard_errors(np.asarray(values))) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "standard_error": error, "n": len(values)}


def write_mean(values: Sequence[float], factor: float = 1.0, digits: int = 2) -> str:
    """A mean with its standard error over the values, times ``factor``; of a single value without one."""
    found = mean_and_error(values)
    error = "" if found["standard_error"] is None else f" ± {factor * found['standard_error']:.{digits}f}"
    return f"{factor * found['mean']:.{digits}f}{error}"


def training_seconds(metrics: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Seconds of every training step, without saving and testing, from the rows of ``metrics.jsonl`` by step."""
    return {
        step: row["timing_s/step"] - sum(row.get(name, 0.0) for name in NOT_TRAINING)
        for step, row in metrics.items()
        if "timing_s/step" in row
    }
