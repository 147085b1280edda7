# SPDX-License-Identifier: Apache-2.0
"""Training runs of studies through verl, on the CPU: a script of a recipe, and how its policies are measured."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json
from recipes.agent import data as agent_data
from recipes.agent import sft as agent_sft
from recipes.agent.play import play, summarise
from recipes.lab.tasks import TASKS
from recipes.pspo_wrs import data as pspo_data
from recipes.pspo_wrs.measure import measure
from recipes.pspo_wrs.step_rm import train_step_rm
from recipes.quickstart import data as quickstart_data
from recipes.quickstart import sft as quickstart_sft
from recipes.quickstart.evaluate import MAX_RESPONSE_LENGTH, evaluate, load_problems
from recipes.run_statistics import PAIR_ACCURACY, run_metrics, training_seconds
from recipes.studies.compact_rows import write_inputs

ROOT = Path(__file__).resolve().parents[2]
GATE, EXAMINED = "prime/gate/value", "prime/filter/examined"
OVER_OUTCOME = "prime/process/return_std_over_outcome"


class VerlTask:
    """Runs of a study in a folder.

    Args:
        study: what to run.
        folder: of the study.
        models: folders of models that the study trained first.
    """

    script: str

    def __init__(self, study: Mapping[str, Any], folder: Path, models: Mapping[str, str]) -> None:
        self.study = study
        self.folder = folder
        self.models = models
        self.options: dict[str, Any] = study.get("options", {})

    def prepare(self) -> None:
        """Make what the runs share; keep what is there."""
        raise NotImplementedError

    def places(self, knobs: Mapping[str, str]) -> list[Path]:
        """Return the arguments of the script after the folder of the run."""
        return [self.folder / "data", self.folder / "sft"]

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        """Measure a policy on held-out problems; one of the numbers is the ``accuracy``."""
        raise NotImplementedError

    def command(self, words: Sequence[str], seed: int, run: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command of a run and its knobs."""
        words = [*self.study.get("words", []), *words]
        knobs = {
            "SEED": str(seed),
            "STEPS": str(self.study["steps"]),
            "SAVE_FREQ": str(self.study["every"]),
            "KEEP": "null",
        }
        knobs |= dict(word.split("=", 1) for word in words if word.split("=")[0].isupper())
        overrides = [word for word in words if not word.split("=")[0].isupper()]
        script = str(ROOT / "recipes" / self.script)
        return ["bash", script, *map(str, [run, *self.places(knobs)]), *overrides], knobs

    def train(self, name: str, words: Sequence[str], seed: int) -> dict[str, Any]:
        """Return a run, from ``result.json`` in its folder if it is there; else train and measure it.

        Raises:
            RuntimeError: the training failed, or the run is there with other settings.
        """
        run = self.folder / "runs" / f"{name}_seed{seed}"
        command, knobs = self.command(words, seed, run)
        if (run / "result.json").exists():
            known = read_json(run / "result.json")
            if known["command"] != command[2:] or known["knobs"] != knobs:
                raise RuntimeError(f"{run} is a run with other settings; choose another --output")
            return known["run"]
        self.prepare()
        # Else only the measurement was interrupted.
        if self.study["steps"] not in complete_steps(run / "checkpoints"):
            run_logged(command, knobs, run)
        points = self.points(run, knobs)
        result = {"curve": write_curve(run, points), "end": describe_end(run, points)}
        write_json(run / "result.json", {"command": command[2:], "knobs": knobs, "run": result})
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        return result

    def points(self, run: Path, knobs: Mapping[str, str]) -> dict[int, dict[str, float]]:
        """Return measurements by step: of the start, and of every checkpoint."""
        points = {0: self.measure(self.folder / "sft", knobs)}
        for step in complete_steps(run / "checkpoints"):
            points[step] = self.measure(run / "checkpoints" / f"global_step_{step}" / "actor", knobs)
        return points


def run_logged(command: Sequence[str], knobs: Mapping[str, str], run: Path) -> None:
    """Run a command; its output goes to ``log.txt`` in the folder of the run.

    Raises:
        RuntimeError: it failed; the message has the end of its log.
    """
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log.txt"
    with log.open("a") as output:
        environment = {**os.environ, **knobs, "PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, cwd=ROOT, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise RuntimeError("\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-30:]]))


def write_curve(run: Path, points: Mapping[int, Mapping[str, float]]) -> dict[str, list]:
    """Return lists by name over the measured steps; pair accuracy and gate are means since the last of them."""
    config = OmegaConf.load(run / "hydra" / ".hydra" / "config.yaml")
    metrics = run_metrics(run)
    seconds = training_seconds(metrics)
    steps = sorted(points)
    curve: dict[str, list] = {"steps": steps}
    prompts = [
        sum(row.get(EXAMINED, config.data.train_batch_size) for known, row in metrics.items() if 0 < known <= step)
        for step in steps
    ]
    curve["prompts"] = [int(count) for count in prompts]
    curve["rollouts"] = [int(count * config.actor_rollout_ref.rollout.n) for count in prompts]
    curve["seconds"] = [round(sum(value for known, value in seconds.items() if known <= step), 3) for step in steps]
    for name in points[steps[-1]]:
        curve[name] = [round(points[step][name], 5) for step in steps]
    for name, key in (("pair_accuracy", PAIR_ACCURACY), ("gate", GATE)):
        means = [None]
        for first, last in zip(steps, steps[1:], strict=False):
            means.append(mean_metric(metrics, key, first + 1, last))
        if set(means) != {None}:
            curve[name] = means
    return curve


