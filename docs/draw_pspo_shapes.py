# SPDX-License-Identifier: Apache-2.0
"""Draw the shapes of the length factor, and the score at which one more step pays.

    python docs/draw_pspo_shapes.py [--out docs/tutorials/pspo_shapes.png]

Nothing is trained or measured here: the curves are the functions of ``prime_ext.algorithms``.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from matplotlib.ticker import MultipleLocator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prime_ext.algorithms.chain_reward import ChainReward
from recipes.figures import BLUE, GREEN, GREY, ORANGE, make_figure, save

REWARDS = {
    "none": ChainReward(),
    "Weibull (paper)": ChainReward(shape="weibull"),
    "Gaussian (CN-PPO)": ChainReward(shape="gaussian"),
    "released code": ChainReward(power=2.0, shape="released"),
}
COLORS = dict(zip(REWARDS, (GREY, BLUE, GREEN, ORANGE), strict=True))
SCORES = (0.6, 0.9)
MOST_STEPS = 20


def get_value(reward: ChainReward, score: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the reward R of accumulated scores and numbers of steps."""
    return score**reward.power * reward.factor(score, steps)


def factors(reward: ChainReward, score: float, most: int = MOST_STEPS) -> list[float]:
    """Return the reward of 1 .. ``most`` equal steps, relative to that of four."""
    steps = torch.arange(1, most + 1)
    value = get_value(reward, torch.full((most,), score, dtype=torch.float64), steps)
    return (value / value[3]).tolist()


def fillers(reward: ChainReward, score: float, most: int = MOST_STEPS) -> list[float]:
    """Return the lowest score of a further step that pays, for chains of 2 .. ``most`` steps.

    NaN stands for chains to which no further step pays. With a step of score p, the chain's F
    becomes (F^n p)^(1 / (n + 1)); with a shape h(n) and power 1, the lowest p is F (h(n) / h(n +
    1))^(n + 1).
    """
    steps = torch.arange(2, most + 1, dtype=torch.float64)
    before = get_value(reward, torch.full_like(steps, score), steps)

    def pays(filler: torch.Tensor) -> torch.Tensor:
        longer = torch.exp((steps * math.log(score) + filler.log()) / (steps + 1))
        # A hair of tolerance: without a shape, equal chains must come out as equal.
        return get_value(reward, longer, steps + 1) >= before * (1 - 1e-12)

    low = torch.zeros_like(steps)
    high = torch.ones_like(steps)
    possible = pays(high)
    for _ in range(60):
        middle = (low + high) / 2
        enough = pays(middle)
        low = torch.where(enough, low, middle)
        high = torch.where(enough, middle, high)
    return torch.where(possible, high, torch.nan).tolist()


def plot_shapes(path: Path) -> None:
    """Write the picture."""
    figure, ((shapes, *breaks),) = make_figure(1, 3, (14, 4.6))
    for name, reward in REWARDS.items():
        for score, style in zip(SCORES, ("--", "-"), strict=True):
            # Only the released code reads the score.
            if reward.shape == "released" or score == SCORES[-1]:
                label = f"{name}, score {score}" if reward.shape == "released" else name
                steps = range(1, MOST_STEPS + 1)
                shapes.plot(
                    steps,
                    factors(reward, score),
                    style,
                    color=COLORS[name],
                    marker=".",
                    label=label,
                )
    shapes.set(ylim=(0, 5.1), xlabel="steps of equal score", ylabel="reward, four steps = 1")
    shapes.set_title("Reward by number of steps")
    shapes.legend(frameon=False, fontsize=9)
    for axis, score in zip(breaks, SCORES, strict=True):
        for name, reward in REWARDS.items():
            values = fillers(reward, score)
            axis.plot(range(2, MOST_STEPS + 1), values, color=COLORS[name], marker=".", label=name)
            never = next((n for n, value in enumerate(values, start=2) if math.isnan(value)), None)
            if never is not None:
                # Two shapes can end at the same number of steps: the wider mark stays visible
                # around the other.
                size, width = (12, 3) if reward.shape == "weibull" else (8, 1.5)
                mark = {
                    "marker": "x",
                    "markersize": size,
                    "markeredgewidth": width,
                    "clip_on": False,
                }
                axis.plot([never], [1.0], color=COLORS[name], **mark)
        axis.set(
            ylim=(0, 1.02),
            xlim=(1, MOST_STEPS + 0.5),
            xlabel="steps before it",
            ylabel="score of one more step",
        )
        axis.set_title(
            f"One more step pays above the line\n(chain of score {score}; x: from here on never)",
            fontsize=11,
        )
    for axis in (shapes, *breaks):
        axis.xaxis.set_major_locator(MultipleLocator(4))
    save(figure, path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/tutorials/pspo_shapes.png"), help="picture to write"
    )
    out = parser.parse_args(arguments).out
    plot_shapes(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
