# SPDX-License-Identifier: Apache-2.0
"""Transfer of a trainer's weights to another process, with checks that all of them arrive."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable

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


class WeightLoader:
    """Update of all weights of a model, in any number of buckets, by any alias of a tied weight."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._tensors = model.state_dict(keep_vars=True)
        self._received: set[int] = set()

    def load(self, bucket: bytes) -> None:
        """Load a bucket. Raises ValueError for an unknown name, RuntimeError for another shape."""
        tensors = safetensors.torch.load(bucket)
        if unknown := self._model.load_state_dict(tensors, strict=False).unexpected_keys:
            raise ValueError(
                f"Weight {unknown[0]!r} is not in the rollout model; trainer and rollout have to"
                " use the same model (with LoRA set model.lora.merge=True)."
            )
        self._received |= {id(self._tensors[name]) for name in tensors}

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
