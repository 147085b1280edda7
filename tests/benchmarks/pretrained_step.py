# SPDX-License-Identifier: Apache-2.0
"""Parts of a step of RLOO and PRIME-D with SmolLM2-135M, in plain and in packed passes.

    python tests/benchmarks/pretrained_step.py

Plain passes are those of examples/minimal_prime.py in float32; packed ones are those of
recipes/studies/packed_model.py. All start from the study's warm start, which is trained if it is
missing, with the study's 64 rollouts per step. Times are seconds of the processor, because a shared
machine may stop a process at any time; those of grading are of the clock, as other processes grade.
The first step, which makes the optimizers' states, counts only for the plain passes. ``log_probs``
are passes for old log-probabilities. Losses are those of the first steps of the warm start, on the
same batches in both precisions. Prints and writes pretrained_step.json.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness

from examples.minimal_prime import build_settings
from recipes.studies.laboratory import PRECISIONS, StudyTrainer, make_task, train_on_demonstrations
from recipes.studies.packed_model import MixedRollouts, sample
from recipes.studies.study_report import read_study

PASSES = {"packed_bfloat16": MixedRollouts, "plain_float32": None}
METHODS = ("rloo", "distilled")


def measure(trainer: StudyTrainer, first: int, steps: int) -> dict[str, Any]:
    """Return the seconds of each part of a step, the mean of ``steps`` after the first ones."""
    seconds: dict[str, float] = defaultdict(float)

    def watch(name: str, clock: Callable[[], float], part: Callable[..., Any]) -> Any:
        def timed(*values: Any) -> Any:
            started = clock()
            result = part(*values)
            seconds[name] += clock() - started
            return result

        return timed

    trainer.sample = watch("sample", time.process_time, trainer.sample)
    trainer.task.verify = watch("grade", time.perf_counter, trainer.task.verify)
    for name in ("collect", "learn_and_score", "kl_targets", "update_policy", "step"):
        setattr(trainer, name, watch(name, time.process_time, getattr(trainer, name)))
    for _ in range(first):
        trainer.step()
    seconds.clear()
    for _ in range(steps):
        trainer.step()
    del trainer.task.verify
    seconds["log_probs"] = seconds.pop("collect") - seconds["sample"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    means = {name: round(value / steps, 2) for name, value in seconds.items()}
    return means | {"peak_memory_gib": round(peak, 1)}


def main() -> None:
    options = harness.parser(__doc__, steps=1, imitation_steps=20).parse_args()
    study = read_study("pretrained")
    task, start = make_task(study, Path("outputs"))
    results: dict[str, Any] = {"imitation_losses": {}, "seconds_per_step": defaultdict(dict)}
    warm_start = {**study["warm_start"], "steps": options.imitation_steps}
    del warm_start["folder"]
    # Record after each part, as all of them take half an hour.
    for passes, kind in PASSES.items():
        for method in METHODS:
            changes = dict(word.split("=", 1) for word in [*study["words"], "actor.lr=2e-5"])
            trainer = StudyTrainer(task, build_settings(method, changes), 0, start)
            if kind:
                trainer.sample = partial(sample, kind=kind)
            times = measure(trainer, 1, options.steps) if kind else measure(trainer, 0, 1)
            results["seconds_per_step"][passes][method] = times
            harness.record(options, results)
    for precision, kind in PRECISIONS.items():
        _, losses = train_on_demonstrations(task, study["model"], **warm_start, kind=kind)
        results["imitation_losses"][precision] = losses
        harness.record(options, results)


if __name__ == "__main__":
    main()
