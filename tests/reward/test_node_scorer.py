# SPDX-License-Identifier: Apache-2.0
"""One step scorer per node: it scores single requests together, and each fails by itself."""

import asyncio
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import ray
from scored_rows import right
from tiny_step_rm import described, save_bert, scorer_settings

from prime_ext.reward.node_actor import NodeFailure
from prime_ext.reward.node_scorer import Gatherer, connect
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores


class Checker:
    """A scorer that checks arithmetic, remembers its batches, and breaks on the word poison."""

    def __init__(self, at_once=1):
        self.batches = []
        # A batch is finished only when this number of them is being scored.
        self.at_once = at_once
        self.working = 0
        self.enough = asyncio.Event()

    async def score(self, chains):
        self.batches.append([chain.steps for chain in chains])
        self.working += 1
        if self.working >= self.at_once:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 600)
        if any("poison" in step for chain in chains for step in chain.steps):
            raise StepRMError("the model gave scores that are not finite numbers")
        return [StepScores(tuple(right(step) for step in chain.steps)) for chain in chains]


def chain(number, right_result=True):
    return Chain((f"{number}+1={number + 1 if right_result else 0}",))


def ask(gatherer, chains):
    async def gather():
        return await asyncio.gather(*(gatherer.score(item) for item in chains))

    return asyncio.run(gather())


def test_waiting_responses_share_a_batch_and_keep_their_scores():
    # The first batch is not finished before the test says so.
    scorer = Checker(at_once=2)

    async def many():
        gatherer = Gatherer(scorer)
        first = asyncio.create_task(gatherer.score(chain(0)))
        while not scorer.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(gatherer.score(chain(n, n % 3 == 0))) for n in range(1, 50)]
        await asyncio.sleep(0.02)
        assert len(scorer.batches) == 1
        scorer.enough.set()
        return await asyncio.gather(first, *others)

    outcomes = asyncio.run(many())
    assert [outcome.scores[0] > 0.5 for outcome in outcomes] == [n % 3 == 0 for n in range(50)]
    assert [len(batch) for batch in scorer.batches] == [1, 49]


def test_the_response_that_breaks_a_batch_fails_alone():
    scorer = Checker()
    chains = [chain(0), Chain(("poison",)), chain(2)]
    first, broken, third = ask(Gatherer(scorer), chains)
    assert first.scores == third.scores == (0.9,)
    assert broken == ScoringFailure(
        "StepRMError: the model gave scores that are not finite numbers"
    )
    assert [len(batch) for batch in scorer.batches] == [3, 1, 1, 1]
    # Too few results fail every response.
    silent = SimpleNamespace(score=AsyncMock(return_value=[]))
    outcomes = ask(Gatherer(silent), chains)
    assert {outcome.reason for outcome in outcomes} == {
        "StepRMError: the scorer gave 0 results for 1 responses"
    }


@pytest.mark.parametrize("sent", [False, True])
def test_who_stops_waiting_takes_no_one_with_him(sent):
    """A response canceled before sending is not scored; the scores of a later one are discarded."""
    scorer = Checker(at_once=2)

    async def cancel_one():
        gatherer = Gatherer(scorer)
        tasks = [asyncio.create_task(gatherer.score(chain(n))) for n in range(3)]
        # The three have asked, and the batch is made in the next turn of the loop.
        await asyncio.sleep(0)
        while sent and not scorer.batches:
            await asyncio.sleep(0.001)
        assert bool(scorer.batches) == sent
        tasks[1].cancel()
        scorer.enough.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, gone, third = asyncio.run(cancel_one())
    assert first.scores == third.scores == (0.9,) and isinstance(gone, asyncio.CancelledError)
    assert [len(batch) for batch in scorer.batches] == [3 if sent else 2]


# ---- one for a node ------------------------------------------------------------------------------

CHAINS = [Chain(tuple(f"Step {k}: we add {n}." for k in range(1, 2 + n % 4))) for n in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(described(save_bert(tmp_path_factory.mktemp("step_rm"))))


@pytest.fixture(scope="module")
def expected(model):
    scorer = LocalScorer(StepClassifier(model, device="cpu"))
    return [scorer.score_now([chain])[0].scores for chain in CHAINS]


def agrees(scorer, expected):
    """Return whether the scorer has the expected scores for all chains."""
    outcomes = zip(
        ask(SimpleNamespace(score=partial(scorer.ask, "score")), CHAINS), expected, strict=True
    )
    return all(outcome.scores == pytest.approx(scores, abs=1e-5) for outcome, scores in outcomes)


def test_without_ray_the_model_is_in_this_process(model, expected):
    scorer = connect(scorer_settings(model_path=model))
    # Without a GPU of its own it works on the CPU.
    assert scorer._local._scorer.model.device.type == "cpu"
    assert agrees(scorer, expected)
    with pytest.raises(
        StepRMError, match="step_scorer.address is missing and verl's reward-model pool is off"
    ):
        connect(scorer_settings(model_path=model, kind="server"))


@pytest.mark.slow
def test_one_actor_per_node_serves_all_workers_and_is_replaced(model, expected, tmp_path):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        first, second = (connect(scorer_settings(model_path=model)) for _ in range(2))
        assert agrees(first, expected)
        actor = first.handle()
        assert second.handle()._actor_id == actor._actor_id
        ray.kill(actor)
        assert agrees(second, expected)
        ray.kill(second.handle())
        # A model that does not load is a failure of every response, with the reason.
        broken = connect(scorer_settings(model_path=str(tmp_path)))
        with pytest.raises(NodeFailure, match="^step scorer of this node: "):
            asyncio.run(broken.ask("score", CHAINS[0]))
    finally:
        ray.shutdown()
