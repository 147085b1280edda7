# SPDX-License-Identifier: Apache-2.0
"""``verl.utils.distributed`` on a CPU: plain gloo, since torch refuses one device named twice.

verl requests ``cpu:gloo,<device>:<backend>``. No defect: it has no device ``cpu``.
"""

import functools
import os
from typing import Any


def apply(module: Any) -> None:
    """Replace both functions that open the process group, before modules of verl copy them."""
    open_group = functools.partial(module.initialize_global_process_group_ray, backend="gloo")

    def initialize_global_process_group_ray(
        timeout_second: int | None = None, backend: str | None = None
    ) -> None:
        open_group(timeout_second)

    def initialize_global_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
        open_group(timeout_second)
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    module.initialize_global_process_group_ray = initialize_global_process_group_ray
    module.initialize_global_process_group = initialize_global_process_group
