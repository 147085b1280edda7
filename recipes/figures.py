# SPDX-License-Identifier: Apache-2.0
"""What the recipes' plots share."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from prime_ext.utils.files import atomic_path
from recipes.run_statistics import moving_average, standard_errors

BLUE, ORANGE, GREEN, GREY = "#2166ac", "#d66014", "#1b7837", "#5b6572"


def new_figure(rows: int, columns: int, size: tuple[float, float], **options) -> tuple[plt.Figure, np.ndarray]:
    """A figure and its panels ``(rows, columns)``, in the recipes' style."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
    return figure, axes


def draw_mean(axis: Axes, places: Sequence[float], values_RS: np.ndarray, colour: str, label: str, **style) -> None:
    """The mean over the runs with a band of one standard error."""
    mean_S, error_S = values_RS.mean(0), standard_errors(values_RS)
    axis.plot(places, mean_S, color=colour, label=label, **style)
    axis.fill_between(places, mean_S - error_S, mean_S + error_S, color=colour, alpha=0.2, linewidth=0)


def draw_smoothed(axis: Axes, places: np.ndarray, values: np.ndarray, colour: str, width: int = 10, **style) -> None:
    """A curve, thin, and the mean of its last values."""
    axis.plot(places, values, color=colour, alpha=0.25, linewidth=1)
    axis.plot(places, moving_average(values, width), color=colour, linewidth=2.2, **style)


def save(figure: plt.Figure, path: Path, dpi: int = 130) -> None:
    """Write the picture, atomically."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
    plt.close(figure)
