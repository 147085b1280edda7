# SPDX-License-Identifier: Apache-2.0
"""The reward-length study: does a shape of the length factor run away when filler is scored well?

    python -m recipes.pspo_wrs.length_study --work-dir outputs/pspo_length_study

Two step reward models, which differ in the labels of superfluous steps only: ``honest`` (0, so that its score falls
with every step that adds nothing) and ``lenient`` (1: it can be hacked by filler). Four shapes, each with the
accumulation it was published with. Every run starts from one warm-started policy and sees the same prompts.

One line of ``RESULTS/runs.jsonl`` for each run. Finished runs are skipped, an interrupted one goes on
from its last checkpoint; its checkpoints are deleted once it is measured.
"""

import argparse
import itertools
from pathlib import Path

from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json
from recipes.pspo_wrs.data import LABELLERS
from recipes.pspo_wrs.measure import measure
from recipes.pspo_wrs.prepare import prepare_data, train_step_rm, warm_start
from recipes.run_statistics import versions
from recipes.study_runs import run_missing

RESULTS = Path(__file__).parent / "results" / "length_study"
# Published as they are; none is the geometric mean alone.
SHAPES = {
    "none": ("pspo.shaping.name=none",),
    "weibull": ("chain@pspo=pspo_wrs",),
    "gaussian": ("chain@pspo=cn_ppo",),
    "released": ("chain@pspo=pspo_released",),
}
# Of train_cpu.sh.
KNOBS = {"STEPS": "60", "PROMPTS": "16", "ROLLOUTS": "4", "LR": "5e-4", "KL": "0.01", "SAVE_FREQ": "30", "KEEP": "2"}
# What is kept of every training step.
CURVES = {
    "steps": "pspo/n_steps/mean",
    "long": "pspo/steps_above_8",
    "accuracy": "pspo/acc",
    "chain_score": "pspo/chain_score",
    "reward": "pspo/score",
    "response_length": "response_length/mean",
    "cut_off": "response_length/clip_ratio",
}


def training(labeller: str, shape: str, seed: int, folder: Path, run: Path) -> tuple[list[str], dict[str, str]]:
    """Words and knobs of one training run."""
    places = [run, folder / "data", folder / "sft", folder / f"step_rm_{labeller}" / "model"]
    return ["pspo_wrs/train_cpu.sh", *map(str, places), *SHAPES[shape]], {**KNOBS, "SEED": str(seed)}


def measured(policy: Path, folder: Path) -> dict:
    """A policy on the held-out problems, by both step reward models."""
    models = {name: folder / f"step_rm_{name}" / "model" for name in LABELLERS}
    result = measure(policy, folder / "data" / "test.parquet", models)
    return {key: value for key, value in result.items() if key != "outcomes"}


def result_of(labeller: str, shape: str, seed: int, folder: Path, run: Path) -> dict:
    """What is kept of a finished run."""
    policy = run / "checkpoints" / f"global_step_{KNOBS['STEPS']}" / "actor"
    metrics = read_metrics(run / "metrics.jsonl")
    rows = {str(step): row for step, row in metrics.items() if CURVES["steps"] in row}
    curves = {name: {step: row[key] for step, row in rows.items() if key in row} for name, key in CURVES.items()}
    return {
        "labeller": labeller,
        "shape": shape,
        "seed": seed,
        "overrides": list(SHAPES[shape]),
        "knobs": KNOBS,
        "start": read_json(folder / "start.json"),
        "end": measured(policy, folder),
        "curves": curves,
        "seconds_per_step": [round(row["timing_s/step"], 2) for row in rows.values() if "timing_s/step" in row],
        "versions": versions(),
    }


def prepare(folder: Path, results: Path) -> None:
    """Everything that the runs share."""
    prepare_data(folder)
    warm_start(folder)
    for labeller in LABELLERS:
        train_step_rm(folder, labeller)
    if not (folder / "start.json").exists():
        write_json(folder / "start.json", measured(folder / "sft", folder))
    step_rms = {name: read_json(folder / f"step_rm_{name}" / "results.json") for name in LABELLERS}
    kept = {name: {key: value[key] for key in ("temperature", "data", "test")} for name, value in step_rms.items()}
    write_json(results / "step_rms.json", kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labellers", nargs="+", choices=LABELLERS, default=list(LABELLERS))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/pspo_length_study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    # Seed after seed, so that whole comparisons are complete early.
    choices = itertools.product(options.seeds, options.labellers, options.shapes)
    wanted = {f"{labeller}_{shape}_seed{seed}": (labeller, shape, seed) for seed, labeller, shape in choices}
    folder, results = options.work_dir.resolve(), options.results.resolve()
    run_missing(
        list(wanted),
        folder,
        results,
        lambda: prepare(folder, results),
        lambda name, run: training(*wanted[name], folder, run),
        lambda name, run: result_of(*wanted[name], folder, run),
    )


if __name__ == "__main__":
    main()
