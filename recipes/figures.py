# SPDX-License-Identifier: Apache-2.0
"""The style of the recipes' plots."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from prime_ext.utils.files import write_atomically

BLUE = "#2166ac"
ORANGE = "#d66014"
GREEN = "#1b7837"
GREY = "#5b6572"


def make_figure(
    rows: int, columns: int, size: tuple[float, float], **options
) -> tuple[plt.Figure, np.ndarray]:
    """Return a figure and its panels ``(rows, columns)``, in the recipes' style."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, **options
    )
    for axis in axes.flat:
        axis.grid(alpha=0.25)
    return figure, axes


def draw_smoothed(
    axis: Axes, places: np.ndarray, values: np.ndarray, color: str, width: int = 10, **style
) -> None:
    """Draw a thin curve, and the mean of its last ``width`` values that are not NaN."""
    axis.plot(places, values, color=color, alpha=0.25, linewidth=1)
    means = pd.Series(values).rolling(width, min_periods=1).mean()
    axis.plot(places, means, color=color, linewidth=2.2, **style)


def save(figure: plt.Figure, path: Path, dpi: int = 130) -> None:
    """Write the picture, atomically."""
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
    plt.close(figure)
