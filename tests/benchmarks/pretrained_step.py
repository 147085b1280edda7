# SPDX-License-Identifier: Apache-2.0
"""Parts of a step of RLOO and PRIME-D with SmolLM2-135M, in plain and in packed passes.

    python tests/benchmarks/pretrained_step.py

Plain passes are those of examples/minimal_prime.py in float32; packed ones are those of
recipes/studies/packed_model.py. All start from the study's warm start, which is trained if it is
missing. The losses are those of the first steps of that start, on the same batches. Times are
seconds of the processor per step, because a shared machine may stop a process at
any time; those of grading are of the clock, as other processes grade. The memory is the largest so
far. Prints and writes pretrained_step.json.
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
from recipes.studies.packed_model import sample
from recipes.studies.study_report import read_study

PASSES: dict[str, str | None] = {
    "packed_bfloat16": "bfloat16",
    "packed_float32": "float32",
    "plain_float32": None,
}
METHODS = {"rloo": "actor.lr=2e-5", "distilled": "actor.lr=2e-5"}


def measure(trainer: StudyTrainer, steps: int) -> dict[str, Any]:
    """Return the seconds of each part of a step, the mean of ``steps`` after a first one."""
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
    trainer.step()
    seconds.clear()
    for _ in range(steps):
        trainer.step()
    del trainer.task.verify
    # What is left of collecting are passes for old log-probabilities.
    seconds["old_log_probs"] = seconds.pop("collect") - seconds["sample"]
    return {name: round(value / steps, 2) for name, value in seconds.items()} | {
        "memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
    }


def main() -> None:
    options = harness.parser(__doc__, steps=2, imitation_steps=20).parse_args()
    study = read_study("pretrained")
    task, start = make_task(study, Path("outputs"))
    results: dict[str, Any] = defaultdict(dict)
    for passes, precision in PASSES.items():
        for method, rate in METHODS.items():
            changes = dict(word.split("=", 1) for word in [*study["words"], rate])
            trainer = StudyTrainer(task, build_settings(method, changes), 0, start)
            if precision:
                trainer.sample = partial(sample, kind=PRECISIONS[precision])
            results[passes][method] = measure(trainer, options.steps)
            print(passes, method, results[passes][method], flush=True)
    warm_start = {**study["warm_start"], "steps": options.imitation_steps}
    del warm_start["folder"]
    losses = {
        precision: train_on_demonstrations(task, study["model"], **warm_start, kind=kind)[1]
        for precision, kind in PRECISIONS.items()
    }
    harness.record(options, {"seconds": results, "imitation_losses": losses})


if __name__ == "__main__":
    main()
