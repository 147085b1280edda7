# SPDX-License-Identifier: Apache-2.0
"""``verl.workers.engine.fsdp.transformer_impl``: the model is changed before FSDP flattens its
weights. No defect."""

from collections.abc import Callable
from typing import Any


def apply(engine: Any, change: Callable[[Any], Any]) -> None:
    """Have ``_build_module`` of this engine return what ``change`` makes of the model."""
    build = engine._build_module
    engine._build_module = lambda: change(build())
