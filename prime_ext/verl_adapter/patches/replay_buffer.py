# SPDX-License-Identifier: Apache-2.0
"""``verl.trainer.ppo.v1.replay_buffer``: no wait for rollouts of dead workers (for_upstream.md).

verl 0.9.1 looks into a store: a dead agent-loop worker leaves it waiting forever, a dead reward
worker or rollout server makes rollouts fail.
"""

from collections.abc import Callable
from typing import Any


def apply(buffer: Any, check: Callable[[], None]) -> None:
    """Have ``_wait_for_next_poll`` of this replay buffer call ``check`` first, which may raise."""
    wait = buffer._wait_for_next_poll

    def check_and_wait(*arguments: Any) -> float:
        check()
        return wait(*arguments)

    buffer._wait_for_next_poll = check_and_wait