def mean_metric(metrics: Mapping[int, Mapping[str, float]], key: str, first: int, last: int) -> float | None:
    """Return the mean of a metric over steps, bounds included; None where it was not logged."""
    values = [row[key] for step, row in metrics.items() if first <= step <= last and key in row]
    return round(float(np.mean(values)), 4) if values else None


def describe_end(run: Path, points: Mapping[int, Mapping[str, float]]) -> dict[str, float | None]:
    """Return the last measurement, the median seconds of a step, and metrics of the PRM over the last ten steps."""
    metrics = run_metrics(run)
    last = max(points)
    return {
        **points[last],
        "seconds_per_step": round(float(np.median(list(training_seconds(metrics).values()))), 4),
        "pair_accuracy": mean_metric(metrics, PAIR_ACCURACY, last - 9, last),
        "process_over_outcome": mean_metric(metrics, OVER_OUTCOME, last - 9, last),
    }


def prepare_start(folder: Path, write_data: Callable[[Path], None], train: Callable[[Path, Path], None]) -> None:
    """Write ``data`` and the warm-started policy ``sft`` into the folder; keep what is complete."""
    if not (folder / "data" / "data.json").exists():
        write_data(folder / "data")
    if not (folder / "sft" / "sft.json").exists():
        train(folder / "data" / "sft.parquet", folder / "sft")


class Quickstart(VerlTask):
    """The quickstart's task. Options: those of ``recipes.quickstart.data.write_data``, and ``max_response_length``."""

    script = "quickstart/train.sh"

    def prepare(self) -> None:
        options = {name: value for name, value in self.options.items() if name != "max_response_length"}
        prepare_start(self.folder, partial(quickstart_data.write_data, **options), quickstart_sft.train)

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        length = self.options.get("max_response_length", MAX_RESPONSE_LENGTH)
        result = evaluate(policy, self.folder / "data" / "test.parquet", seed=0, max_response_length=length)
        return {"accuracy": result["temperature_1"]["accuracy"], "greedy": result["greedy"]["accuracy"]}


class Agent(VerlTask):
    """The agent's task."""

    script = "agent/train.sh"
    n_problems = 500

    def prepare(self) -> None:
        prepare_start(self.folder, agent_data.write_data, agent_sft.train)

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        problems = load_problems(self.folder / "data" / "test.parquet", self.n_problems)
        summary = summarise(asyncio.run(play(policy, problems, seed=0, temperature=1.0)))
        return {name: summary[name] for name in ("accuracy", "calls_per_episode", "failed_calls")}


class Pspo(VerlTask):
    """The task of the PSPO-WRS quickstart, with the step reward model that the knob STEP_RM names."""

    script = "pspo_wrs/train_cpu.sh"

    def prepare(self) -> None:
        prepare_start(self.folder, pspo_data.write_data, partial(quickstart_sft.train, steps=1200))
        for labeller in pspo_data.LABELLERS:
            train_step_rm(self.folder, labeller)

    def places(self, knobs: Mapping[str, str]) -> list[Path]:
        return [*super().places(knobs), self.folder / f"step_rm_{knobs['STEP_RM']}" / "model"]

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        model = self.folder / f"step_rm_{knobs['STEP_RM']}" / "model"
        result = measure(policy, self.folder / "data" / "test.parquet", {"step_rm": model})
        return {
            "accuracy": result["accuracy"],
            "n_steps": result["steps"]["mean"],
            "superfluous": result["steps"]["kinds"]["superfluous"],
            "long": result["steps"]["long"],
            "cut_off": result["cut_off"],
            "score": result["scores"]["step_rm"]["geometric"],
        }


class Compact(VerlTask):
    """The laboratory's task ``compact``, measured by verl's own validation."""

    script = "studies/compact.sh"

    def prepare(self) -> None:
        if not (self.folder / "data" / "val.parquet").exists():
            write_inputs(TASKS["compact"], self.folder, self.models.values())

    def points(self, run: Path, knobs: Mapping[str, str]) -> dict[int, dict[str, float]]:
        points = {}
        for step, row in read_metrics(run / "metrics.jsonl").items():
            accuracies = [value for name, value in row.items() if name.startswith("val-core/") and "/mean@" in name]
            if accuracies:
                points[step] = {"accuracy": accuracies[0]}
        return points


VERL_TASKS: dict[str, type[VerlTask]] = {"quickstart": Quickstart, "agent": Agent, "pspo": Pspo, "compact": Compact}
