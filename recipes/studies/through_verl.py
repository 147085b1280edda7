# SPDX-License-Identifier: Apache-2.0
"""Training runs of studies through verl on the CPU, and measurements of their policies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import OmegaConf

from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.utils.files import read_json, write_json
from prime_ext.utils.run_store import check_identity
from recipes.agent import agent_data, agent_sft
from recipes.agent.play import play, summarize
from recipes.pspo_wrs import pspo_data
from recipes.pspo_wrs.measure import measure
from recipes.pspo_wrs.step_rm import train_step_rm
from recipes.quickstart import quickstart_data, quickstart_sft
from recipes.quickstart.evaluate import MAX_RESPONSE_LENGTH, evaluate, load_problems
from recipes.run_statistics import PAIR_ACCURACY, run_metrics

ROOT = Path(__file__).resolve().parents[2]
GATE = "prime/gate/value"
EXAMINED = "prime/filter/examined"
OVER_OUTCOME = "prime/process/return_std_over_outcome"


@dataclass
class VerlTask:
    """Runs of a study in a folder.

    A task has a ``script``; ``prepare``, which makes the shared files that are missing; and
    ``measure``, which returns numbers of a policy on held-out problems, with the ``accuracy``.
    """

    study: Mapping[str, Any]
    folder: Path
    script: ClassVar[str]
    prepare: ClassVar[Callable[..., None]]
    measure: ClassVar[Callable[..., dict[str, float]]]

    def places(self, knobs: Mapping[str, str]) -> list[Path]:
        """Return the arguments of the script after the folder of the run."""
        return [self.folder / "data", self.folder / "sft"]

    def points(self, run: Path, knobs: Mapping[str, str]) -> dict[int, dict[str, float]]:
        """Return measurements by step: of the start, and of every checkpoint."""
        points = {0: self.measure(self.folder / "sft", knobs)}
        for step in find_complete_steps(run / "checkpoints"):
            points[step] = self.measure(
                run / "checkpoints" / f"global_step_{step}" / "actor", knobs
            )
        return points

    def command(
        self, words: Sequence[str], seed: int, run: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command of a run and its knobs."""
        words = [*self.study.get("words", []), *words]
        knobs = {
            "SEED": str(seed),
            "STEPS": str(self.study["steps"]),
            "SAVE_FREQ": str(self.study["every"]),
        }
        knobs["KEEP"] = "null"
        knobs |= dict(word.split("=", 1) for word in words if word.split("=")[0].isupper())
        overrides = [word for word in words if not word.split("=")[0].isupper()]
        script = ROOT / "recipes" / self.script
        return ["bash", *map(str, [script, run, *self.places(knobs)]), *overrides], {
            k: str(v) for k, v in knobs.items()
        }

    def train(self, name: str, words: Sequence[str], seed: int) -> dict[str, Any]:
        """Return a run from ``result.json`` in its folder; without it, train and measure it first.

        ``RuntimeError``: the training failed. ``RunError``: the run is there with other settings.
        """
        run = self.folder / "runs" / f"{name}_seed{seed}"
        command, knobs = self.command(words, seed, run)
        identity = {"command": command[2:], "knobs": knobs}
        if (run / "result.json").exists():
            known = read_json(run / "result.json")
            check_identity(run, {key: known[key] for key in identity}, identity)
            return known["run"]
        self.prepare()
        # Else only the measurement was interrupted.
        if self.study["steps"] not in find_complete_steps(run / "checkpoints"):
            run_logged(command, knobs, run)
        result = describe_run(run, self.points(run, knobs))
        write_json(run / "result.json", identity | {"run": result})
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        return result


def run_logged(command: Sequence[str], knobs: Mapping[str, str], run: Path) -> None:
    """Run a command; its output goes to ``log.txt`` in the folder of the run.

    ``RuntimeError``: it failed; the message has the end of its log.
    """
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log.txt"
    with log.open("a") as output:
        environment = {**os.environ, **knobs, "PYTHON": sys.executable}
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, check=False
        )
    if done.returncode:
        raise RuntimeError(
            "\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-30:]])
        )


