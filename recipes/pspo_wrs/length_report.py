# SPDX-License-Identifier: Apache-2.0
"""Table, plot and verdict of the reward-length study from its runs.

    python -m recipes.pspo_wrs.length_report

Reads ``results/length_study/runs.jsonl`` and writes ``results/length_study.md`` and ``results/length_study.png``. A
standard error is over seeds. What counts as running away and as staying near four steps was fixed before the runs.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prime_ext.utils.files import write_text
from recipes.figures import GREY, draw_mean, new_figure, save
from recipes.pspo_wrs.data import LABELLERS
from recipes.pspo_wrs.length_study import RESULTS, SHAPES
from recipes.pspo_wrs.measure import LONG, SUPERFLUOUS
from recipes.pspo_wrs.plot_shapes import COLOURS
from recipes.run_statistics import markdown, write_mean
from recipes.study_runs import read_runs

# Names of the shapes in the picture of the shapes, for the same colours.
LABELS = {
    "none": "none",
    "weibull": "Weibull (paper)",
    "gaussian": "Gaussian (CN-PPO)",
    "released": "released code",
}
TITLES = {
    "honest": "honest reward model: a superfluous step scores low",
    "lenient": "lenient reward model: a superfluous step scores high",
}
# Mean number of steps at the end. A run away: half of the responses are cut off at the length limit or have more than
# eight steps.
NEAR = (3.0, 5.0)
AWAY = 0.5

Results = dict[tuple[str, str], dict[int, dict]]


def read_results(folder: Path) -> Results:
    """Results by labeller and shape, in the order of the study, and seed."""
    found: Results = {(labeller, shape): {} for labeller in LABELLERS for shape in SHAPES}
    for result in read_runs(folder).values():
        found[result["labeller"], result["shape"]][result["seed"]] = result
    return {key: dict(sorted(results.items())) for key, results in found.items() if results}


def verdict(results: dict[int, dict]) -> str:
    """What became of the length, by the rules at the head of the module, which every seed must meet."""
    ends = [result["end"] for result in results.values()]
    if all(max(end["steps"]["long"], end["cut_off"]) >= AWAY for end in ends):
        return "runs away"
    if all(NEAR[0] <= end["steps"]["mean"] <= NEAR[1] for end in ends):
        return "near 4"
    means = [end["steps"]["mean"] for end in ends]
    return "neither" if min(means) > NEAR[0] else "shorter"


# What the table has of the measurement at the end: how it is read, factor, digits.
COLUMNS: dict[str, tuple[Callable[[dict], float], float, int]] = {
    "steps": (lambda end: end["steps"]["mean"], 1, 2),
    "superfluous": (lambda end: end["steps"]["kinds"][SUPERFLUOUS], 1, 2),
    f"over {LONG} steps (%)": (lambda end: end["steps"]["long"], 100, 1),
    "at the length limit (%)": (lambda end: end["cut_off"], 100, 1),
    "accuracy (%)": (lambda end: end["accuracy"], 100, 1),
}


def table(found: Results) -> str:
    """Markdown table, one row per reward model and shape, below the policy before the training."""
    rows, labellers = [], set()

    def add(labeller: str, shape: str, seeds: str, ends: list[dict], outcome: str) -> None:
        cells = [write_mean([read(end) for end in ends], *form) for read, *form in COLUMNS.values()]
        score = write_mean([end["scores"][labeller]["geometric"] for end in ends], digits=3)
        rows.append([labeller, shape, seeds, *cells, score, outcome])

    for (labeller, shape), results in found.items():
        if labeller not in labellers:
            labellers.add(labeller)
            add(labeller, "(before)", "", [next(iter(results.values()))["start"]], "")
        add(labeller, LABELS[shape], str(len(results)), [r["end"] for r in results.values()], verdict(results))
    return markdown(["reward model", "shape", "seeds", *COLUMNS, "score, geometric mean", "length"], rows)


def prediction(found: Results) -> str:
    """Whether "released runs away to the length cap when filler is scored well, Weibull stays near 4" came true."""
    released, weibull = found.get(("lenient", "released")), found.get(("lenient", "weibull"))
    if not released or not weibull:
        return "The prediction cannot be judged: runs with the lenient reward model are missing."
    first, second = verdict(released), verdict(weibull)
    came_true = first == "runs away" and second == "near 4"
    return (
        'Prediction "`released` runs away to the length cap when filler is scored well, while Weibull stays near 4 '
        f'steps": {"confirmed" if came_true else "not confirmed"} ({len(released)} and {len(weibull)} seeds; '
        f"released: {first}, Weibull: {second})."
    )


def plot(found: Results, path: Path) -> None:
    """Steps, share of long chains and accuracy over the training, a row per reward model."""
    present = [labeller for labeller in LABELLERS if any(key[0] == labeller for key in found)]
    figure, axes = new_figure(len(present), 3, (14, 3.9 * len(present)))
    panels = {
        "steps": "steps of a response",
        "long": f"share with more than {LONG} steps",
        "accuracy": "accuracy (not rewarded)",
    }
    for row, labeller in zip(axes, present, strict=True):
        for axis, (name, label) in zip(row, panels.items(), strict=True):
            for shape in SHAPES:
                if (labeller, shape) in found:
                    curves = [result["curves"][name] for result in found[labeller, shape].values()]
                    # The steps at which every seed has a value.
                    steps = sorted(set.intersection(*(set(map(int, curve)) for curve in curves)))
                    values_RS = np.array([[curve[str(step)] for step in steps] for curve in curves])
                    draw_mean(axis, steps, values_RS, COLOURS[LABELS[shape]], LABELS[shape], linewidth=2)
            axis.set(xlabel="training step", ylabel=label)
            axis.set_ylim(0, None if name == "steps" else 1)
        row[0].axhspan(*NEAR, color=GREY, alpha=0.1, linewidth=0)
        row[1].set_title(TITLES[labeller], fontsize=12)
    axes[0, 0].legend(frameon=False, fontsize=9)
    save(figure, path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    found = read_results(folder)
    if not found:
        print(f"no results in {folder}")
        return
    content = f"{table(found)}\n{prediction(found)}\n"
    write_text(folder.with_suffix(".md"), content)
    plot(found, folder.with_suffix(".png"))
    print(content)


if __name__ == "__main__":
    main()
