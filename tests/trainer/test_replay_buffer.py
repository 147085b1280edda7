# SPDX-License-Identifier: Apache-2.0
"""The online prompt filter: the batch is the first prompts, in the order of the data, that lie inside the band."""

import logging
import math

import pytest
from fake_queue import EASY, FAILED, GOOD, HARD, UNDECIDED, FakeQueue, FakeRollouts
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from prime_ext.algorithms.prompt_filter import KEPT, AccuracyBand
from prime_ext.config.settings import VerifierSettings
from prime_ext.trainer.prompt_judge import PromptJudge, PromptsExhausted, VerifierFailed
from prime_ext.trainer.replay_buffer import PromptFilterReplayBuffer

HALF_FAILED = [None, 1.0]
BAND = AccuracyBand(0.2, 0.8)
END = 2


def start(
    monkeypatch,
    outcomes,
    *,
    band=BAND,
    oversample=4,
    max_examined=1000,
    partial=False,
    on_failure="drop",
    seed=0,
    lengths=None,
    max_response_length=0,
):
    """A buffer and the rollouts that feed it."""
    queue = FakeQueue().install(monkeypatch)
    rollouts = FakeRollouts(queue, outcomes, seed, lengths)
    buffer = PromptFilterReplayBuffer(
        judge=PromptJudge(
            band, "acc", VerifierSettings(on_failure=on_failure, warn_rate=0.1), max_response_length, lambda: {END}
        ),
        max_in_flight=oversample,
        max_examined=max_examined,
        partial=partial,
        requeue=rollouts.requeue,
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        refill_fn=rollouts.submit,
        poll_interval=0.0,
    )
    monkeypatch.setattr(buffer, "_wait_for_next_poll", rollouts.advance)
    rollouts.buffer = buffer
    return rollouts


def step(rollouts, batch_size):
    """One step of the trainer: submit, sample, and forget the rollouts that were trained on."""
    rollouts.submit(rollouts.buffer.max_in_flight)
    batch, metrics = rollouts.buffer.sample(global_steps=1, partition_id="train", batch_size=batch_size)
    rollouts.queue.kv_clear(keys=batch.keys, partition_id="train")
    return batch, metrics


def prompts_of(batch):
    return sorted({int(key.split("_")[0]) for key in batch.keys})


def expected_batches(outcomes, batch_size, steps):
    """The definition: go through the data in order, keep what lies inside the band."""
    batches, examined, position = [], [], 0
    for _ in range(steps):
        kept, first = [], position
        while len(kept) < batch_size:
            accuracies = [value for value in outcomes[position] if value is not None]
            if BAND.classify(accuracies, [False] * len(accuracies)) == KEPT:
                kept.append(position)
            position += 1
        batches.append(kept)
        examined.append(position - first)
    return batches, examined


# Every fourth prompt at least is good, so that the data never runs out.
data = st.lists(st.sampled_from([GOOD, HARD, EASY, HALF_FAILED, FAILED, [0.0, None]]), min_size=20, max_size=20).map(
    lambda kinds: [kind for other in kinds for kind in (other, other[::-1], HARD, GOOD)]
)


@given(data, st.integers(0, 10_000), st.integers(0, 6), st.integers(1, 4))
def test_batches_are_the_first_kept_prompts_whatever_the_delays_and_the_oversampling(data, seed, extra, batch_size):
    with pytest.MonkeyPatch.context() as monkeypatch:
        rollouts = start(monkeypatch, data, oversample=batch_size + extra, seed=seed)
        expected, expected_examined = expected_batches(data, batch_size, steps=3)
        for kept, n_examined in zip(expected, expected_examined, strict=True):
            batch, metrics = step(rollouts, batch_size)
            assert prompts_of(batch) == kept
            assert batch.keys == sorted(batch.keys)
            # The next step starts with the prompt after the last one that was looked at, and nothing is left behind.
            assert metrics["prime/filter/examined"] == n_examined
            assert list(rollouts.waiting) == sorted(rollouts.waiting)
            assert rollouts.queue.tags["train"] == {} and not rollouts.running
        assert int(rollouts.waiting[0]) == sum(expected_examined)
        assert rollouts.most_in_flight <= batch_size + extra


