# SPDX-License-Identifier: Apache-2.0
"""Weights from the trainer to rollout servers in other processes, over TCP, without an accelerator.

verl's separate mode needs a checkpoint engine; all that verl ships need an accelerator or a
service. This one is the backend ``tcp``; verl finds it through
``rollout.checkpoint_engine.custom_backend_module``, which names this module. Actor rank 0 serves:
when every rollout worker has requested the next bucket, all get it. So at most one bucket per
worker is in flight. A bucket is a ZeroMQ message that contains safetensors.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import safetensors.torch
import torch
import zmq
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from prime_ext.verl_adapter.cpu.weights import pack_in_buckets

BACKEND = "tcp"
_READY = b"ready"
_END = b""


@CheckpointEngineRegistry.register(BACKEND)
class TCPCheckpointEngine(CheckpointEngine):
    """One end of the transfer; actor rank 0 is the master.

    ``bucket_size`` bytes are sent at once, a larger tensor alone. RuntimeError: no answer within
    ``timeout`` seconds.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout: float = 600.0) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.timeout = timeout
        self._socket: Any = None
        self._n_receivers = 0

    def prepare(self) -> str | None:
        """Return the address at which actor rank 0 serves; other ranks return None."""
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self._open(zmq.ROUTER, address)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        return f"{address}:{self._socket.bind_to_random_port(address)}"

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Let actor rank 0 send to all rollout workers, which are numbered."""

        def arguments(receivers: list[Any]) -> dict[str, list[Any]]:
            n = len(receivers)
            return {
                "receiver": receivers,
                "address": [metadata[0]] * n,
                "n_receivers": [rollout_world_size] * n,
            }

        return arguments([None] * actor_wg_world_size), arguments(list(range(rollout_world_size)))

    def init_process_group(self, receiver: int | None, address: str, n_receivers: int) -> None:
        """Connect, if this is a receiver."""
        self._n_receivers = n_receivers
        if receiver is not None:
            self._open(zmq.DEALER, address)
            self._socket.setsockopt(zmq.IDENTITY, str(receiver).encode())
            self._socket.connect(address)

    def finalize(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Send all weights. Every rank iterates over them: gathering a shard takes all ranks."""
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        n_bytes = 0
        async for bucket in pack_in_buckets(weights, self.bucket_size):
            await asyncio.to_thread(self._answer_all, bucket)
            n_bytes += len(bucket)
        await asyncio.to_thread(self._answer_all, _END)
        return {"weight_sync/megabytes": n_bytes / 2**20}

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the weights as they arrive."""
        while (bucket := await asyncio.to_thread(self._request)) != _END:
            for name, tensor in safetensors.torch.load(bucket).items():
                yield name, tensor

    def _open(self, kind: int, address: str) -> None:
        self.finalize()
        self._socket = zmq.Context.instance().socket(kind)
        # verl closes connections after every side has answered; after an error nothing may keep a
        # process from ending.
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in address))

    def _receive(self, problem: str) -> list[bytes]:
        if not self._socket.poll(self.timeout * 1000):
            raise RuntimeError(f"checkpoint engine {BACKEND}: {problem} within {self.timeout:g} s")
        return self._socket.recv_multipart()

    def _request(self) -> bytes:
        self._socket.send(_READY)
        return self._receive("the trainer sent no weights")[0]

    def _answer_all(self, bucket: bytes) -> None:
        """Wait until every receiver is ready, then send to each."""
        ready: set[bytes] = set()
        while len(ready) < self._n_receivers:
            missing = self._n_receivers - len(ready)
            problem = f"{missing} of {self._n_receivers} rollout workers did not ask for weights"
            ready.add(self._receive(problem)[0])
        for identity in sorted(ready):
            self._socket.send_multipart([identity, bucket])
