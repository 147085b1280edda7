# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.rollout.base``: a rollout of ours in its private table, for which it has no
function. No defect."""

from typing import Any


def apply(module: Any, name: str, adapter: str) -> None:
    """Name in ``_ROLLOUT_REGISTRY`` the class that sends weights to the servers of
    ``rollout.name=<name>``."""
    module._ROLLOUT_REGISTRY[(name, "async")] = adapter
