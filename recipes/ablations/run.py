# SPDX-License-Identifier: Apache-2.0
"""Train and measure every variant of a suite with every seed; what is done already is skipped.

    python -m recipes.ablations.run --suite choices --seeds 0 1 2 --work-dir outputs/ablations

One file per run, ``RESULTS/<suite>/<variant>_seed<k>.json``, holds its curve, what the PRM did, its settings and the
versions. An interrupted run is resumed from its last checkpoint; its checkpoints are deleted once it is measured.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json
from recipes.ablations.offline_prm import train_offline_prm
from recipes.ablations.suites import PAPER_KNOBS, SUITES, Suite, Variant
from recipes.quickstart.data import write_data
from recipes.quickstart.evaluate import evaluate
from recipes.run_statistics import training_seconds

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[2]
# Metrics of a training step that are kept, as means over its first and last steps.
KEPT = (
    "prm/pair_accuracy/before_update",
    "prm/loss",
    "prime/gate/value",
    "prime/process/return_std_over_outcome",
    "prime/accuracy/before_filter",
    "prime/filter/examined",
)


def prepare(name: str, suite: Suite, folder: Path) -> Path:
    """Data and warm start of a suite; returns the folder of the warm-started policy."""
    data, start = folder / "data", folder / "sft"
    if not (data / "data.json").exists():
        write_data(data, mean_error=suite.mean_error, chain_lengths=suite.chain_lengths)
    if not (start / "sft.json").exists():
        command = [sys.executable, "-m", "recipes.quickstart.sft"]
        subprocess.run([*command, f"--data={data / 'sft.parquet'}", f"--output-dir={start}"], cwd=ROOT, check=True)
    return start


def run_variant(suite: Suite, variant: Variant, seed: int, folder: Path, run: Path, offline_prm: Path | None) -> None:
    """One training run, resumed if it was interrupted.

    Raises:
        RuntimeError: the training failed; the end of its log is in the message.
    """
    overrides = [
        override.replace("{offline_prm}", str(offline_prm)).replace("{start}", str(folder / "sft"))
        for override in (*suite.overrides, *variant.overrides)
    ]
    environment = {
        **os.environ,
        **PAPER_KNOBS,
        **suite.knobs,
        "PYTHON": sys.executable,
        "SEED": str(seed),
        "STEPS": str(suite.steps),
        "SAVE_FREQ": str(suite.every),
        "KEEP": "null",
        "MAX_PROMPT_LENGTH": str(suite.max_prompt_length),
        "MAX_RESPONSE_LENGTH": str(suite.max_response_length),
    }
    script = ROOT / "recipes" / "quickstart" / "train.sh"
    arguments = [str(run), str(folder / "data"), str(folder / "sft"), *overrides]
    run_logged(["bash", str(script), *arguments], environment, run)


def run_logged(command: list[str], environment: Mapping[str, str], run: Path) -> None:
    """Run a command whose output goes to ``log.txt`` in the folder of the run.

    Raises:
        RuntimeError: it failed; the end of its log is in the message.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / "log.txt").open("a") as log:
        done = subprocess.run(
            command, env=dict(environment), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        tail = (run / "log.txt").read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("\n".join([f"{run} failed; the end of its log.txt:", *tail]))


def measure(suite: Suite, policy: Path, folder: Path) -> dict:
    """Accuracy of a policy on the held-out problems; the same sampling seed for all."""
    result = evaluate(policy, folder / "data" / "test.parquet", seed=0, max_response_length=suite.max_response_length)
    kept = {name: {k: v for k, v in result[name].items() if k != "outcomes"} for name in ("temperature_1", "greedy")}
    return {**kept, "n_problems": result["n_problems"]}


def result_of(suite: Suite, variant: Variant, seed: int, folder: Path, run: Path) -> dict:
    """What is kept of a finished run."""
    curve = {0: read_json(folder / "start.json")}
    for step in complete_steps(run / "checkpoints"):
        curve[step] = measure(suite, run / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface", folder)
    metrics = read_metrics(run / "metrics.jsonl")
    rows = [row for row in metrics.values() if "timing_s/step" in row]
    kept = {}
    for name in KEPT:
        values = [row[name] for row in rows if name in row]
        if values:
            kept[name] = {"first_5": float(np.mean(values[:5])), "last_10": float(np.mean(values[-10:]))}
    return {
        "label": variant.label,
        "overrides": [*suite.overrides, *variant.overrides],
        "seed": seed,
        "steps": suite.steps,
        "knobs": suite.knobs,
        "curve": curve,
        "metrics": kept,
        "rollouts_examined": int(sum(row.get("prime/filter/examined", 0) for row in rows)),
        # Of no use where other work ran at the same time; tests/benchmarks/prm_phase.py compares costs.
        "seconds_per_step_median": float(np.median(list(training_seconds(metrics).values()))),
        "versions": {name: version(name) for name in ("torch", "transformers", "verl", "ray")}
        | {"python": platform.python_version()},
    }


def run_suite(name: str, seeds: Sequence[int], only: Sequence[str], work_dir: Path, results: Path) -> list[str]:
    """Everything of a suite that has no result yet, seed after seed, so that few seeds are complete early.

    Returns:
        What failed; the other runs go on.
    """
    suite = SUITES[name]
    folder = work_dir / name
    wanted = [
        (seed, key)
        for seed in seeds
        for key in (only or suite.variants)
        if not (results / name / f"{key}_seed{seed}.json").exists()
    ]
    if not wanted:
        print(f"{name}: nothing left to run")
        return []
    prepare(name, suite, folder)
    if not (folder / "start.json").exists():
        write_json(folder / "start.json", measure(suite, folder / "sft", folder))
    failed = []
    for seed, key in tqdm(wanted, desc=name, unit="run"):
        variant = suite.variants[key]
        offline = train_offline_prm(suite, folder) if variant.needs_offline_prm else None
        run = folder / "runs" / f"{key}_seed{seed}"
        try:
            run_variant(suite, variant, seed, folder, run, offline)
        except RuntimeError as error:
            failed.append(f"{key}_seed{seed}: {error}")
            continue
        write_json(results / name / f"{key}_seed{seed}.json", result_of(suite, variant, seed, folder, run))
        shutil.rmtree(run / "checkpoints")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=[], metavar="VARIANT")
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/ablations"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.only) - set(SUITES[arguments.suite].variants))
    if unknown:
        sys.exit(f"--only {unknown[0]} is not a variant of {arguments.suite}; it has "
                 f"{', '.join(SUITES[arguments.suite].variants)}")  # fmt: skip
    work_dir = arguments.work_dir.resolve()
    failed = run_suite(arguments.suite, arguments.seeds, arguments.only, work_dir, arguments.results.resolve())
    if failed:
        sys.exit("\n\n".join([f"{len(failed)} runs failed; started again, they are tried again.", *failed]))


if __name__ == "__main__":
    main()
