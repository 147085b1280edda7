# SPDX-License-Identifier: Apache-2.0
"""``verl.trainer.ppo.v1.replay_buffer``: dead workers and lost rollouts (for_upstream.md).

verl 0.9.1 looks into a store: a dead agent-loop worker leaves it waiting forever, a dead reward
worker or rollout server makes rollouts fail, and nothing counts those.
"""

from collections.abc import Callable
from typing import Any

from prime_ext.trainer.rollout_losses import RolloutLosses


def apply(buffer: Any, check: Callable[[], None], losses: RolloutLosses) -> None:
    """Have this replay buffer call ``check`` before it waits, and count lost rollouts.

    Both may raise.
    """
    wait = buffer._wait_for_next_poll
    sync = buffer._sync_metadata_from_transfer_queue

    def check_and_wait(*arguments: Any) -> float:
        check()
        return wait(*arguments)

    def sync_and_count() -> None:
        sync()
        losses.look(buffer)
        losses.apply_limit(buffer)

    sync()
    losses.look(buffer)
    losses.forget()
    buffer._wait_for_next_poll = check_and_wait
    buffer._sync_metadata_from_transfer_queue = sync_and_count
