# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
