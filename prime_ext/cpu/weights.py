# SPDX-License-Identifier: Apache-2.0
"""Moves model weights from a trainer to a model in another process, checked by name, shape and completeness."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as bytes. Ray moves numpy arrays without a copy; numpy has no bfloat16."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @classmethod
    def pack(cls, name: str, tensor: torch.Tensor) -> "PackedTensor":
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy())

    def unpack(self) -> torch.Tensor:
        data = torch.from_numpy(np.array(self.data))  # a copy, because Ray's arrays are read-only
        return data.view(getattr(torch, self.dtype)).reshape(self.shape)


class _Bucket:
    """Collects tensors until they are large enough to be sent."""

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._n_bytes = 0
        self._tensors: list[PackedTensor] = []

    def add(self, name: str, tensor: torch.Tensor) -> list[PackedTensor]:
        """Pack a tensor. Returns the bucket if it is full now, else nothing."""
        self._tensors.append(PackedTensor.pack(name, tensor))
        self._n_bytes += self._tensors[-1].data.nbytes
        return self.take() if self._n_bytes >= self._bucket_bytes else []

    def take(self) -> list[PackedTensor]:
        """What there is."""
        taken, self._tensors, self._n_bytes = self._tensors, [], 0
        return taken


def pack_in_buckets(
    named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> Iterator[list[PackedTensor]]:
    """Pack the tensors into lists of at least ``bucket_bytes`` bytes each (the last one may be smaller)."""
    bucket = _Bucket(bucket_bytes)
    for name, tensor in named_tensors:
        if full := bucket.add(name, tensor):
            yield full
    if rest := bucket.take():
        yield rest


async def pack_in_buckets_async(
    named_tensors: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> AsyncIterator[list[PackedTensor]]:
    """As :func:`pack_in_buckets`, also for tensors that arrive over time."""
    if not isinstance(named_tensors, AsyncIterable):
        for packed in pack_in_buckets(named_tensors, bucket_bytes):
            yield packed
        return
    bucket = _Bucket(bucket_bytes)
    async for name, tensor in named_tensors:
        if full := bucket.add(name, tensor):
            yield full
    if rest := bucket.take():
        yield rest


class WeightLoader:
    """One update of all weights of a model, in any number of parts.

    A name may be any alias of a tied weight; if several aliases arrive they have to be equal.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        persistent = model.state_dict(keep_vars=True)
        self._targets |= {name: tensor for name, tensor in persistent.items() if name not in self._targets}
        self._received: dict[int, str] = {}

    @torch.no_grad()
    def load(self, tensors: Iterable[PackedTensor]) -> None:
        """Copy tensors into the model.

        Raises:
            ValueError: unknown name, other shape, or two values for one tied weight.
        """
        for packed in tensors:
            target = self._targets.get(packed.name)
            if target is None:
                raise ValueError(
                    f"Weight {packed.name!r} is not in the rollout model; trainer and rollout have to use the same "
                    "model (with LoRA set model.lora.merge=True)."
                )
            if tuple(target.shape) != packed.shape:
                raise ValueError(
                    f"Weight {packed.name!r} has shape {packed.shape}, the rollout model expects {tuple(target.shape)}."
                )
            value = packed.unpack().to(target.dtype)
            if id(target) in self._received:
                if not torch.equal(target, value):
                    raise ValueError(
                        f"Weights {packed.name!r} and {self._received[id(target)]!r} are tied in the rollout model but "
                        "differ in the trainer; set tie_word_embeddings alike in both."
                    )
                continue
            target.copy_(value)
            self._received[id(target)] = packed.name

    def finish(self) -> None:
        """Check that every weight arrived.

        Raises:
            ValueError: some did not.
        """
        missing = sorted({name for name, target in self._targets.items() if id(target) not in self._received})
        if missing:
            shown = ", ".join(missing[:3])
            raise ValueError(f"{len(missing)} weights of the rollout model were not sent by the trainer: {shown} ...")
