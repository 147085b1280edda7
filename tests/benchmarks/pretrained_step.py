# SPDX-License-Identifier: Apache-2.0
"""Parts of a step of RLOO and PRIME-D with SmolLM2-135M, in plain and in packed passes.

    python tests/benchmarks/pretrained_step.py

Plain passes are those of examples/minimal_prime.py in float32; packed ones are those of
recipes/studies/packed_model.py. All start from the study's warm start, which is trained if it is
missing, with 64 rollouts per step. "filtered" leaves out prompts with equal outcomes, as the study
does. Times are seconds of the processor, because a shared machine may stop a process at any time;
those of grading are of the clock, as other processes grade. The first step, which makes the
optimizers' states, counts only for the plain passes. ``log_probs`` are passes for old
log-probabilities. Plain passes of PRIME-D are left out: they need more than 20 GB. Prints and
writes pretrained_step.json.
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
from recipes.studies.laboratory import StudyTrainer, make_task
from recipes.studies.packed_model import MixedRollouts, sample
from recipes.studies.study_report import read_study

RUNS = (
    ("packed_bfloat16_filtered", "rloo"),
    ("packed_bfloat16_filtered", "distilled"),
    ("packed_bfloat16", "rloo"),
    ("packed_bfloat16", "distilled"),
    ("plain_float32", "rloo"),
)
ROLLOUTS = {"rollout.prompts": "16", "rollout.n": "4"}


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
    options = harness.parser(__doc__, steps=3).parse_args()
    study = read_study("pretrained")
    task, start = make_task(study, Path("outputs"))
    results: dict[str, Any] = defaultdict(dict)
    for passes, method in RUNS:
        changes = dict(word.split("=", 1) for word in [*study["words"], "actor.lr=5e-6"]) | ROLLOUTS
        del changes["filter"]
        trainer = StudyTrainer(task, build_settings(method, changes), 0, start)
        trainer.filters = passes.endswith("filtered")
        if passes.startswith("packed"):
            trainer.sample = partial(sample, kind=MixedRollouts)
            results[passes][method] = measure(trainer, 1, options.steps)
        else:
            results[passes][method] = measure(trainer, 0, 1)
        harness.record(options, {"seconds_per_step": results})


if __name__ == "__main__":
    main()
