# SPDX-License-Identifier: Apache-2.0
"""The online prompt filter: a batch is the first prompts of the data inside the band.

In the asynchronous modes it is the earliest finished ones. None is lost or trained on twice.
"""

import math

import pytest
from fake_queue import EASY, FAILED, GOOD, HARD, UNDECIDED, FakeQueue, FakeRollouts
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from prime_ext.algorithms.prompt_filter import KEPT, AccuracyBand
from prime_ext.methods.settings import VerifierSettings
from prime_ext.verl_adapter.prompt_filter_buffer import (
    PromptFilterReplayBuffer,
    PromptFilterReplayBufferAsync,
)
from prime_ext.verl_adapter.prompt_judge import PromptJudge, PromptsExhausted, VerifierFailed

HALF_FAILED = [None, 1.0, 0.0]
BAND = AccuracyBand(0.2, 0.8)
END = 2


class OngoingRollouts(FakeRollouts):
    """Rollouts that go on from step to step, and what became of each prompt."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step = 1
        self.submitted: list[str] = []

    def submit(self, n):
        for _ in range(n):
            uid = self.waiting.popleft()
            self.submitted.append(uid)
            self.queue.put(uid, {"is_prompt": True, "status": "pending", "global_steps": self.step})
            self.running.append(uid)

    def _finish(self, uid):
        super()._finish(uid)
        versions = {"min_global_steps": self.step - 1, "max_global_steps": self.step - 1}
        for key, tag in self.queue.tags["train"].items():
            if key.startswith(f"{uid}_"):
                tag.update(versions)

    def finish(self, *uids):
        for uid in uids:
            self.running.remove(uid)
            self._finish(uid)


def make_buffer(
    monkeypatch, rollouts, band=BAND, on_failure="drop", limits=(0, math.inf), **changes
):
    """Make a buffer that is fed by these rollouts."""
    options = {
        "judge": PromptJudge(band, "acc", VerifierSettings(on_failure), *limits, lambda: {END}),
        "max_in_flight": 4,
        "max_examined": 1000,
        "partial": False,
        "trainer_config": OmegaConf.create({}),
        "max_off_policy_threshold": None,
        "max_off_policy_strategy": "drop",
        "sampler_kwargs": OmegaConf.create({}),
        "refill_fn": rollouts.submit,
        "poll_interval": 0.0,
        **changes,
    }
    if isinstance(rollouts, OngoingRollouts):
        rollouts.buffer = PromptFilterReplayBufferAsync(trainer_mode="colocate_async", **options)
    else:
        rollouts.buffer = PromptFilterReplayBuffer(
            trainer_mode="sync", requeue=rollouts.requeue, **options
        )
    monkeypatch.setattr(rollouts.buffer, "_wait_for_next_poll", rollouts.advance)
    return rollouts


def start(monkeypatch, outcomes, seed=0, lengths=None, kind=FakeRollouts, **options):
    return make_buffer(
        monkeypatch, kind(FakeQueue().install(monkeypatch), outcomes, seed, lengths), **options
    )


def step(rollouts, batch_size):
    """Run one step of the trainer: submit, sample, and forget the rollouts that were trained on."""
    rollouts.submit(rollouts.buffer.max_in_flight)
    batch, metrics = rollouts.buffer.sample(
        global_steps=1, partition_id="train", batch_size=batch_size
    )
    rollouts.queue.kv_clear(keys=batch.keys, partition_id="train")
    return batch, metrics


def get_prompts(batch):
    return sorted({int(key.split("_")[0]) for key in batch.keys}) if batch else []


def expected_step(outcomes, batch_size, position):
    """Return the batch by definition, the first prompts inside the band, and the next position."""
    kept = []
    while len(kept) < batch_size:
        accuracies = [value for value in outcomes[position] if value not in (None, UNDECIDED)]
        # A prompt that lost a rollout leaves.
        if (
            None not in outcomes[position]
            and BAND.classify(accuracies, [False] * len(accuracies)) == KEPT
        ):
            kept.append(position)
        position += 1
    return kept, position


# Every fourth prompt at least is good, so that the data never runs out.
KINDS = st.sampled_from(
    [GOOD, HARD, EASY, HALF_FAILED, FAILED, [0.0, None], [UNDECIDED, UNDECIDED]]
)
data = st.lists(KINDS, min_size=20, max_size=20).map(
    lambda kinds: [kind for other in kinds for kind in (other, other[::-1], HARD, GOOD, GOOD)]
)


@given(data, st.integers(0, 10_000), st.integers(0, 6), st.integers(1, 4))
def test_delays_and_oversampling_do_not_change_the_batches(outcomes, seed, extra, batch_size):
    with pytest.MonkeyPatch.context() as monkeypatch:
        rollouts = start(monkeypatch, outcomes, seed, max_in_flight=batch_size + extra)
        position = 0
        for _ in range(3):
            first = position
            submitted = rollouts.n_submitted
            kept, position = expected_step(outcomes, batch_size, first)
            batch, metrics = step(rollouts, batch_size)
            whole = [
                (uid, at)
                for uid in kept
                for at, value in enumerate(outcomes[uid])
                if value not in (None, UNDECIDED)
            ]
            assert batch.keys == [f"{uid:04d}_{at}_0" for uid, at in whole]
            counts = {name.removeprefix("prime/filter/"): value for name, value in metrics.items()}
            verdicts = [
                counts[name] for name in ("kept", "too_hard", "too_easy", "truncated", "failed")
            ]
            assert (
                sum(verdicts) == counts["examined"] == position - first
                and counts["kept"] == batch_size
            )
            assert counts["kept_fraction"] == pytest.approx(batch_size / (position - first))
            assert (
                counts["examined"] + counts["returned_to_queue"] == rollouts.n_submitted - submitted
            )
            for name, prompts in (("before", range(first, position)), ("after", kept)):
                seen = [
                    value
                    for uid in prompts
                    for value in outcomes[uid]
                    if value not in (None, UNDECIDED)
                ]
                assert metrics[f"prime/accuracy/{name}_filter"] == pytest.approx(
                    sum(seen) / len(seen)
                )
            # The next step starts with the prompt after the last one that was looked at.
            assert (
                list(rollouts.waiting) == sorted(rollouts.waiting)
                and int(rollouts.waiting[0]) == position
            )
            assert rollouts.queue.tags["train"] == {} and not rollouts.running
        assert rollouts.most_in_flight <= batch_size + extra


def test_the_last_acceptance_rate_sets_the_prompts_of_a_step(monkeypatch):
    rollouts = start(monkeypatch, ([GOOD] * 4 + [HARD]) * 60, max_in_flight=80)
    _, metrics = step(rollouts, 40)
    buffer = rollouts.buffer
    assert (
        buffer.acceptance_rate
        == 40 / metrics["prime/filter/examined"]
        == pytest.approx(0.8, abs=0.02)
    )
    # 40 / 0.8 = 50, and two standard deviations: 2 * sqrt(40 * 0.2) / 0.8 = 7.
    assert 50 < buffer.prompts_to_start(40) <= 58
    for rate, prompts in ((1.0, 40), (0.5, 80), (0.0, 80)):
        buffer.acceptance_rate = rate
        assert buffer.prompts_to_start(40) == prompts


@pytest.mark.parametrize(
    ("last_token", "limits", "kept", "truncated"),
    [
        (1, (8, math.inf), [1, 3, 5], 3),
        (END, (8, math.inf), [0, 1, 2], 0),
        # The engine's limit of prompt and response comes first.
        (1, (12, 9), [1, 3, 5], 3),
    ],
)
def test_truncated_prompts_are_dropped_unless_they_end_in_time(
    monkeypatch, last_token, limits, kept, truncated
):
    band = AccuracyBand(0.2, 0.8, drop_truncated=True)
    rollouts = start(monkeypatch, [GOOD] * 12, lengths=[8, 7] * 6, band=band, limits=limits)
    rollouts.last_token = last_token
    batch, metrics = step(rollouts, 3)
    assert get_prompts(batch) == kept and metrics["prime/filter/truncated"] == truncated


@pytest.mark.parametrize("kind", [FakeRollouts, OngoingRollouts])
@pytest.mark.parametrize(
    ("outcomes", "partial", "said"),
    [
        (
            [HARD, EASY] * 10,
            False,
            (
                r"only 0 of 2 prompts .* among 8 .*\(4 too hard, 4 too"
                r" easy.*prime.filter.max_examined$"
            ),
        ),
        # A smaller batch is offered, but an empty one is not.
        ([GOOD] + [HARD] * 20, False,
         r"only 1 of 2 .* set prime.filter.on_exhausted=partial to train on fewer$"),
        ([HARD] * 20, True, "only 0 of 2"),
        # Failed rollouts say nothing about difficulty.
        ([FAILED] * 20, False, r"8 failed\).*which the log has after 'Error in _run_prompt'$"),
        ([[UNDECIDED, UNDECIDED]] * 20, False,
         r"could not judge 16 of 16 rollouts \(16 timeout\).*stuck; only 0 of 2"),
        ([GOOD] + [HARD] * 20, True, None),
    ],
)  # fmt: skip
def test_too_few_good_prompts_fail_or_shrink_the_batch(
    monkeypatch, caplog, kind, outcomes, partial, said
):
    rollouts = start(monkeypatch, outcomes, kind=kind, max_examined=8, partial=partial)
    # The asynchronous search goes on until nothing is generating.
    if kind is OngoingRollouts:
        monkeypatch.setattr(rollouts, "advance", lambda *_: rollouts.finish(*rollouts.running))
        monkeypatch.setattr(rollouts.buffer, "_wait_for_next_poll", rollouts.advance)
    if said is None:
        batch, _ = step(rollouts, 2)
        assert get_prompts(batch) == [0] and "training on the smaller batch" in caplog.text
        return
    with pytest.raises(PromptsExhausted, match=said):
        step(rollouts, 2)


@pytest.mark.parametrize(
    ("accuracy", "label_key", "said"),
    [
        (0.5, "correct",
         r"no 'correct' in its extra info \(it has \['acc', .*\]\).*prime.label_key"),
        (2.0, "acc", r"is not in \[0, 1\]"),
    ],
)  # fmt: skip
def test_a_label_must_exist_and_be_an_accuracy(monkeypatch, accuracy, label_key, said):
    rollouts = start(monkeypatch, [[accuracy] * 2] * 10)
    rollouts.buffer.judge.label_key = label_key
    with pytest.raises(RuntimeError, match=said):
        step(rollouts, 2)


def test_undecided_rollouts_leave_their_group_before_anything_counts_them(monkeypatch, caplog):
    # As wrong answers the undecided ones would put the first prompt into the band and keep the
    # second inside it.
    outcomes = [[1.0, 1.0, UNDECIDED], [1.0, 0.0, UNDECIDED]] + [GOOD] * 10
    rollouts = start(monkeypatch, outcomes)
    batch, metrics = step(rollouts, 2)
    assert batch.keys == ["0001_0_0", "0001_1_0", "0002_0_0", "0002_1_0"]
    assert metrics["prime/filter/too_easy"] == 1 and metrics["prime/accuracy/after_filter"] == 0.5
    assert metrics["verifier/failure_rate"] == metrics["verifier/timeout"] == pytest.approx(2 / 8)
    assert (
        metrics["verifier/correct"] == pytest.approx(4 / 8)
        and metrics["verifier/seconds/max"] == 6.0
    )
    assert (
        "could not judge 2 of 8 rollouts (2 timeout), the last one because of: stuck" in caplog.text
    )
    assert rollouts.queue.tags["train"] == {}


def test_undecided_rollouts_may_count_as_wrong_or_end_the_run(monkeypatch):
    outcomes = [[1.0, UNDECIDED]] + [GOOD] * 10
    batch, metrics = step(start(monkeypatch, outcomes, on_failure="zero"), 1)
    assert batch.keys == ["0000_0_0", "0000_1_0"] and metrics["verifier/failure_rate"] > 0
    with pytest.raises(
        VerifierFailed, match=r"could not judge rollout 0000_1_0 \(timeout after 6.0 s: stuck\)"
    ):
        step(start(monkeypatch, outcomes, on_failure="stop"), 1)


@pytest.mark.parametrize("on_failure", ["drop", "zero", "stop"])
def test_a_response_without_step_scores_is_one_without_a_verdict(monkeypatch, caplog, on_failure):
    """Whatever the verdict: the trainer does not see half a reward."""
    queue = FakeQueue().install(monkeypatch)
    for key, failed in (("p_0_0", 0.0), ("p_1_0", 1.0)):
        info = {"acc": 1.0, "verdict": "correct", "grader_failure": 0.0, "reward_failure": failed}
        info["failure_detail"] = "step scorer: HTTP 500"
        queue.put(key, {"response_len": 3}, extra_fields={"reward_extra_info": info})
    judge = PromptJudge(BAND, "acc", VerifierSettings(on_failure))
    partition = queue.kv_list()["train"]
    if on_failure == "stop":
        with pytest.raises(
            VerifierFailed, match=r"rollout p_1_0 \(not_scored .*: step scorer: HTTP 500\)"
        ):
            judge.judge(["p"], "train", partition)
        return
    judge.judge(["p"], "train", partition)
    assert (
        list(partition)
        == list(queue.tags["train"])
        == ["p_0_0", "p_1_0"][: 1 if on_failure == "drop" else 2]
    )
    metrics = judge.metrics(["p"])
    assert (
        metrics["verifier/failure_rate"]
        == metrics["verifier/not_scored"]
        == metrics["verifier/correct"]
        == 0.5
    )
    assert "1 not_scored), the last one because of: step scorer: HTTP 500" in caplog.text


# ---- the asynchronous modes ----------------------------------------------------------------------


def ongoing(monkeypatch, outcomes, seed=0, **options):
    return start(monkeypatch, outcomes, seed, kind=OngoingRollouts, **options)


WAIT = {"max_off_policy_threshold": 1, "max_off_policy_strategy": "wait"}


def ongoing_step(rollouts, batch_size, window, mini_batches=1):
    """Run one step of the trainer. Returns its batches as lists of prompts, and the metrics."""
    rollouts.buffer.max_in_flight = window
    rollouts.submit(rollouts.buffer.prompts_to_start(batch_size))
    batches = []
    metrics = {}
    used = []
    for _ in range(mini_batches):
        batch, metrics = rollouts.buffer.sample(rollouts.step, "train", batch_size // mini_batches)
        assert batch.keys == sorted(batch.keys)
        batches.append(get_prompts(batch))
        used.extend(batch.keys)
    metrics = {**metrics, **rollouts.buffer.step_metrics()}
    rollouts.queue.kv_clear(keys=used, partition_id="train")
    rollouts.step += 1
    return batches, metrics


def in_system(rollouts):
    return {key for key, tag in rollouts.queue.tags["train"].items() if tag.get("is_prompt")}


@given(
    data,
    st.integers(0, 10_000),
    st.integers(0, 4),
    st.sampled_from([1, 2]),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_every_prompt_is_trained_on_once_rejected_or_waiting(
    outcomes, seed, extra, mini_batches, busy, interrupted_at
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        rollouts = ongoing(monkeypatch, outcomes, seed)
        batch_size = 2 * mini_batches
        window = 2 * mini_batches + extra
        trained = []
        for number in range(4):
            if number == interrupted_at:
                # Killed and resumed: a new buffer finds the store as it was; what was generating
                # starts again.
                for uid in rollouts.running:
                    rollouts.queue.tags["train"][uid].update(
                        status="pending", global_steps=rollouts.step
                    )
                make_buffer(monkeypatch, rollouts)
            batches, metrics = ongoing_step(rollouts, batch_size, window, mini_batches)
            trained += [f"{prompt:04d}" for batch in batches for prompt in batch]
            assert [len(batch) for batch in batches] == [2] * mini_batches
            assert len(in_system(rollouts)) == window - batch_size
            assert (
                metrics["prime/filter/waiting"] + metrics["prime/filter/in_flight"]
                == window - batch_size
            )
            # Rollouts go on while the trainer is busy.
            for _ in range(busy):
                rollouts.advance()
        assert len(set(trained)) == len(trained)
        left = in_system(rollouts)
        for uid in rollouts.submitted:
            accuracies = [value for value in outcomes[int(uid)] if value not in (None, UNDECIDED)]
            kept = BAND.classify(accuracies, [False] * len(accuracies)) == KEPT
            kept = kept and None not in outcomes[int(uid)]
            assert kept == (uid in trained) or uid in left
            assert not (uid in trained and uid in left)
        assert rollouts.submitted == sorted(set(rollouts.submitted))


@given(data, st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 5))
def test_delays_do_not_change_batches_without_ongoing_generation(outcomes, first, second, extra):
    runs = []
    for seed in (first, second):
        with pytest.MonkeyPatch.context() as monkeypatch:
            rollouts = ongoing(monkeypatch, outcomes, seed, **WAIT)
            runs.append([ongoing_step(rollouts, 2, 2 + extra)[0] for _ in range(3)])
            assert not rollouts.running
    assert runs[0] == runs[1]


def test_what_the_filter_did_is_reported_once_per_step(monkeypatch):
    rollouts = ongoing(monkeypatch, [HARD, GOOD, EASY, GOOD, GOOD, FAILED] + [GOOD] * 20, **WAIT)
    _, metrics = ongoing_step(rollouts, 4, 6, mini_batches=2)
    counts = {name.removeprefix("prime/filter/"): value for name, value in metrics.items()}
    assert (counts["examined"], counts["kept"], counts["waiting"], counts["in_flight"]) == (
        9,
        4,
        2,
        0,
    )
    assert (counts["too_hard"], counts["too_easy"], counts["failed"], counts["truncated"]) == (
        1,
        1,
        1,
        0,
    )
    assert counts["kept_fraction"] == pytest.approx(6 / 9)
    assert metrics["prime/accuracy/before_filter"] == metrics["prime/accuracy/after_filter"] == 0.5
    _, metrics = ongoing_step(rollouts, 4, 6)
    assert metrics["prime/filter/examined"] == 4 and metrics["prime/filter/failed"] == 0
    assert rollouts.buffer.judge.verdicts.keys() == in_system(rollouts)


def test_stale_prompts_are_dropped_and_replaced(monkeypatch):
    control = {"max_off_policy_threshold": 2, "max_off_policy_strategy": "drop"}
    rollouts = ongoing(monkeypatch, [GOOD] * 20, **control)
    rollouts.submit(3)
    rollouts.step = 4
    rollouts.finish("0000")
    ((first,),), metrics = ongoing_step(rollouts, 1, 3)
    assert first >= 3 and metrics["training/off_policy/evicted_samples"] >= 1


def test_rollouts_without_a_prompt_are_forgotten_after_a_resume(monkeypatch):
    rollouts = ongoing(monkeypatch, [GOOD] * 10)
    rollouts.submit(2)
    rollouts.finish("0000", "0001")
    batch, _ = rollouts.buffer.sample(1, "train", 1)
    rollouts.buffer.drop_orphans()
    assert set(rollouts.queue.tags["train"]) == {"0001", "0001_0_0", "0001_1_0"}
    assert rollouts.buffer.count_rollouts() == 2 and batch.keys == ["0000_0_0", "0000_1_0"]
