# SPDX-License-Identifier: Apache-2.0
"""A picture of the step scores of one response."""

from collections.abc import Sequence
from pathlib import Path

from prime_ext.utils.files import atomic_path


def plot_steps(
    path: Path,
    scores: Sequence[float],
    steps: Sequence[str],
    title: str,
    ylabel: str,
    label: int | None = None,
    threshold: float | None = None,
) -> None:
    """Draw the score of every step; the first wrong step in red, the threshold as a line.

    Args:
        path: PNG file.
        scores: one per step.
        steps: texts, shown shortened.
        title: of the picture.
        ylabel: what the score is.
        label: index of the first wrong step, -1 for none, None if it is not known.
        threshold: below which a step is judged wrong.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.42 * len(scores)), layout="constrained")
    after = label is not None and label >= 0
    colours = [
        "#c0392b" if after and k == label else "#7f8c8d" if after and k > label else "#2e75b6"
        for k in range(len(scores))
    ]
    axes.barh(range(len(scores)), scores, color=colours)
    short = [" ".join(step.split()) for step in steps]
    # A dollar sign would start mathematics.
    names = [
        f"{k}: {(text[:60] + '…' if len(text) > 60 else text)}".replace("$", r"\$") for k, text in enumerate(short)
    ]
    axes.set_yticks(range(len(scores)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    if threshold is not None:
        axes.axvline(threshold, color="#e67e22", linestyle="--", linewidth=1, label=f"threshold {threshold:.4g}")
        axes.legend(fontsize=7)
    axes.set_xlabel(ylabel, fontsize=8)
    axes.set_title(title, fontsize=9)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
    plt.close(figure)
