# SPDX-License-Identifier: Apache-2.0
"""The trainers of ``trainer.v1.trainer_mode``: PRIME in each of verl's modes.

``sync``: rollouts and training take turns on the same devices. ``colocate_async``: the same, and
the next policy continues unfinished rollouts. ``separate_async``: rollout servers on their own
devices generate meanwhile.
"""

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prime_ext.verl_adapter.patches.trainer_separate_async import MendedSeparateAsync
from prime_ext.verl_adapter.prime_trainer import PrimeTrainerMixin


@register_trainer("prime_sync")
class PrimeSyncTrainer(PrimeTrainerMixin, PPOTrainerSync):
    """PRIME in verl's mode ``sync``."""


@register_trainer("prime_colocate_async")
class PrimeColocateAsyncTrainer(PrimeTrainerMixin, PPOTrainerColocateAsync):
    """PRIME in verl's mode ``colocate_async``."""


@register_trainer("prime_separate_async")
class PrimeSeparateAsyncTrainer(PrimeTrainerMixin, MendedSeparateAsync):
    """PRIME in verl's mode ``separate_async``."""
