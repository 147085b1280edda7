# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine for runs on its GPUs: the devices, and what Triton compiles with."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from omegaconf import DictConfig

# bf16 and flash-attn 2 begin with Ampere.
LEAST_CAPABILITY = (8, 0)


def check_gpus(config: DictConfig) -> Iterable[str]:
    """Yield what the GPUs of this machine lack for a run; nothing without GPUs here."""
    if config.trainer.device == "cuda":
        yield from check_gpu_machine()


def check_gpu_machine() -> Iterable[str]:
    """Yield a line for GPUs that no run can use, and one for a missing compiler or header."""
    devices = list_devices()
    if devices and torch.version.hip is not None:
        yield (
            f"torch {torch.__version__} is built for AMD GPUs (HIP {torch.version.hip}); verl"
            " 0.9.1's pins are for NVIDIA GPUs with CUDA 13: docs/how_to/install.md"
        )
        return
    least = ".".join(map(str, LEAST_CAPABILITY))
    for name, capability in sorted(set(devices)):
        if capability < LEAST_CAPABILITY:
            yield (
                f"{name} has compute capability {'.'.join(map(str, capability))}, without bf16 and"
                f" flash-attn 2; use GPUs of {least} or newer (A100, H100), or hide it with"
                " CUDA_VISIBLE_DEVICES"
            )
    if devices:
        yield from _check_compiler()


def list_devices() -> list[tuple[str, tuple[int, int]]]:
    """Return name and compute capability of each GPU that PyTorch finds here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        (torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
        for index in range(count)
    ]


def _check_compiler() -> Iterable[str]:
    """Check for the C compiler and the header with which Triton compiles in every process.

    It looks for them as triton.runtime.build does.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_paths(scheme)["include"], "Python.h")
    missing = [] if header.is_file() else [str(header)]
    if compiler is None or shutil.which(compiler) is None:
        missing.append(f"CC={compiler}" if compiler else "a C compiler")
    if missing:
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        yield (
            f"Triton's kernels are compiled when a run starts, and {' and '.join(missing)} cannot"
            f" be found; apt-get install build-essential {python}-dev (dnf install gcc gcc-c++"
            f" {python}-devel)"
        )
