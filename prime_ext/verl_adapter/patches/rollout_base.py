# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.rollout.base``: our rollout in its private table, which has no API. No defect."""

from typing import Any


def apply(module: Any, name: str, adapter: str) -> None:
    """Register the class that sends weights to the servers of ``rollout.name=<name>``."""
    module._ROLLOUT_REGISTRY[(name, "async")] = adapter
