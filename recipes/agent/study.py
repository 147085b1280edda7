# SPDX-License-Identifier: Apache-2.0
"""Methods on the agent's task, through verl on the CPU: train, measure and compare; what is done already is skipped.

    python -m recipes.agent.study --only rloo distilled --seeds 0 1 2 --work-dir outputs/agent_study

``study.yaml`` has the methods. Writes ``RESULTS/<method>_seed<k>.json`` for each run and ``RESULTS/report.{json,md}``.
"""

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json, write_text
from recipes.agent.data import write_data
from recipes.agent.play import play, summarise
from recipes.quickstart.evaluate import load_problems
from recipes.run_statistics import crossing, markdown, mean_and_error, training_seconds, versions, write_mean
from recipes.study_runs import run_missing, run_module

STUDY = yaml.safe_load((Path(__file__).parent / "study.yaml").read_text())
RESULTS = Path(__file__).parent / "results"
THRESHOLDS = (0.4, 0.5, 0.6, 0.7)
BASELINE = "rloo"


def prepare(folder: Path) -> None:
    """Data and warm start of the quickstart, and the accuracy of the start."""
    if not (folder / "data" / "data.json").exists():
        write_data(folder / "data")
    if not (folder / "sft" / "sft.json").exists():
        data = folder / "data" / "sft.parquet"
        run_module("recipes.agent.sft", f"--data={data}", f"--output-dir={folder / 'sft'}")
    if not (folder / "start.json").exists():
        write_json(folder / "start.json", measure(folder / "sft", folder))


def measure(policy: Path, folder: Path) -> dict[str, Any]:
    """One episode at temperature 1 for each held-out problem; the same seed for all policies."""
    problems = load_problems(folder / "data" / "test.parquet", STUDY["problems"])
    found = summarise(asyncio.run(play(policy, problems, seed=0, temperature=1.0)))
    return {name: value for name, value in found.items() if name != "outcomes"}


def training(method: str, seed: int, folder: Path, run: Path) -> tuple[list[str], dict[str, str]]:
    """Words and knobs of one training run."""
    spec, every = STUDY["methods"][method], {"SEED": str(seed), "STEPS": str(STUDY["steps"]), "KEEP": "null"}
    knobs = {**STUDY["knobs"], **spec.get("knobs", {}), **every, "SAVE_FREQ": str(STUDY["every"])}
    return ["agent/train.sh", *map(str, (run, folder / "data", folder / "sft")), *spec["overrides"]], knobs


def result_of(method: str, seed: int, folder: Path, run: Path) -> dict[str, Any]:
    """What is kept of a finished run."""
    curve = {"0": read_json(folder / "start.json")}
    for step in complete_steps(run / "checkpoints"):
        curve[str(step)] = measure(run / "checkpoints" / f"global_step_{step}" / "actor", folder)
    metrics = read_metrics(run / "metrics.jsonl")
    spec = STUDY["methods"][method]
    return {
        "method": method,
        "seed": seed,
        "overrides": spec["overrides"],
        "knobs": {**STUDY["knobs"], **spec.get("knobs", {})},
        "curve": curve,
        "seconds_per_step_median": float(np.median(list(training_seconds(metrics).values()))),
        "rollouts_per_step": float(np.mean([row["prime/filter/examined"] for row in metrics.values()])) * 4,
        "versions": versions(),
    }


def report(runs: Mapping[str, Mapping[int, dict[str, Any]]]) -> tuple[dict[str, Any], str]:
    """Means over seeds, and a table; ratios of steps are paired by seed."""
    found: dict[str, Any] = {}
    rows = []
    for method, by_seed in runs.items():
        reached: dict[str, dict[int, float | None]] = {}
        for threshold in THRESHOLDS:
            reached[str(threshold)] = {seed: _steps_to(run, threshold) for seed, run in by_seed.items()}
        last = [run["curve"][str(STUDY["steps"])] for run in by_seed.values()]
        found[method] = {
            "seeds": sorted(by_seed),
            "steps_to": reached,
            "accuracy": mean_and_error([point["accuracy"] for point in last]),
            "calls_per_episode": mean_and_error([point["calls_per_episode"] for point in last]),
            "failed_calls": mean_and_error([point["failed_calls"] for point in last]),
            "seconds_per_step": mean_and_error([run["seconds_per_step_median"] for run in by_seed.values()]),
        }
        cells = []
        for values in reached.values():
            arrived = [value for value in values.values() if value is not None]
            some = f" ({len(arrived)} of {len(values)})" if len(arrived) < len(values) else ""
            cells.append(write_mean(arrived, digits=1) + some if arrived else "never")
        ends = [
            write_mean([point["accuracy"] for point in last], 100.0, 1),
            write_mean([point["calls_per_episode"] for point in last]),
            write_mean([point["failed_calls"] for point in last], 100.0, 1),
            write_mean([run["seconds_per_step_median"] for run in by_seed.values()]),
        ]
        rows.append([STUDY["methods"][method]["label"], str(len(by_seed)), *cells, *ends])
    for method in found:
        shared = sorted(set(runs[method]) & set(runs.get(BASELINE, {})))
        final = [_end(runs[method][seed]) - _end(runs[BASELINE][seed]) for seed in shared]
        found[method]["minus_rloo"] = mean_and_error(final) if final else None
    head = ["method", "seeds", *(f"steps to {threshold:.0%}" for threshold in THRESHOLDS)]
    head += ["% right at the end", "calls an episode", "% of calls failed", "seconds a step"]
    return found, markdown(head, rows)


def _steps_to(run: Mapping[str, Any], threshold: float) -> float | None:
    steps = sorted(map(int, run["curve"]))
    return crossing(steps, [run["curve"][str(step)]["accuracy"] for step in steps], threshold)


def _end(run: Mapping[str, Any]) -> float:
    return run["curve"][str(STUDY["steps"])]["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=STUDY["methods"], default=list(STUDY["methods"]))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/agent_study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    folder, results = arguments.work_dir.resolve(), arguments.results.resolve()
    # Seed after seed, so that few seeds are complete early.
    wanted = {f"{method}_seed{seed}": (method, seed) for seed in arguments.seeds for method in arguments.only}
    run_missing(
        list(wanted),
        folder,
        results,
        lambda: prepare(folder),
        lambda name, run: training(*wanted[name], folder, run),
        lambda name, run: result_of(*wanted[name], folder, run),
    )
    runs: dict[str, dict[int, dict[str, Any]]] = {method: {} for method in STUDY["methods"]}
    for path in sorted(results.glob("*_seed*.json")):
        run = read_json(path)
        runs[run["method"]][run["seed"]] = run
    found, table = report({method: by_seed for method, by_seed in runs.items() if by_seed})
    write_json(results / "report.json", found)
    write_text(results / "report.md", table)
    print(table)


if __name__ == "__main__":
    main()
