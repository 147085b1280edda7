# SPDX-License-Identifier: Apache-2.0
"""Methods on the agent's task, through verl on the CPU: train, measure and compare; what is done already is skipped.

    python -m recipes.agent.study outcome --only rloo distilled --seeds 0 1 2 --work-dir outputs/agent_study

``study.yaml`` has the studies and their methods. Writes a line of ``RESULTS/<study>/runs.jsonl`` for each run, and
``report.{json,md}`` beside them.
"""

import os

# verl asks for its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

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
from recipes.study_runs import read_runs, run_missing, run_module

STUDIES = yaml.safe_load((Path(__file__).parent / "study.yaml").read_text())
RESULTS = Path(__file__).parent / "results"
Study = Mapping[str, Any]


def prepare(study: Study, folder: Path) -> None:
    """Data and warm start of the quickstart, and the accuracy of the start."""
    if not (folder / "data" / "data.json").exists():
        write_data(folder / "data")
    if not (folder / "sft" / "sft.json").exists():
        data = folder / "data" / "sft.parquet"
        run_module("recipes.agent.sft", f"--data={data}", f"--output-dir={folder / 'sft'}")
    if not (folder / "start.json").exists():
        write_json(folder / "start.json", measure(study, folder / "sft", folder))


def measure(study: Study, policy: Path, folder: Path) -> dict[str, Any]:
    """One episode at temperature 1 for each held-out problem; the same seed for all policies."""
    problems = load_problems(folder / "data" / "test.parquet", study["problems"])
    found = summarise(asyncio.run(play(policy, problems, seed=0, temperature=1.0)))
    return {name: value for name, value in found.items() if name != "outcomes"}


def training(study: Study, method: str, seed: int, folder: Path, run: Path) -> tuple[list[str], dict[str, str]]:
    """Words and knobs of one training run."""
    spec, every = study["methods"][method], {"SEED": str(seed), "STEPS": str(study["steps"]), "KEEP": "null"}
    knobs = {**study["knobs"], **spec.get("knobs", {}), **every, "SAVE_FREQ": str(study["every"])}
    return ["agent/train.sh", *map(str, (run, folder / "data", folder / "sft")), *overrides_of(study, method)], knobs


def overrides_of(study: Study, method: str) -> list[str]:
    """Of the study and its method."""
    return [*study.get("overrides", []), *study["methods"][method]["overrides"]]


def result_of(study: Study, method: str, seed: int, folder: Path, run: Path) -> dict[str, Any]:
    """What is kept of a finished run."""
    curve = {"0": read_json(folder / "start.json")}
    for step in complete_steps(run / "checkpoints"):
        curve[str(step)] = measure(study, run / "checkpoints" / f"global_step_{step}" / "actor", folder)
    metrics = read_metrics(run / "metrics.jsonl")
    spec = study["methods"][method]
    return {
        "method": method,
        "seed": seed,
        "overrides": overrides_of(study, method),
        "knobs": {**study["knobs"], **spec.get("knobs", {})},
        "curve": curve,
        "seconds_per_step_median": float(np.median(list(training_seconds(metrics).values()))),
        "rollouts_per_step": float(np.mean([row["prime/filter/examined"] for row in metrics.values()])) * 4,
        "versions": versions(),
    }


