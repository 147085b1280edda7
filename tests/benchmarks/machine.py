# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says about where it ran, and how it measures memory on Linux.

Enough to judge the numbers, nothing that names the machine.
"""

import ctypes
import gc
import os
import platform

import psutil
import torch
import transformers
import verl


def describe(device: str = "cpu") -> dict[str, object]:
    """Processor or accelerator, cores, memory and versions."""
    processor = platform.machine()
    if os.path.isfile("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "verl": verl.__version__,
        },
    }


def resident_mib() -> float:
    """Resident memory of this process, after everything freed has gone back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss / 2**20


def forget_peak() -> None:
    """Start the peak of this process anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_mib() -> float:
    """Largest resident memory since the start or :func:`forget_peak`; getrusage would count the parent's as well."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
