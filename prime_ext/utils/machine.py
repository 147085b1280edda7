# SPDX-License-Identifier: Apache-2.0
"""What there is of the machine."""

import os


def available_cores() -> int:
    """Cores that this process may run on, where the system says; otherwise all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
