# SPDX-License-Identifier: Apache-2.0
"""Process groups on the CPU.

verl 0.9.1 opens its global process group with the backend string ``cpu:gloo,<device>:<backend>``. On the platform
``cpu`` that reads ``cpu:gloo,cpu:gloo``, which torch refuses ("Duplicate device type cpu").
"""

import functools
import os
from datetime import timedelta
from types import ModuleType

import torch.distributed


def patch_process_group(module: ModuleType) -> None:
    """Replace the two functions of ``verl.utils.distributed`` that open the global process group: plain gloo.

    Raises:
        RuntimeError: one of the functions is gone.
    """
    from prime_ext.verl_compat import require_verl_name

    original_ray = require_verl_name(module, "initialize_global_process_group_ray")
    original = require_verl_name(module, "initialize_global_process_group")

    @functools.wraps(original_ray)
    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return original_ray(timeout_second=timeout_second, backend=backend or "gloo")

    @functools.wraps(original)
    def initialize_global_process_group(timeout_second=36000):
        torch.distributed.init_process_group(
            backend="gloo",
            timeout=timedelta(seconds=timeout_second),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    module.initialize_global_process_group_ray = initialize_global_process_group_ray  # type: ignore[attr-defined]
    module.initialize_global_process_group = initialize_global_process_group  # type: ignore[attr-defined]
