# SPDX-License-Identifier: Apache-2.0
"""CPU mode, where ``VERL_PLATFORM=cpu``: all that verl needs to train without an accelerator.

The plug-in calls :func:`install` in every process that imports verl (driver, Ray workers, reward
workers). Public registries of verl are used wherever they exist; :mod:`prime_ext.verl_adapter`
replaces the rest when the large modules concerned are imported. vLLM's workers import verl, for its
worker extension, before they build the model.
"""

import importlib
import os
import sys
from types import ModuleType

import wrapt

from prime_ext.verl_adapter.cpu import ROLLOUT_NAME
from prime_ext.verl_adapter.patches import (
    distributed,
    importlib_metadata,
    model,
    rollout_base,
    vllm_layers_utils,
)


def _register_replica(module: ModuleType) -> None:
    module.RolloutReplicaRegistry.register(
        ROLLOUT_NAME,
        lambda: importlib.import_module("prime_ext.verl_adapter.cpu.rollout").TransformersReplica,
    )


_ADAPTER = "prime_ext.verl_adapter.cpu.rollout.TransformersServerAdapter"
# These offer rollout.name=transformers and the agent loops, on accelerators too, as soon as verl
# imports its rollouts.
ROLLOUT_HOOKS = {
    "verl.workers.rollout.replica": _register_replica,
    "verl.workers.rollout.base": lambda module: rollout_base.apply(module, ROLLOUT_NAME, _ADAPTER),
    # These modules register what they have when they are imported.
    "verl.experimental.agent_loop": lambda module: importlib.import_module(
        "prime_ext.verl_adapter.cpu.seeded_loop"
    ),
}
_CPU_HOOKS = {
    "verl.utils.distributed": distributed.apply,
    "verl.utils.model": model.apply,
    "verl.workers.engine.fsdp": lambda module: importlib.import_module(
        "prime_ext.verl_adapter.cpu.engine"
    ),
    "vllm.model_executor.layers.utils": vllm_layers_utils.apply,
}
_ENVIRONMENT = {
    # TransferQueue would use 8 threads in every process, and warn at every call with fewer cores.
    "TQ_NUM_THREADS": "1",
    # Ray gives workers the niceness 15, and the complete training runs in them: it would wait for
    # every other program of the machine. The process that starts Ray needs it.
    "RAY_worker_niceness": "0",
}
# Modules that copy a patched function with "from ... import": they have to be imported after
# install().
_TOO_LATE = ("verl.workers.engine_workers", "verl.checkpoint_engine.base")


def install() -> None:
    """Register the CPU platform now, and the rest when verl imports the modules concerned.

    Idempotent and cheap. Raises RuntimeError: verl's workers are already imported.
    """
    # Importing verl loads its plug-ins, and with them, as a rule, CPU mode.
    import verl.plugin.platform  # noqa: F401

    if "prime_ext.verl_adapter.cpu.platform" in sys.modules:
        return
    too_late = [name for name in _TOO_LATE if name in sys.modules]
    if too_late:
        raise RuntimeError(
            f"CPU mode has to be installed before {too_late[0]} is imported; set VERL_PLATFORM=cpu"
            " before the first `import verl` and let the plug-in prime_ext.plugin load it."
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import prime_ext.verl_adapter.cpu.platform  # noqa: F401  (registers the platform)

    importlib_metadata.apply()
    for module_name, hook in _CPU_HOOKS.items():
        wrapt.register_post_import_hook(hook, module_name)