@pytest.mark.parametrize("seed", range(3))
def test_rollouts_of_prompts_that_pass_are_told_while_others_are_generated(monkeypatch, seed):
    rollouts, told = start(monkeypatch, [GOOD, HARD, GOOD, EASY, GOOD, GOOD, GOOD, GOOD], oversample=6, seed=seed), []

    def on_kept(keys, partition_id):
        told.append((keys, len(rollouts.running)))
        assert all(key in rollouts.queue.tags[partition_id] for key in keys)

    rollouts.buffer.on_kept = on_kept
    batch, _ = step(rollouts, 3)
    every = [key for keys, _ in told for key in keys]
    assert len(every) == len(set(every)) and set(batch.keys) <= set(every)
    assert not {1, 3} & {int(key.split("_")[0]) for key in every}
    assert any(running for _, running in told)


@given(data, st.integers(0, 10_000))
def test_metrics_add_up(data, seed):
    with pytest.MonkeyPatch.context() as monkeypatch:
        rollouts = start(monkeypatch, data, oversample=6, seed=seed)
        batch, metrics = step(rollouts, 3)
    counts = {name.removeprefix("prime/filter/"): value for name, value in metrics.items()}
    verdicts = [counts[name] for name in ("kept", "too_hard", "too_easy", "truncated", "failed")]
    assert sum(verdicts) == counts["examined"] and counts["kept"] == 3
    assert counts["kept_fraction"] == pytest.approx(3 / counts["examined"])
    assert counts["examined"] + counts["returned_to_queue"] == rollouts.n_submitted
    examined = [value for outcome in data[: counts["examined"]] for value in outcome if value is not None]
    kept = [value for prompt in prompts_of(batch) for value in data[prompt] if value is not None]
    assert metrics["prime/accuracy/before_filter"] == pytest.approx(sum(examined) / len(examined))
    assert metrics["prime/accuracy/after_filter"] == pytest.approx(sum(kept) / len(kept))


def test_a_step_starts_with_as_many_prompts_as_the_last_acceptance_rate_asks_for(monkeypatch):
    rollouts = start(monkeypatch, ([GOOD] * 4 + [HARD]) * 60, oversample=80)
    buffer = rollouts.buffer
    # Nothing is known yet: one in two, which the limit of what may be in flight cuts off.
    assert buffer.prompts_to_start(40) == 80
    _, metrics = step(rollouts, 40)
    assert buffer.acceptance_rate == 40 / metrics["prime/filter/examined"] == pytest.approx(0.8, abs=0.02)
    # 40 / 0.8 = 50, and two standard deviations: 2 * sqrt(40 * 0.2) / 0.8 = 7.
    assert 50 < buffer.prompts_to_start(40) <= 58
    submitted = rollouts.n_submitted
    rollouts.submit(buffer.prompts_to_start(40))
    batch, metrics = buffer.sample(global_steps=2, partition_id="train", batch_size=40)
    assert metrics["prime/filter/refills"] == 0 and metrics["prime/filter/returned_to_queue"] <= 8
    assert rollouts.n_submitted - submitted <= 58 and len(prompts_of(batch)) == 40


@pytest.mark.parametrize(("rate", "prompts"), [(1.0, 40), (0.5, 80), (0.0, 80)])
def test_the_first_prompts_of_a_step_are_at_least_a_batch_and_at_most_what_may_be_in_flight(monkeypatch, rate, prompts):
    buffer = start(monkeypatch, [GOOD], oversample=80).buffer
    buffer.acceptance_rate = rate
    assert buffer.prompts_to_start(40) == prompts


def test_every_rollout_of_a_prompt_comes_back_sorted_even_when_one_is_missing(monkeypatch):
    rollouts = start(monkeypatch, [[1.0, None, 0.0], [0.0, 1.0, 0.0]] + [GOOD] * 10, oversample=5)
    batch, _ = step(rollouts, 2)
    assert batch.keys == ["0000_0_0", "0000_2_0", "0001_0_0", "0001_1_0", "0001_2_0"]
    assert all(tag["response_len"] == 3 for tag in batch.tags)


@pytest.mark.parametrize(("last_token", "kept", "truncated"), [(1, [1, 3, 5], 3), (END, [0, 1, 2], 0)])
def test_truncated_prompts_are_dropped_when_asked_and_an_end_in_the_last_place_is_none(
    monkeypatch, last_token, kept, truncated
):
    band = AccuracyBand(0.2, 0.8, drop_truncated=True)
    rollouts = start(monkeypatch, [GOOD] * 12, band=band, lengths=[8, 7] * 6, max_response_length=8)
    rollouts.last_token = last_token
    batch, metrics = step(rollouts, 3)
    assert prompts_of(batch) == kept and metrics["prime/filter/truncated"] == truncated


