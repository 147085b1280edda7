# SPDX-License-Identifier: Apache-2.0
"""Description of the machine that a benchmark ran on, without its name."""

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

PACKAGES = ("torch", "transformers", "verl")


def describe(device: str = "cpu", packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """Return processor or accelerator, cores, memory and versions."""
    name = platform.machine()
    file = Path("/proc/cpuinfo")
    torch = sys.modules.get("torch")
    if device == "cuda":
        name = torch.cuda.get_device_name()
    elif file.is_file():
        lines = file.read_text().splitlines()
        name = next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), name
        )
    return {
        "device": name,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads": torch.get_num_threads() if torch else 1,
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in packages},
    }
