# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.engine.fsdp.transformer_impl``: a change of the model before FSDP. No defect."""

from collections.abc import Callable
from typing import Any


def apply(engine: Any, change: Callable[[Any], Any]) -> None:
    """Apply ``change`` to the model that this engine's ``_build_module`` returns."""
    build = engine._build_module
    engine._build_module = lambda: change(build())