@pytest.mark.parametrize(
    ("outcomes", "partial", "said"),
    [
        (
            [HARD, EASY] * 10,
            False,
            r"only 0 of 2 prompts .* among 8 .*\(4 too hard, 4 too easy.*prime.filter.max_examined$",
        ),
        # A smaller batch is offered, but none is no smaller batch.
        ([GOOD] + [HARD] * 20, False, r"only 1 of 2 .* set prime.filter.on_exhausted=partial to train on fewer$"),
        ([HARD] * 20, True, "only 0 of 2"),
        # Rollouts that failed are no matter of difficulty.
        ([FAILED] * 20, False, r"8 failed\).*which the log has after 'Error in _run_prompt'$"),
        ([[UNDECIDED, UNDECIDED]] * 20, False, r"could not judge 16 of 16 rollouts \(16 timeout\).*stuck; only 0 of 2"),
    ],
)
def test_too_few_good_prompts_end_in_an_error_that_says_what_to_change(monkeypatch, outcomes, partial, said):
    rollouts = start(monkeypatch, outcomes, oversample=4, max_examined=8, partial=partial)
    with pytest.raises(PromptsExhausted, match=said):
        step(rollouts, 2)
    assert rollouts.n_submitted == 8


def test_a_partial_batch_is_trained_on_with_a_warning_when_asked(monkeypatch, caplog):
    rollouts = start(monkeypatch, [HARD, GOOD, HARD, HARD] + [GOOD] * 10, oversample=4, max_examined=4, partial=True)
    with caplog.at_level(logging.WARNING):
        batch, metrics = step(rollouts, 2)
    assert prompts_of(batch) == [1] and metrics["prime/filter/kept"] == 1
    assert "only 1 of 2 prompts passed" in caplog.text and "training on the smaller batch" in caplog.text


@pytest.mark.parametrize(
    ("accuracy", "label_key", "said"),
    [
        (0.5, "correct", r"no 'correct' in its extra info \(it has \['acc', .*\]\).*prime.label_key"),
        (2.0, "acc", r"is not in \[0, 1\]"),
    ],
)
def test_a_label_that_is_missing_or_no_accuracy_is_an_error(monkeypatch, accuracy, label_key, said):
    rollouts = start(monkeypatch, [[accuracy] * 2] * 10)
    rollouts.buffer.judge.label_key = label_key
    with pytest.raises(RuntimeError, match=said):
        step(rollouts, 2)


def test_a_rollout_that_could_not_be_judged_leaves_its_group_before_anything_counts_it(monkeypatch, caplog):
    # As wrong answers the undecided ones would put the first prompt into the band and keep the second inside it.
    outcomes = [[1.0, 1.0, UNDECIDED], [1.0, 0.0, UNDECIDED]] + [GOOD] * 10
    rollouts = start(monkeypatch, outcomes, oversample=4)
    with caplog.at_level(logging.WARNING):
        batch, metrics = step(rollouts, 2)
    assert batch.keys == ["0001_0_0", "0001_1_0", "0002_0_0", "0002_1_0"]
    assert metrics["prime/filter/too_easy"] == 1 and metrics["prime/accuracy/after_filter"] == 0.5
    assert metrics["verifier/failure_rate"] == metrics["verifier/timeout"] == pytest.approx(2 / 8)
    assert metrics["verifier/correct"] == pytest.approx(4 / 8) and metrics["verifier/seconds/max"] == 6.0
    assert "could not judge 2 of 8 rollouts (2 timeout), the last one because of: stuck" in caplog.text
    assert rollouts.queue.tags["train"] == {}


def test_undecided_rollouts_count_as_wrong_or_end_the_run_when_asked(monkeypatch):
    outcomes = [[1.0, UNDECIDED]] + [GOOD] * 10
    batch, metrics = step(start(monkeypatch, outcomes, on_failure="zero"), 1)
    assert batch.keys == ["0000_0_0", "0000_1_0"] and metrics["verifier/failure_rate"] > 0
    with pytest.raises(VerifierFailed, match=r"could not judge rollout 0000_1_0 \(timeout after 6.0 s: stuck\)"):
        step(start(monkeypatch, outcomes, on_failure="stop"), 1)


