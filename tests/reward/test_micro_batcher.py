# SPDX-License-Identifier: Apache-2.0
"""Responses that are asked for one by one are scored together, and none of them suffers for another."""

import asyncio

import pytest
from pspo_rows import right

from prime_ext.reward.micro_batcher import MicroBatcher
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores

SOON = 0.005
LATE = 3600.0


class Checker:
    """A scorer that checks arithmetic, remembers its batches, and breaks on the word poison."""

    def __init__(self, at_once=1):
        self.batches, self.closed = [], False
        # No batch is finished before so many are being scored.
        self.at_once, self.working, self.enough = at_once, 0, asyncio.Event()

    async def score(self, chains):
        self.batches.append([chain.steps for chain in chains])
        self.working += 1
        if self.working >= self.at_once:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 600)
        if any("poison" in step for chain in chains for step in chain.steps):
            raise StepRMError("the model gave scores that are not finite numbers")
        return [StepScores(tuple(right(step) for step in chain.steps)) for chain in chains]

    async def close(self):
        self.closed = True


def chain(number, right_result=True):
    return Chain((f"{number}+1={number + 1 if right_result else 0}",))


async def ask(batcher, chains, tokens=10):
    return await asyncio.gather(*(batcher.score(item, tokens) for item in chains))


def test_responses_at_the_same_time_are_one_batch_and_each_gets_its_own_scores():
    scorer = Checker()
    outcomes = asyncio.run(ask(MicroBatcher(scorer, SOON, 10_000), [chain(n, n % 3 == 0) for n in range(50)]))
    assert len(scorer.batches) == 1
    assert [outcome.scores[0] > 0.5 for outcome in outcomes] == [n % 3 == 0 for n in range(50)]


def test_a_batch_is_sent_when_its_tokens_are_together_without_waiting():
    scorer = Checker()

    async def many():
        # Two of forty tokens fill a batch of eighty; the window would be over in half a minute.
        return await asyncio.wait_for(ask(MicroBatcher(scorer, LATE, 80), [chain(n) for n in range(10)], 40), 600)

    assert len(asyncio.run(many())) == 10
    assert [len(batch) for batch in scorer.batches] == [2] * 5


def test_a_response_that_does_not_fit_sends_the_others_ahead():
    scorer = Checker()

    async def three():
        batcher = MicroBatcher(scorer, SOON, 100)
        return await asyncio.gather(*(batcher.score(chain(n), tokens) for n, tokens in enumerate((60, 60, 500))))

    asyncio.run(three())
    assert [len(batch) for batch in scorer.batches] == [1, 1, 1]


def test_a_lone_response_waits_for_the_window_only():
    scorer = Checker()
    (outcome,) = asyncio.run(asyncio.wait_for(ask(MicroBatcher(scorer, SOON, 1000), [chain(1)]), 600))
    assert outcome.scores == (0.9,)


def test_a_batch_does_not_wait_for_the_one_before_it():
    scorer = Checker(at_once=4)
    outcomes = asyncio.run(ask(MicroBatcher(scorer, SOON, 10), [chain(n) for n in range(4)]))
    assert [outcome.scores for outcome in outcomes] == [(0.9,)] * 4 and len(scorer.batches) == 4


def test_the_response_that_breaks_a_batch_fails_alone():
    scorer = Checker()
    chains = [chain(0), Chain(("poison",)), chain(2)]
    first, broken, third = asyncio.run(ask(MicroBatcher(scorer, SOON, 1000), chains))
    assert first.scores == third.scores == (0.9,)
    assert broken == ScoringFailure("StepRMError: the model gave scores that are not finite numbers")
    assert [len(batch) for batch in scorer.batches] == [3, 1, 1, 1]


def test_a_scorer_that_always_breaks_fails_every_response_once_and_ends():
    class Dead(Checker):
        async def score(self, chains):
            self.batches.append(chains)
            raise RuntimeError("out of memory")

    scorer = Dead()
    outcomes = asyncio.run(ask(MicroBatcher(scorer, SOON, 1000), [chain(n) for n in range(5)]))
    assert outcomes == [ScoringFailure("RuntimeError: out of memory")] * 5 and len(scorer.batches) == 6


def test_a_scorer_that_gives_too_few_results_is_not_believed():
    class Short(Checker):
        async def score(self, chains):
            return (await super().score(chains))[:-1]

    (outcome,) = asyncio.run(ask(MicroBatcher(Short(), SOON, 1000), [chain(1)]))
    assert outcome == ScoringFailure("StepRMError: the scorer gave 0 results for 1 responses")


def test_a_failure_of_the_scorer_is_handed_on():
    class Late(Checker):
        async def score(self, chains):
            return [ScoringFailure("no answer in 60 s") for _ in chains]

    assert asyncio.run(ask(MicroBatcher(Late(), SOON, 1000), [chain(1)])) == [ScoringFailure("no answer in 60 s")]


@pytest.mark.parametrize("sent", [False, True])
def test_who_stops_waiting_takes_no_one_with_him(sent):
    """Cancelled before the batch is sent, his response is not scored; afterwards its scores go nowhere."""
    scorer = Checker(at_once=2)

    async def cancel_one():
        batcher = MicroBatcher(scorer, 0.02, 1000)
        tasks = [asyncio.create_task(batcher.score(chain(n), 10)) for n in range(3)]
        # The three have asked; no timer is looked at before this task goes on.
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


def test_everyone_may_stop_waiting():
    scorer = Checker()

    async def cancel_all():
        batcher = MicroBatcher(scorer, SOON, 1000)
        task = asyncio.create_task(batcher.score(chain(1), 10))
        await asyncio.sleep(0)
        task.cancel()
        return await batcher.score(chain(2), 10)

    assert asyncio.run(cancel_all()).scores == (0.9,)
    assert scorer.batches == [[chain(2).steps]]


def test_closing_scores_what_has_been_asked_for():
    scorer = Checker()

    async def close():
        batcher = MicroBatcher(scorer, LATE, 1000)
        task = asyncio.create_task(batcher.score(chain(1), 10))
        await asyncio.sleep(0)
        await batcher.close()
        return await task

    assert asyncio.run(close()).scores == (0.9,) and scorer.closed
