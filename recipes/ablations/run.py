# SPDX-License-Identifier: Apache-2.0
"""Train and measure every variant of a suite with every seed; what is done already is skipped.

    python -m recipes.ablations.run --suite choices --seeds 0 1 2 --work-dir outputs/ablations [verl overrides ...]

A line of ``RESULTS/<suite>/runs.jsonl`` for each run holds its curve, what the PRM did, its settings and versions. An
interrupted run is resumed from its last checkpoint; its checkpoints are deleted once it is measured.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import read_json, write_json, write_json_lines
from recipes.ablations.suites import SUITES, Suite
from recipes.quickstart.data import write_data
from recipes.quickstart.evaluate import evaluate, load_model, load_problems, respond
from recipes.run_statistics import training_seconds, versions
from recipes.study_runs import run_logged, run_missing, run_module

RESULTS = Path(__file__).parent / "results"
# Metrics of a training step that are kept, as means over its first and last steps.
KEPT = (
    "prm/pair_accuracy/before_update",
    "prm/loss",
    "prime/gate/value",
    "prime/process/return_std_over_outcome",
    "prime/accuracy/before_filter",
    "prime/filter/examined",
)
# Of the PRM that is trained beforehand: as many labelled responses as 24 steps of 16 prompts with 4 rollouts see.
OFFLINE_PROMPTS, OFFLINE_ROLLOUTS = 384, 4
OFFLINE_OVERRIDES = (
    "prm.beta=0.2",
    "optim.lr=1e-3",
    "optim.betas=[0.9,0.99]",
    "optim.clip_grad=10.0",
    "data.prompts_per_step=4",
    "data.max_length=128",
    "trainer.epochs=1",
)


def prepare(suite: Suite, folder: Path) -> None:
    """Data and warm start of a suite, and the accuracy of the start."""
    if not (folder / "data" / "data.json").exists():
        options = {"mean_error": suite.mean_error, "chain_lengths": suite.chain_lengths, "test_size": suite.test_size}
        write_data(folder / "data", **options)
    if not (folder / "sft" / "sft.json").exists():
        data = folder / "data" / "sft.parquet"
        run_module("recipes.quickstart.sft", f"--data={data}", f"--output-dir={folder / 'sft'}")
    if not (folder / "start.json").exists():
        write_json(folder / "start.json", measure(suite, folder / "sft", folder))


def train_offline_prm(suite: Suite, folder: Path) -> Path:
    """A PRM from labelled responses of the warm-started policy to training prompts; returns its folder."""
    target, data = folder / "offline_prm", folder / "offline_rollouts.jsonl"
    if (target / "hf" / "config.json").exists():
        return target / "hf"
    if not data.exists():
        model, tokenizer = load_model(folder / "sft")
        problems = load_problems(folder / "data" / "train.parquet", OFFLINE_PROMPTS)
        rollouts = [
            respond(
                model, tokenizer, problems, temperature=1.0, seed=1000 + seed, description=f"offline rollouts {seed}",
                max_response_length=suite.max_response_length,
            )
            for seed in range(OFFLINE_ROLLOUTS)
        ]  # fmt: skip
        rows = [
            {
                "dataset": task.DATA_SOURCE,
                "prompt": [{"role": "user", "content": problem.prompt}],
                "completions": [response.text for response in responses],
                "correctness": [task.outcome_reward(response.text, problem.ground_truth) for response in responses],
            }
            for problem, *responses in zip(problems, *rollouts, strict=True)
        ]
        write_json_lines(data, rows)
    words = ["train_implicit_prm.sh", folder / "sft", data, *OFFLINE_OVERRIDES]
    run_logged(words, {"OUTPUT_DIR": str(target), "DEVICE": "cpu"}, target)
    return target / "hf"


def training(suite: Suite, variant: str, seed: int, folder: Path, run: Path) -> tuple[list[str], dict[str, str]]:
    """Words and knobs of one training run; its PRM is trained if it wants one that was trained before."""
    overrides = [*suite.overrides, *suite.variants[variant].overrides]
    if suite.variants[variant].needs_offline_prm:
        places = {"{offline_prm}": str(train_offline_prm(suite, folder)), "{start}": str(folder / "sft")}
        for name, place in places.items():
            overrides = [override.replace(name, place) for override in overrides]
    knobs = {
        **suite.knobs,
        **suite.variants[variant].knobs,
        "SEED": str(seed),
        "STEPS": str(suite.steps),
        "SAVE_FREQ": str(suite.every),
        "KEEP": "null",
        "MAX_PROMPT_LENGTH": str(suite.max_prompt_length),
        "MAX_RESPONSE_LENGTH": str(suite.max_response_length),
    }
    return ["quickstart/train.sh", *map(str, (run, folder / "data", folder / "sft")), *overrides], knobs


def measure(suite: Suite, policy: Path, folder: Path) -> dict:
    """Accuracy of a policy on the held-out problems; the same sampling seed for all."""
    result = evaluate(policy, folder / "data" / "test.parquet", seed=0, max_response_length=suite.max_response_length)
    kept = {name: {k: v for k, v in result[name].items() if k != "outcomes"} for name in ("temperature_1", "greedy")}
    return {**kept, "n_problems": result["n_problems"]}


def result_of(suite: Suite, variant: str, seed: int, folder: Path, run: Path) -> dict:
    """What is kept of a finished run."""
    curve = {0: read_json(folder / "start.json")}
    for step in complete_steps(run / "checkpoints"):
        curve[step] = measure(suite, run / "checkpoints" / f"global_step_{step}" / "actor", folder)
    metrics = read_metrics(run / "metrics.jsonl")
    rows = [row for row in metrics.values() if "timing_s/step" in row]
    values = {name: [row[name] for row in rows if name in row] for name in KEPT}
    return {
        "label": suite.variants[variant].label,
        "overrides": [*suite.overrides, *suite.variants[variant].overrides],
        "seed": seed,
        "steps": suite.steps,
        "knobs": {**suite.knobs, **suite.variants[variant].knobs},
        "curve": curve,
        "metrics": {
            name: {"first_5": float(np.mean(of_name[:5])), "last_10": float(np.mean(of_name[-10:]))}
            for name, of_name in values.items()
            if of_name
        },
        "rollouts_examined": int(sum(row.get("prime/filter/examined", 0) for row in rows)),
        # Of no use where other work ran at the same time; tests/benchmarks/prm_phase.py compares costs.
        "seconds_per_step_median": float(np.median(list(training_seconds(metrics).values()))),
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of verl's configuration, for all variants")
    parser.add_argument("--suite", choices=SUITES, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=[], metavar="VARIANT")
    parser.add_argument("--steps", type=int, help="policy updates; default: the suite's")
    parser.add_argument("--every", type=int, help="steps between evaluations; default: the suite's")
    parser.add_argument("--test-size", type=int, help="held-out problems; default: the suite's")
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/ablations"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    if unknown := sorted(set(arguments.only) - set(suite.variants)):
        parser.error(f"--only {unknown[0]} is not a variant of {arguments.suite}; it has {', '.join(suite.variants)}")
    changes = {name: getattr(arguments, name) or getattr(suite, name) for name in ("steps", "every", "test_size")}
    suite = replace(suite, **changes, overrides=[*suite.overrides, *arguments.overrides])
    folder, results = arguments.work_dir.resolve() / arguments.suite, arguments.results.resolve() / arguments.suite
    # Seed after seed, so that few seeds are complete early.
    variants = arguments.only or list(suite.variants)
    wanted = {f"{variant}_seed{seed}": (variant, seed) for seed in arguments.seeds for variant in variants}
    run_missing(
        list(wanted),
        folder,
        results,
        lambda: prepare(suite, folder),
        lambda name, run: training(suite, *wanted[name], folder, run),
        lambda name, run: result_of(suite, *wanted[name], folder, run),
    )


if __name__ == "__main__":
    main()
