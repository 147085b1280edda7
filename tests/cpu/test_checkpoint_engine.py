# SPDX-License-Identifier: Apache-2.0
"""Weights over TCP reach every receiver in buckets; a missing side is an error, not a hang."""

import asyncio

import pytest
import torch

from prime_ext.verl_adapter.cpu.checkpoint_engine import TCPCheckpointEngine

WEIGHTS = [("a", torch.randn(3, 4)), ("b", torch.randn(5).bfloat16()), ("c", torch.arange(7))]
WEIGHTS += [("scalar", torch.tensor(2.5)), ("empty", torch.zeros(0, 3)), ("d", torch.randn(40, 10))]


def connect(n_actors, n_rollouts, bucket_size=64, timeout=600.0):
    """Return engines of all workers, connected as verl's manager does it."""
    actors = [
        TCPCheckpointEngine(bucket_size, is_master=rank == 0, timeout=timeout)
        for rank in range(n_actors)
    ]
    rollouts = [TCPCheckpointEngine(bucket_size, timeout=timeout) for _ in range(n_rollouts)]
    metadata = [engine.prepare() for engine in [*actors, *rollouts]]
    for engines, options in zip(
        (actors, rollouts),
        TCPCheckpointEngine.build_topology(n_actors, n_rollouts, metadata),
        strict=True,
    ):
        for number, engine in enumerate(engines):
            engine.init_process_group(**{key: values[number] for key, values in options.items()})
    return actors, rollouts


async def received(engine):
    return [(name, tensor) async for name, tensor in engine.receive_weights(global_steps=3)]


@pytest.mark.parametrize(
    "n_actors, n_rollouts, bucket_size", [(1, 1, 64), (2, 3, 1), (1, 2, 1 << 20)]
)
def test_every_rollout_worker_gets_every_weight(n_actors, n_rollouts, bucket_size):
    actors, rollouts = connect(n_actors, n_rollouts, bucket_size)

    async def transfer():
        sends = [engine.send_weights(iter(WEIGHTS), global_steps=3) for engine in actors]
        return await asyncio.gather(*sends, *(received(engine) for engine in rollouts))

    for _ in range(2):  # the connection serves one update after another
        results = asyncio.run(transfer())
        for weights in results[n_actors:]:
            assert len(weights) == len(WEIGHTS)
            for name, expected in WEIGHTS:
                assert dict(weights)[name].dtype == expected.dtype and torch.equal(
                    dict(weights)[name], expected
                )
    assert results[0]["weight_sync/megabytes"] > sum(tensor.nbytes for _, tensor in WEIGHTS) / 2**20
    assert results[1:n_actors] == [{}] * (n_actors - 1)
    for engine in [*actors, *rollouts]:
        engine.finalize()
        engine.finalize()  # nothing to do


def test_a_side_that_does_not_answer_is_an_error():
    (actor,), (rollout, _) = connect(1, 2, timeout=0.3)
    with pytest.raises(
        RuntimeError, match="2 of 2 rollout workers did not ask for weights within 0.3 s"
    ):
        asyncio.run(actor.send_weights(iter(WEIGHTS)))
    with pytest.raises(RuntimeError, match="the trainer sent no weights within 0.3 s"):
        asyncio.run(received(rollout))
