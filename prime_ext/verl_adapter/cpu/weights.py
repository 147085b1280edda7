# SPDX-License-Identifier: Apache-2.0
"""Transfer of a trainer's weights to another process, with checks that all of them arrive."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

import safetensors.torch
import torch
from verl.workers.rollout.utils import ensure_async_iterator

Weights = Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]]


async def pack_in_buckets(weights: Weights, bucket_bytes: int) -> AsyncIterator[bytes]:
    """Yield the tensors as safetensors, in buckets of at least ``bucket_bytes`` except the last."""
    bucket: dict[str, torch.Tensor] = {}
    n_bytes = 0
    async for name, tensor in ensure_async_iterator(weights):
        # A copy, because safetensors rejects two names for one tied weight.
        bucket[name] = tensor.detach().to("cpu", copy=True).contiguous()
        n_bytes += tensor.nbytes
        if n_bytes >= bucket_bytes:
            yield safetensors.torch.save(bucket)
            bucket = {}
            n_bytes = 0
    if bucket:
        yield safetensors.torch.save(bucket)


def _split_experts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors by verl's names, with views of experts in place of their tensors."""
    split: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        layer, packed, kind = name.rpartition(".experts.")
        if not packed or tensor.dim() != 3:
            split[name] = tensor
            continue
        kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
        for number, expert in enumerate(tensor):
            for kind_name, view in zip(kinds, expert.chunk(len(kinds)), strict=True):
                split[f"{layer}.experts.{number}.{kind_name}.weight"] = view
    return split


class WeightLoader:
    """Update of all weights of a model, in any number of parts, by any alias of a tied weight.

    verl sends experts one by one; transformers keeps those of a layer in two tensors.
    """

    @torch.no_grad()
    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = _split_experts(model.state_dict(keep_vars=True))
        self._received: set[int] = set()

    @torch.no_grad()
    def load(self, bucket: bytes) -> None:
        """Load a bucket. Raises ValueError for an unknown name or another shape."""
        for name, tensor in safetensors.torch.load(bucket).items():
            weight = self._tensors.get(name)
            if weight is None:
                raise ValueError(
                    f"Weight {name!r} is not in the rollout model; trainer and rollout have to"
                    " use the same model (with LoRA set model.lora.merge=True)."
                )
            if weight.shape != tensor.shape:
                raise ValueError(
                    f"Weight {name!r} has the shape {tuple(tensor.shape)}, in the rollout model"
                    f" {tuple(weight.shape)}; trainer and rollout have to use the same model."
                )
            weight.copy_(tensor)
            self._received.add(id(weight))

    def finish(self) -> None:
        """Check that every weight arrived; ValueError if some did not."""
        missing = sorted(
            name for name, tensor in self._tensors.items() if id(tensor) not in self._received
        )
        if missing:
            shown = ", ".join(missing[:3])
            raise ValueError(
                f"{len(missing)} weights of the rollout model were not sent by the trainer:"
                f" {shown} ..."
            )
