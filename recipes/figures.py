# SPDX-License-Identifier: Apache-2.0
"""The style of the recipes' plots."""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from prime_ext.utils.files import atomic_path

BLUE, ORANGE, GREEN, GREY = "#2166ac", "#d66014", "#1b7837", "#5b6572"


def new_figure(rows: int, columns: int, size: tuple[float, float], **options) -> tuple[plt.Figure, np.ndarray]:
    """Return a figure and its panels ``(rows, columns)``, in the recipes' style."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
    return figure, axes


def moving_average(values: np.ndarray, width: int = 10) -> np.ndarray:
    """Mean of the last ``width`` values, of those that are not NaN; of fewer at the beginning."""
    parts = (values[max(0, last - width) : last] for last in range(1, len(values) + 1))
    return np.array([math.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])


def draw_smoothed(axis: Axes, places: np.ndarray, values: np.ndarray, color: str, width: int = 10, **style) -> None:
    """Draw a curve, thin, and the mean of its last values."""
    axis.plot(places, values, color=color, alpha=0.25, linewidth=1)
    axis.plot(places, moving_average(values, width), color=color, linewidth=2.2, **style)


def save(figure: plt.Figure, path: Path, dpi: int = 130) -> None:
    """Write the picture, atomically."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
    plt.close(figure)
