# SPDX-License-Identifier: Apache-2.0
"""``verl.models.transformers.monkey_patch``: ``use_fused_kernels`` per model, and ``chunked``.

verl 0.9.1 replaces the ``forward`` of the model's *class* by one without logits; the policy, the
PRM and its reference are of one class in one process (for_upstream.md). :func:`apply` binds the
replacement to the instance, and uses it only when the engine requests fused log-probabilities.

The backend ``chunked`` runs wherever torch does, on logits of 256 tokens; verl's ``torch`` holds
six copies of 512.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from prime_ext.algorithms.chunked_log_probs import compute_log_probs_and_entropy
from prime_ext.config.engines import BACKENDS, CHUNKED, VERL_BACKENDS


def forward_chunked(
    self: Any,
    input_ids: torch.Tensor | None = None,
    temperature: float = 1.0,
    shift_labels: torch.Tensor | None = None,
    return_dict: bool = True,  # always
    **inputs: Any,
) -> Any:
    """Run a causal language model up to log-probabilities and entropies, ``(B, T)`` each.

    The arguments are those of verl's fused forward passes. ``shift_labels`` are the tokens of the
    log-probabilities; None for the next tokens. Raises ValueError where the output layer
    is not a plain matrix.
    """
    from verl.models.transformers.dense_common import CausalLMOutputForPPO

    output_layer = getattr(self.lm_head, "_fsdp_wrapped_module", self.lm_head)
    if not isinstance(output_layer, torch.nn.Linear) or output_layer.bias is not None:
        raise ValueError(
            f"fused_kernel_options.impl_backend={CHUNKED} needs a plain linear output layer without"
            f" bias, this is {self.lm_head}; set use_fused_kernels=false or leave lm_head out of"
            " the adapters"
        )
    hidden_BTH = self.model(input_ids=input_ids, **inputs)[0]
    target_BT = torch.roll(input_ids, -1, -1) if shift_labels is None else shift_labels
    log_prob_N, entropy_N = self.lm_head(
        hidden_BTH.flatten(0, 1),
        target_N=target_BT.flatten().long(),
        temperature=float(temperature),
    )
    # Copies, because FSDP2 attaches its backward hook to the outputs, and a view could lose it.
    return CausalLMOutputForPPO(
        log_probs=log_prob_N.unflatten(0, target_BT.shape).clone(),
        entropy=entropy_N.unflatten(0, target_BT.shape).clone(),
    )


def output_layer_forward(
    self: torch.nn.Linear, hidden_NH: torch.Tensor, target_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies, ``(N,)`` each, in the output layer's forward pass.

    FSDP2 gathers an output layer of its own (embeddings that are not tied) for its forward and its
    backward pass only.
    """
    # Autocast would change the forward pass of the product but not its backward pass.
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return compute_log_probs_and_entropy(
            hidden_NH.to(self.weight.dtype), self.weight, target_N, temperature=temperature
        )


def bind_chunked(model: Any) -> None:
    """Let a causal model answer with :func:`forward_chunked` when a temperature is passed."""
    bind(model, forward_chunked)
    bind(model.lm_head, output_layer_forward)


def bind(module: Any, fused_forward: Callable[..., Any]) -> None:
    """Let a module use ``fused_forward`` when verl passes a temperature: in fused passes only."""
    class_forward = type(module).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "temperature" in kwargs:
            return fused_forward(self, *args, **kwargs)
        return class_forward(self, *args, **kwargs)

    module.forward = MethodType(forward, module)


def apply(module: Any) -> None:
    """Replace ``patch_forward_with_backends``."""
    verls_patch = module.patch_forward_with_backends

    def patch_forward_with_backends(
        model: Any, use_fused_kernels: bool = False, fused_kernels_backend: str | None = None
    ) -> None:
        if not use_fused_kernels:
            return
        if fused_kernels_backend == CHUNKED:
            bind_chunked(model)
            return
        if fused_kernels_backend not in VERL_BACKENDS:
            raise ValueError(
                f"fused_kernel_options.impl_backend={fused_kernels_backend!r} is not one of"
                f" {', '.join(BACKENDS)}"
            )
        # verl chooses the function for this kind of model and puts it on the class: here on a
        # temporary one.
        model_class = type(model)
        model.__class__ = type(model_class.__name__, (model_class,), {})
        verls_patch(model, use_fused_kernels, fused_kernels_backend)
        fused_forward = type(model).forward
        model.__class__ = model_class
        bind(model, fused_forward)

    module.patch_forward_with_backends = patch_forward_with_backends
