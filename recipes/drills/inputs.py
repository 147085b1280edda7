# SPDX-License-Identifier: Apache-2.0
"""The runs of the drills: untrained tiny models, four prompts a step, a checkpoint after every step."""

from pathlib import Path

from recipes.drills.runs import Run
from recipes.shrink.prepare import overrides, prepare

# More than any drill comes to.
STEPS = 400
PRIME_CONFIG, PSPO_CONFIG = "prime_trainer_cpu", "pspo_trainer_cpu"

EVERY_STEP = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    # So small that the policy, and with it what passes the filter, stays as it is for all the drills.
    "actor_rollout_ref.actor.optim.lr=1e-7",
]
PRIME = [
    # An untrained PRM would be shut out by the gate.
    "variant=paper",
    "prm.mini_batch_size=2",
    "prm.optim.lr=1e-3",
]


def prime_run(folder: Path, inputs: Path, more: list[str] | None = None, name: str = "run") -> Run:
    """A PRIME run in ``folder``, its inputs in ``inputs``."""
    prepare("prime", inputs)
    return Run(folder, PRIME_CONFIG, [*overrides("prime", inputs), *EVERY_STEP, *PRIME, *(more or [])], name)


def pspo_run(folder: Path, inputs: Path, more: list[str] | None = None, name: str = "run") -> Run:
    """A PSPO-WRS run in ``folder``, its inputs in ``inputs``."""
    prepare("pspo", inputs)
    return Run(folder, PSPO_CONFIG, [*overrides("pspo", inputs), *EVERY_STEP, *(more or [])], name)
