# SPDX-License-Identifier: Apache-2.0
"""How process rewards are composed, as a picture: ``docs/explanation/process_rewards.png``.

    python docs/draw_process_rewards.py [--out docs/explanation/process_rewards.png]

Each column is a choice, each line a method that is known by a name. The names in the columns are those of the settings.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prime_ext.config.reward_settings import ACCUMULATIONS, SHAPES
from recipes.figures import save

# Title, where it is set (implicit PRM, then step reward model), and the values from top to bottom.
COLUMNS = (
    ("scorer", "prm\nstep_scorer", ("implicit PRM", "step reward model", "verifier")),
    ("granularity", "prime.process.granularity\n(always step)", ("token", "step", "response")),
    ("accumulation", "prime.process.accumulation.mode\npspo.accumulation.mode", ACCUMULATIONS),
    ("shaping", "prime.process.shaping.name\npspo.shaping.name", SHAPES),
    (
        "credit",
        "prime.process.credit, .accumulation.reward_position\npspo.credit, .accumulation.reward_position",
        ("tokens", "step ends", "last token"),
    ),
    (
        "estimator",
        "prime.process.estimator\nalgorithm.adv_estimator",
        ("rloo", "grpo", "any of verl's", "gae (PPO)"),
    ),
)
# A method is one value of each column.
METHODS = {
    "PRIME, process": ("#2166ac", ("implicit PRM", "token", "none", "none", "tokens", "rloo")),
    "PRIME, outcome": ("#8fb4d9", ("verifier", "response", "none", "none", "last token", "rloo")),
    "PSPO-WRS": ("#d66014", ("step reward model", "step", "geometric", "weibull", "last token", "gae (PPO)")),
    "min-form credit (PURE) of implicit rewards": (
        "#1b7837",
        ("implicit PRM", "step", "none", "none", "step ends", "rloo"),
    ),
    "Weibull on implicit rewards": ("#7b3294", ("implicit PRM", "step", "geometric", "weibull", "last token", "rloo")),
}
_WIDTH, _GAP, _HEIGHT = 1.62, 0.75, 0.42


def place_of(column: int, value: str) -> tuple[float, float]:
    """Middle of a value's box."""
    values = COLUMNS[column][2]
    most = max(len(choice[2]) for choice in COLUMNS)
    step = most / len(values)
    return column * (_WIDTH + _GAP), -(values.index(value) + 0.5) * step * 0.62


def _boxes(axis: Axes) -> None:
    for column, (title, keys, values) in enumerate(COLUMNS):
        x = column * (_WIDTH + _GAP)
        axis.text(x, 0.95, title, ha="center", fontsize=14, fontweight="bold")
        axis.text(x, 0.42, keys, ha="center", fontsize=8, family="monospace", color="#444444", linespacing=1.5)
        for value in values:
            _, y = place_of(column, value)
            box = FancyBboxPatch(
                (x - _WIDTH / 2, y - _HEIGHT / 2),
                _WIDTH,
                _HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.1",
                facecolor="white",
                edgecolor="#9aa4ad",
                zorder=3,
            )
            axis.add_patch(box)
            axis.text(x, y, value, ha="center", va="center", fontsize=11, zorder=4)


def _lines(axis: Axes) -> None:
    for number, (name, (colour, values)) in enumerate(METHODS.items()):
        # Lines through the same box run side by side.
        shift = (number - (len(METHODS) - 1) / 2) * 0.07
        for column in range(len(COLUMNS) - 1):
            (x0, y0), (x1, y1) = place_of(column, values[column]), place_of(column + 1, values[column + 1])
            ends = [x0 + _WIDTH / 2, x1 - _WIDTH / 2]
            axis.plot(ends, [y0 + shift, y1 + shift], color=colour, linewidth=2.4, zorder=2, solid_capstyle="round")
        axis.plot([], [], color=colour, linewidth=3, label=name)


def draw(path: Path) -> None:
    """Write the picture, atomically."""
    figure, axis = plt.subplots(figsize=(15.5, 6.6), layout="constrained")
    _lines(axis)
    _boxes(axis)
    most = max(len(choice[2]) for choice in COLUMNS)
    axis.set(xlim=(-1.1, (len(COLUMNS) - 1) * (_WIDTH + _GAP) + 1.1), ylim=(-most * 0.62 - 0.1, 1.3))
    axis.axis("off")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=len(METHODS), frameon=False, fontsize=11)
    save(figure, path, dpi=100)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    page = Path(__file__).parent / "explanation"
    parser.add_argument("--out", type=Path, default=page / "process_rewards.png", help="picture to write")
    out = parser.parse_args(arguments).out
    draw(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
