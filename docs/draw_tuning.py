# SPDX-License-Identifier: Apache-2.0
"""Plots and tables of docs/how_to/tuning.md, from the recorded CPU runs in recipes/ablations/results.

    python docs/draw_tuning.py

writes ``tuning_noise.png`` and ``tuning_prm.png`` beside the page, and replaces the tables between its markers. Every
value is a mean over seeds with its standard error; curves are means over a window of steps first.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from page_tables import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prime_ext.utils.files import write_text
from recipes.ablations.report import RATIO, RESULTS, final, read_results
from recipes.ablations.suites import SUITES
from recipes.figures import draw_mean, new_figure, save
from recipes.run_statistics import PAIR_ACCURACY, markdown, moving_average, write_mean

FOLDER = Path(__file__).resolve().parent / "how_to"
PAGE = FOLDER / "tuning.md"
WINDOW = 5
GAP = "reward gap"
BEFORE, ENTROPY = "prime/accuracy/before_filter", "actor/entropy"
CORRECT, WRONG = "prm/reward_sum/correct", "prm/reward_sum/wrong"
# Seeds by variant; of each seed, values by metric.
Runs = Mapping[str, Sequence[Mapping[str, np.ndarray]]]

NOISE = {
    "outcome": ("outcome only", "#7f7f7f"),
    "gate": ("PRIME with the gate", "#2166ac"),
    "prime": ("PRIME without", "#e08214"),
    "outcome_relative": ("PRIME, as loud as the outcome", "#b2182b"),
}
LOSSES = {"after": ("ce", "#2166ac"), "dpo": ("dpo", "#b2182b")}
SPREADS = {
    "grpo_outcome": ("grpo, outcome only", "#7f7f7f"),
    "prime": ("rloo, both sources", "#2166ac"),
    "grpo": ("grpo, both sources", "#b2182b"),
}


def read_runs(suite: str) -> Runs:
    """The recorded steps of a suite; what was not measured is NaN."""
    runs: dict[str, list[dict[str, np.ndarray]]] = {}
    for line in (RESULTS / f"{suite}_steps.jsonl").read_text().splitlines():
        row = json.loads(line)
        values = {name: np.array(kept, dtype=float) for name, kept in row["metrics"].items()}
        if CORRECT in values:
            values[GAP] = values[CORRECT] - values[WRONG]
        runs.setdefault(row["variant"], []).append(values)
    return runs


def draw(axis: Axes, runs: Runs, variants: Mapping[str, tuple[str, str]], metric: str, title: str) -> None:
    """One curve for each variant that has the metric, with a band of one standard error over seeds."""
    for name, (label, colour) in variants.items():
        if any(metric not in run for run in runs[name]):
            continue
        values_RS = np.stack([moving_average(run[metric], WINDOW) for run in runs[name]])
        draw_mean(axis, np.arange(1, values_RS.shape[1] + 1), values_RS, colour, label, linewidth=1.6)
    axis.set_title(title, fontsize=10)


def level(axis: Axes, height: float, words: str, below: bool = False) -> None:
    """A dotted line with words, above it on the right, or below it on the left."""
    axis.axhline(height, color="black", linewidth=0.9, linestyle=":")
    at, side, foot = (0.02, "left", "top") if below else (0.99, "right", "bottom")
    axis.annotate(words, (at, height), xycoords=("axes fraction", "data"), ha=side, va=foot, fontsize=8)


def draw_noise() -> None:
    """What loud process rewards of a PRM that knows nothing yet do, and what the gate does about it."""
    runs = read_runs("long_chains")
    figure, axes = new_figure(2, 3, (11, 6), sharex=True)
    draw(axes[0, 0], runs, NOISE, BEFORE, "accuracy before the filter")
    draw(axes[0, 1], runs, NOISE, PAIR_ACCURACY, "pair accuracy of the PRM, before update")
    level(axes[0, 1], 0.5, "chance")
    draw(axes[0, 2], runs, NOISE, RATIO, "process over outcome (log)")
    axes[0, 2].set_yscale("log")
    level(axes[0, 2], 1.0, "as loud as the outcome", below=True)
    draw(axes[1, 0], runs, NOISE, GAP, "reward gap: correct minus wrong")
    draw(axes[1, 1], runs, NOISE, ENTROPY, "entropy of the policy, nats per token")
    draw(axes[1, 2], runs, NOISE, "prime/filter/examined", "prompts examined for a batch of 16")
    for axis in axes[1]:
        axis.set_xlabel("step")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, FOLDER / "tuning_noise.png")


def draw_prm() -> None:
    """A PRM that leaves its reference, and process rewards that an estimator blows up."""
    runs = read_runs("choices")
    figure, axes = new_figure(2, 3, (11, 6), sharex=True)
    draw(axes[0, 0], runs, LOSSES, CORRECT, "mean score of correct (line) and wrong (dashed)")
    for name, (_, colour) in LOSSES.items():
        mean_S = np.mean([moving_average(run[WRONG], WINDOW) for run in runs[name]], axis=0)
        axes[0, 0].plot(np.arange(1, len(mean_S) + 1), mean_S, color=colour, linestyle="--", linewidth=1.4)
    draw(axes[0, 1], runs, LOSSES, PAIR_ACCURACY, "pair accuracy of the PRM, before update")
    level(axes[0, 1], 0.5, "chance")
    draw(axes[0, 2], runs, LOSSES, "prm/grad_norm", "gradient norm of the PRM")
    level(axes[0, 2], 10.0, "clip")
    draw(axes[1, 0], runs, SPREADS, RATIO, "process over outcome (log)")
    axes[1, 0].set_yscale("log")
    level(axes[1, 0], 1.0, "as loud as the outcome")
    draw(axes[1, 1], runs, SPREADS, ENTROPY, "entropy of the policy, nats per token")
    draw(axes[1, 2], runs, SPREADS, BEFORE, "accuracy before the filter")
    for axis in axes[1]:
        axis.set_xlabel("step")
    axes[0, 0].legend(title="prm.loss", fontsize=9, frameon=False)
    axes[1, 2].legend(fontsize=9, frameon=False)
    save(figure, FOLDER / "tuning_prm.png")


# ---- tables --------------------------------------------------------------------------------------------------------


def _part(runs: Sequence[Mapping[str, np.ndarray]], metric: str, steps: slice, digits: int) -> str:
    """Mean over some of the steps, with its error over the runs; a dash if a run has not measured it there."""
    if any(metric not in run or np.isnan(run[metric][steps]).all() for run in runs):
        return "-"
    return write_mean([np.nanmean(run[metric][steps]) for run in runs], digits=digits)


def table(suite: str, variants: Mapping[str, str], baseline: str) -> str:
    """Markdown: a row for each variant, with its accuracy and its metrics in the first and last 10 steps."""
    runs, results = read_runs(suite), read_results(RESULTS / suite, SUITES[suite])
    accuracy = {name: {seed: final(result) for seed, result in of.items()} for name, of in results.items()}
    head = (
        "run",
        "accuracy at the end, %",
        f"minus {variants[baseline]}",
        "pair accuracy, first 10 / last 10 steps",
        "process over outcome",
        "reward gap",
        "entropy",
    )
    rows = []
    for name, words in variants.items():
        difference = [value - accuracy[baseline][seed] for seed, value in accuracy[name].items()]
        cells = [words, write_mean(list(accuracy[name].values()), 100, 1)]
        cells.append("" if name == baseline else write_mean(difference, 100, 1))
        for metric, digits in ((PAIR_ACCURACY, 2), (RATIO, 2), (GAP, 2), (ENTROPY, 3)):
            first, last = (_part(runs[name], metric, part, digits) for part in (slice(10), slice(-10, None)))
            cells.append("-" if last == "-" else f"{first} / {last}")
        rows.append(cells)
    return markdown(head, rows)


def tables() -> dict[str, str]:
    """The tables of the page by the names of their markers."""
    long_chains = {
        "outcome": "outcome only",
        "gate": "PRIME with the gate",
        "prime": "PRIME without",
        "warm_up": "`prime.process.warm_up_steps=10`",
        "policy_waits": "`trainer.critic_warmup=10`",
        "outcome_relative": "`normalization=outcome_relative`",
    }
    choices = {
        "prime": "PRIME (`interleaved`, `ce`)",
        "outcome": "outcome only",
        "after": "`prm.update_mode=after`",
        "dpo": "`prm.loss=dpo`, `after`",
        "ipvrm": "`prm.loss=ipvrm`, `prm.beta=10`",
        "offline": "PRM trained beforehand, then fixed",
        "grpo_outcome": "`grpo`, outcome only",
        "grpo": "`grpo` for both sources",
    }
    return {
        "long_chains": table("long_chains", long_chains, "outcome"),
        "choices": table("choices", choices, "prime"),
    }


def main() -> None:
    page = PAGE.read_text()
    for name, text in tables().items():
        page = replace(page, name, text)
    write_text(PAGE, page)
    draw_noise()
    draw_prm()


if __name__ == "__main__":
    main()
