# SPDX-License-Identifier: Apache-2.0
"""One step scorer per node: a model of this process without Ray, a shared actor with it."""

import asyncio

import pytest
import ray
from tiny_step_rm import save_bert

from prime_ext.config.pspo_settings import ActorSettings, BatchingSettings
from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.reward.node_scorer import NodeStepScorer, SharedStepScorer, connect
from prime_ext.step_rm.description import FILE, Description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.pairs import PairFormat
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure

BATCHING, ACTOR = BatchingSettings(window_ms=2.0, max_tokens=500), ActorSettings(num_gpus=0.0, cpu_threads=None)
CHAINS = [Chain(tuple(f"Step {k}: we add {n}." for k in range(1, 2 + n % 4))) for n in range(40)]


def settings(path, **changes):
    values = {
        "kind": "local", "model_path": str(path), "pair_format": None, "cache_size": 1000, "device": None,
        "dtype": None, "batch_tokens": None, "trust_remote_code": False, "address": None, "inputs": "ids",
        "labels": None, "served_model": None, "batch_size": 8, "concurrency": 2, "timeout_seconds": 5.0,
        "attempts": 1, "backoff_seconds": 0.0, "api_key_variable": None,
    }  # fmt: skip
    return ScorerSettings.from_mapping({**values, **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = save_bert(tmp_path_factory.mktemp("step_rm"))
    (path / FILE).write_text(Description(PairFormat(max_length=64), 1.0, (-1, 0, 1)).to_json())
    return path


@pytest.fixture(scope="module")
def expected(model):
    scorer = LocalScorer(model, device="cpu")
    return [scorer.score_now([chain])[0].scores for chain in CHAINS]


async def ask(scorer):
    outcomes = await asyncio.gather(*(scorer.score(chain, 20) for chain in CHAINS))
    return [outcome.scores for outcome in outcomes]


def close(outcomes, expected):
    return all(ours == pytest.approx(theirs, abs=1e-5) for ours, theirs in zip(outcomes, expected, strict=True))


def test_without_ray_the_model_is_in_this_process(model, expected):
    scorer = connect(settings(model), BATCHING, ACTOR)
    assert isinstance(scorer, NodeStepScorer)
    assert close(asyncio.run(ask(scorer)), expected)


def test_without_a_gpu_of_its_own_it_works_on_the_cpu(model):
    scorer = NodeStepScorer(settings(model), BATCHING, ACTOR)
    assert scorer._batcher._scorer.device.type == "cpu"


def test_a_server_that_nobody_named_is_an_error(model):
    with pytest.raises(StepRMError, match="step_scorer.address is missing and verl's reward-model pool is off"):
        connect(settings(model, kind="server"), BATCHING, ACTOR)


@pytest.mark.slow
def test_one_actor_per_node_serves_every_worker_and_is_replaced_when_it_dies(model, expected, tmp_path):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        first, second = (connect(settings(model), BATCHING, ACTOR) for _ in range(2))
        assert isinstance(first, SharedStepScorer)
        assert close(asyncio.run(ask(first)), expected)
        actor = first._node.handle()
        assert second._node.handle()._actor_id == actor._actor_id
        ray.kill(actor)
        assert close(asyncio.run(ask(second)), expected)
        ray.kill(second._node.handle())
        # A model that does not load is a failure of every response, with the reason.
        broken = SharedStepScorer(settings(model), BATCHING, ACTOR)
        (model / "model.safetensors").rename(tmp_path / "model.safetensors")
        outcome = asyncio.run(broken.score(CHAINS[0], 20))
        assert isinstance(outcome, ScoringFailure) and outcome.reason.startswith("step scorer of this node: ")
        (tmp_path / "model.safetensors").rename(model / "model.safetensors")
    finally:
        ray.shutdown()
