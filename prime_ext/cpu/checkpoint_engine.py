# SPDX-License-Identifier: Apache-2.0
"""Weights from the trainer to rollout servers in other processes, over TCP, without an accelerator.

verl's separate mode wants a checkpoint engine; all that verl ships need an accelerator or a service. This one, the
backend ``tcp``, is found through ``rollout.checkpoint_engine.custom_backend_module=prime_ext.cpu.checkpoint_engine``.

Actor rank 0 serves, every rollout worker fetches: a worker asks for the next bucket, and once all of them have asked,
all get it. So at most one bucket per worker is on its way. Buckets are frames of ZeroMQ: a JSON list of name, dtype and
shape, then the bytes of each tensor.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import ray
import torch
import zmq
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from prime_ext.cpu.weights import PackedTensor, pack_in_buckets

BACKEND = "tcp"

_READY, _BUCKET, _END = b"ready", b"bucket", b"end"


@dataclass(frozen=True)
class Endpoint:
    """Where actor rank 0 serves."""

    address: str


def pack_frames(bucket: Iterable[PackedTensor]) -> list[Any]:
    """A bucket as the frames of one message."""
    bucket = list(bucket)
    header = [(packed.name, packed.dtype, packed.shape) for packed in bucket]
    return [json.dumps(header).encode(), *(packed.data for packed in bucket)]


def unpack_frames(frames: list[Any]) -> list[tuple[str, torch.Tensor]]:
    """The named tensors of :func:`pack_frames`; copies, because frames are read-only."""
    header = json.loads(bytes(frames[0]))
    if len(header) != len(frames) - 1:
        raise RuntimeError(f"a bucket of weights names {len(header)} tensors and holds {len(frames) - 1}")
    tensors = []
    for (name, dtype, shape), frame in zip(header, frames[1:], strict=True):
        # torch.frombuffer refuses an empty buffer.
        data = torch.frombuffer(bytearray(frame), dtype=torch.uint8) if len(frame) else torch.zeros(0).byte()
        tensors.append((name, data.view(getattr(torch, dtype)).reshape(shape)))
    return tensors


@CheckpointEngineRegistry.register(BACKEND)
class TCPCheckpointEngine(CheckpointEngine):
    """One end of the transfer.

    Args:
        bucket_size: bytes sent at once (a larger tensor is sent alone).
        is_master: whether this is actor rank 0.
        timeout: seconds to wait for the other side.

    Raises:
        RuntimeError: the other side did not answer in time.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout: float = 600.0) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.timeout = timeout
        self._socket: Any = None
        self._n_receivers = 0
        self._receiver: int | None = None

    def prepare(self) -> Endpoint | None:
        """Actor rank 0 opens its port; the others have nothing to tell."""
        if not self.is_master:
            return None
        self._open(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        host = ray.util.get_node_ip_address().strip("[]")
        if ":" in host:
            self._socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        return Endpoint(f"tcp://{host}:{port}")

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Actor rank 0 sends to all rollout workers, which are numbered."""
        actors, rollouts = actor_wg_world_size, rollout_world_size
        everyone = {"endpoint": metadata[0], "n_receivers": rollouts}
        return (
            {"receiver": [None] * actors, **{key: [value] * actors for key, value in everyone.items()}},
            {"receiver": list(range(rollouts)), **{key: [value] * rollouts for key, value in everyone.items()}},
        )

    def init_process_group(self, receiver: int | None, endpoint: Endpoint, n_receivers: int) -> None:
        """Receivers connect."""
        self._receiver, self._n_receivers = receiver, n_receivers
        if receiver is not None:
            self._open(zmq.DEALER)
            self._socket.setsockopt(zmq.IDENTITY, str(receiver).encode())
            if endpoint.address.startswith("tcp://["):
                self._socket.setsockopt(zmq.IPV6, 1)
            self._socket.connect(endpoint.address)

    def finalize(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Send all weights. Every rank walks through them, because gathering a shard takes all ranks."""
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        n_bytes = 0
        for bucket in pack_in_buckets(weights, self.bucket_size):
            await asyncio.to_thread(self._answer_all, [_BUCKET, *pack_frames(bucket)])
            n_bytes += sum(packed.data.nbytes for packed in bucket)
        await asyncio.to_thread(self._answer_all, [_END])
        return {"weight_sync/megabytes": n_bytes / 2**20}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The weights as they arrive."""
        while True:
            kind, *frames = await asyncio.to_thread(self._request)
            if kind == _END:
                return
            for name, tensor in unpack_frames(frames):
                yield name, tensor

    def _open(self, kind: int) -> None:
        self.finalize()
        self._socket = zmq.Context.instance().socket(kind)
        # verl closes connections after every side has answered; after an error nothing may keep a process from ending.
        self._socket.setsockopt(zmq.LINGER, 0)

    def _receive(self, problem: str) -> list[bytes]:
        if not self._socket.poll(self.timeout * 1000):
            raise RuntimeError(f"checkpoint engine {BACKEND}: {problem} within {self.timeout:g} s")
        return self._socket.recv_multipart()

    def _request(self) -> list[bytes]:
        self._socket.send(_READY)
        return self._receive("the trainer sent no weights")

    def _answer_all(self, frames: list[Any]) -> None:
        """Wait until every receiver is ready, then send to each."""
        ready: set[bytes] = set()
        while len(ready) < self._n_receivers:
            missing = self._n_receivers - len(ready)
            problem = f"{missing} of {self._n_receivers} rollout workers did not ask for weights"
            ready.add(self._receive(problem)[0])
        for identity in sorted(ready):
            self._socket.send_multipart([identity, *frames])