def describe_run(run: Path, points: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Return ``curve``, lists by name over the measured steps, and ``end``, numbers by name.

    Pair accuracy and gate of the curve are means since the last measured step. The end has the last
    measurement, the median seconds of a step, and metrics of the PRM over the last ten steps.
    """
    config = OmegaConf.load(run / "hydra" / ".hydra" / "config.yaml")
    metrics = run_metrics(run)
    # verl's time of a step contains saving, but not validation.
    seconds = {
        step: row["timing_s/step"] - row.get("timing_s/save_checkpoint", 0.0)
        for step, row in metrics.items()
        if "timing_s/step" in row
    }
    steps = sorted(points)

    def mean_metric(key: str, first: int, last: int) -> float | None:
        values = [row[key] for step, row in metrics.items() if first <= step <= last and key in row]
        return round(float(np.mean(values)), 4) if values else None

    prompts = [
        int(
            sum(
                row.get(EXAMINED, config.data.train_batch_size)
                for known, row in metrics.items()
                if 0 < known <= step
            )
        )
        for step in steps
    ]
    curve: dict[str, list] = {
        "steps": steps,
        "prompts": prompts,
        "rollouts": [int(count * config.actor_rollout_ref.rollout.n) for count in prompts],
        "seconds": [
            round(sum(value for known, value in seconds.items() if known <= step), 3)
            for step in steps
        ],
        **{name: [round(points[step][name], 5) for step in steps] for name in points[steps[-1]]},
    }
    for name, key in (("pair_accuracy", PAIR_ACCURACY), ("gate", GATE)):
        spans = zip(steps, steps[1:], strict=False)
        means = [None, *(mean_metric(key, first + 1, last) for first, last in spans)]
        if set(means) != {None}:
            curve[name] = means
    end = {
        **points[steps[-1]],
        "seconds_per_step": round(float(np.median(list(seconds.values()))), 4),
        "pair_accuracy": mean_metric(PAIR_ACCURACY, steps[-1] - 9, steps[-1]),
        "process_over_outcome": mean_metric(OVER_OUTCOME, steps[-1] - 9, steps[-1]),
    }
    return {"curve": curve, "end": end}


def prepare_start(
    folder: Path, write_data: Callable[[Path], None], train: Callable[[Path, Path], None]
) -> None:
    """Write ``data`` and the warm-started policy ``sft`` into the folder; keep what is complete."""
    if not (folder / "data" / "data.json").exists():
        write_data(folder / "data")
    if not (folder / "sft" / "sft.json").exists():
        train(folder / "data" / "sft.parquet", folder / "sft")


class Quickstart(VerlTask):
    """The quickstart's task; its options are those of ``quickstart_data.write_data``."""

    script = "quickstart/train.sh"

    def prepare(self) -> None:
        write_data = partial(quickstart_data.write_data, **self.study.get("options", {}))
        prepare_start(self.folder, write_data, quickstart_sft.train)

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        length = int(knobs.get("MAX_RESPONSE_LENGTH", MAX_RESPONSE_LENGTH))
        result = evaluate(
            policy, self.folder / "data" / "test.parquet", seed=0, max_response_length=length
        )
        return {
            "accuracy": result["temperature_1"]["accuracy"],
            "greedy": result["greedy"]["accuracy"],
        }


class Agent(VerlTask):
    """The agent's task."""

    script = "agent/train.sh"

    def prepare(self) -> None:
        prepare_start(self.folder, agent_data.write_data, agent_sft.train)

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        problems = load_problems(self.folder / "data" / "test.parquet", 500)
        summary = summarize(play(policy, problems, seed=0, temperature=1.0))
        return {name: summary[name] for name in ("accuracy", "calls_per_episode", "failed_calls")}


class Pspo(VerlTask):
    """The task of the PSPO-WRS quickstart, with the step reward model of the knob STEP_RM."""

    script = "pspo_wrs/train_cpu.sh"

    def prepare(self) -> None:
        prepare_start(self.folder, pspo_data.write_data, partial(quickstart_sft.train, steps=1200))
        for labeler in pspo_data.LABELS:
            train_step_rm(self.folder, labeler)

    def places(self, knobs: Mapping[str, str]) -> list[Path]:
        return [*super().places(knobs), self.folder / f"step_rm_{knobs['STEP_RM']}" / "model"]

    def measure(self, policy: Path, knobs: Mapping[str, str]) -> dict[str, float]:
        result = measure(policy, self.folder / "data" / "test.parquet", self.places(knobs)[-1])
        steps = result["steps"]
        return {
            "n_steps": steps["mean"],
            "superfluous": steps["kinds"]["superfluous"],
            "long": steps["long"],
            **{name: result[name] for name in ("accuracy", "cut_off", "score")},
        }


VERL_TASKS: dict[str, type[VerlTask]] = {"quickstart": Quickstart, "agent": Agent, "pspo": Pspo}