def report(study: Study, runs: Mapping[str, Mapping[int, dict[str, Any]]]) -> tuple[dict[str, Any], str]:
    """Means over seeds, and two tables; differences from the baseline are paired by seed."""
    found: dict[str, Any] = {}
    rows, rows_of_seconds, accuracies = [], [], study["accuracies"]
    for method, by_seed in runs.items():
        last = [run["curve"][str(study["steps"])] for run in by_seed.values()]
        reached = {str(one): {seed: _steps_to(run, one) for seed, run in by_seed.items()} for one in accuracies}
        pace = {seed: run["seconds_per_step_median"] for seed, run in by_seed.items()}
        seconds = {
            one: {seed: steps and steps * pace[seed] for seed, steps in values.items()}
            for one, values in reached.items()
        }
        columns = {
            "accuracy": [point["accuracy"] for point in last],
            "calls_per_episode": [point["calls_per_episode"] for point in last],
            "failed_calls": [point["failed_calls"] for point in last],
            "seconds_per_step": list(pace.values()),
        }
        shared = sorted(set(by_seed) & set(runs.get(study["baseline"], {})))
        found[method] = {"seeds": sorted(by_seed), "steps_to": reached, "seconds_to": seconds}
        found[method] |= {name: mean_and_error(values) for name, values in columns.items()}
        for name in ("accuracy", "calls_per_episode"):
            pairs = [(by_seed[seed], runs[study["baseline"]][seed]) for seed in shared]
            differences = [_end(study, one)[name] - _end(study, other)[name] for one, other in pairs]
            found[method][f"{name}_minus_baseline"] = mean_and_error(differences) if differences else None
        ends = [
            write_mean(values, 100.0 if name in IN_PERCENT else 1.0, IN_PERCENT.get(name, 2))
            for name, values in columns.items()
        ]
        title = [study["methods"][method]["label"], str(len(by_seed))]
        rows.append([*title, *map(_arrivals, reached.values()), *ends])
        rows_of_seconds.append([*title, *map(_arrivals, seconds.values())])
    head = ["method", "seeds", *(f"steps to {one:.0%}" for one in accuracies)]
    head += ["% right at the end", "calls an episode", "% of calls failed", "seconds a step"]
    table = markdown(head, rows)
    if accuracies:
        head = ["method", "seeds", *(f"seconds to {one:.0%}" for one in accuracies)]
        table += f"\n{markdown(head, rows_of_seconds)}"
    return found, table


# With their digits.
IN_PERCENT = {"accuracy": 1, "failed_calls": 1}


def _arrivals(values: Mapping[int, float | None]) -> str:
    """Mean over the seeds that arrived."""
    arrived = [value for value in values.values() if value is not None]
    some = f" ({len(arrived)} of {len(values)})" if len(arrived) < len(values) else ""
    return write_mean(arrived, digits=1) + some if arrived else "never"


def _steps_to(run: Mapping[str, Any], threshold: float) -> float | None:
    steps = sorted(map(int, run["curve"]))
    return crossing(steps, [run["curve"][str(step)]["accuracy"] for step in steps], threshold)


def _end(study: Study, run: Mapping[str, Any]) -> Mapping[str, float]:
    return run["curve"][str(study["steps"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--only", nargs="*", metavar="METHOD", help="default: all of the study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/agent_study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    study = STUDIES[arguments.study]
    methods = arguments.only or list(study["methods"])
    if unknown := sorted(set(methods) - set(study["methods"])):
        parser.error(f"--only {unknown[0]} is not a method of {arguments.study}; it has {', '.join(study['methods'])}")
    folder, results = arguments.work_dir.resolve() / arguments.study, arguments.results.resolve() / arguments.study
    # Seed after seed, so that few seeds are complete early.
    wanted = {f"{method}_seed{seed}": (method, seed) for seed in arguments.seeds for method in methods}
    run_missing(
        list(wanted),
        folder,
        results,
        lambda: prepare(study, folder),
        lambda name, run: training(study, *wanted[name], folder, run),
        lambda name, run: result_of(study, *wanted[name], folder, run),
    )
    runs: dict[str, dict[int, dict[str, Any]]] = {method: {} for method in study["methods"]}
    for run in read_runs(results).values():
        runs[run["method"]][run["seed"]] = run
    found, table = report(study, {method: by_seed for method, by_seed in runs.items() if by_seed})
    write_json(results / "report.json", found)
    write_text(results / "report.md", table)
    print(table)


if __name__ == "__main__":
    main()