@pytest.mark.parametrize("verdict", [{}, {"verdict": "correct", "grader_failure": 0.0, "verifier_seconds": 0.5}])
@pytest.mark.parametrize("on_failure", ["drop", "zero", "stop"])
def test_a_response_without_step_scores_is_one_without_a_verdict(monkeypatch, caplog, on_failure, verdict):
    """Whatever the verdict: the trainer is not told of half a reward."""
    queue = FakeQueue().install(monkeypatch)
    for key, failed in (("p_0_0", 0.0), ("p_1_0", 1.0)):
        info = {"acc": 1.0, **verdict, "reward_failure": failed, "failure_detail": "step scorer: HTTP 500"}
        queue.put(key, {"response_len": 3}, extra_fields={"reward_extra_info": info})
    judge = PromptJudge(BAND, "acc", VerifierSettings(on_failure, 0.1))
    partition = queue.kv_list()["train"]
    if on_failure == "stop":
        with pytest.raises(VerifierFailed, match=r"rollout p_1_0 \(not_scored .*: step scorer: HTTP 500\)"):
            judge.judge(["p"], "train", partition)
        return
    judge.judge(["p"], "train", partition)
    assert list(partition) == list(queue.tags["train"]) == ["p_0_0", "p_1_0"][: 1 if on_failure == "drop" else 2]
    # Without verdicts only those that failed are known to the verifier's rates.
    metrics, share = judge.metrics(["p"]), 0.5 if verdict else 1.0
    assert metrics["verifier/failure_rate"] == metrics["verifier/not_scored"] == share
    assert metrics["verifier/correct"] == (0.5 if verdict else 0.0)
    assert "1 not_scored), the last one because of: step scorer: HTTP 500" in caplog.text


def test_validation_takes_every_prompt(monkeypatch):
    rollouts = start(monkeypatch, [HARD, EASY])
    queue = rollouts.queue
    queue.tags["val"], queue.fields["val"] = {}, {}
    for uid in ("a", "b"):
        queue.tags["val"][uid] = {"is_prompt": True, "status": "finished", "global_steps": 1}
        queue.tags["val"][f"{uid}_0_0"] = {"response_len": 3}
    batch, _ = rollouts.buffer.sample(global_steps=1, partition_id="val", batch_size=2)
    assert sorted(batch.keys) == ["a_0_0", "b_0_0"]


# ---- rollouts of rejected prompts, for the PRM -----------------------------------------------------------------


def rejected_of(outcomes, batch_size, position):
    """The definition: prompts of a step with a judged rollout that were examined and are not in its batch."""
    found, kept = [], 0
    while kept < batch_size:
        accuracies = [value for value in outcomes[position] if value not in (None, UNDECIDED)]
        if BAND.classify(accuracies, [False] * len(accuracies)) == KEPT:
            kept += 1
        elif accuracies:
            found.append(position)
        position += 1
    return found, position


@given(data, st.integers(1, 6), st.integers(1, 5), st.integers(0, 100))
def test_rejected_prompts_are_held_whatever_the_order_in_which_they_finish(outcomes, batch_size, oversample, seed):
    with pytest.MonkeyPatch.context() as monkeypatch:
        outcomes = [[UNDECIDED, UNDECIDED], *outcomes]
        rollouts = start(monkeypatch, outcomes, oversample=oversample * batch_size, seed=seed)
        rollouts.buffer.rejected_limit = math.inf
        position = 0
        for _ in range(2):
            step(rollouts, batch_size)
            rejected = rollouts.buffer.take_rejected()
            expected, position = rejected_of(outcomes, batch_size, position)
            assert (prompts_of(rejected) if rejected else []) == expected
            if rejected:
                assert rejected.keys == sorted(rejected.keys)
                assert all(rollouts.queue.fields["train"][key] for key in rejected.keys)
                rollouts.queue.kv_clear(keys=rejected.keys, partition_id="train")
            assert rollouts.queue.tags["train"] == {}, "nothing else is left, neither of them nor of the surplus"
            assert rollouts.buffer.take_rejected() is None


@pytest.mark.parametrize(("limit", "held"), [(1, []), (2, [4]), (3, [4]), (4, [3, 4]), (100, [0, 1, 3, 4])])
def test_of_too_many_rejected_prompts_the_last_are_held(monkeypatch, limit, held):
    rollouts = start(monkeypatch, [HARD, EASY, GOOD, HARD, EASY, GOOD, *[HARD] * 20])
    rollouts.buffer.rejected_limit = limit
    step(rollouts, 2)
    rejected = rollouts.buffer.take_rejected()
    assert (prompts_of(rejected) if rejected else []) == held
    assert sorted(rollouts.queue.tags["train"]) == (rejected.keys if rejected else [])
