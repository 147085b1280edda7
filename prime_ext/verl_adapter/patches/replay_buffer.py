# SPDX-License-Identifier: Apache-2.0
"""``verl.trainer.ppo.v1.replay_buffer``: verl counts no lost rollouts (for_upstream.md)."""

from typing import Any

from prime_ext.verl_adapter.rollout_losses import RolloutLosses


def apply(buffer: Any, losses: RolloutLosses) -> None:
    """Have this replay buffer count lost rollouts whenever it looks into the store.

    That may raise RolloutsLost.
    """
    sync = buffer._sync_metadata_from_transfer_queue

    def sync_and_count() -> None:
        sync()
        losses.look(buffer)
        losses.apply_limit(buffer)

    sync()
    losses.look(buffer)
    losses.forget()
    buffer._sync_metadata_from_transfer_queue = sync_and_count
