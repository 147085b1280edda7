# SPDX-License-Identifier: Apache-2.0
"""The prompt filter of the asynchronous modes: the earliest finished prompts inside the band; none lost, none twice."""

import pytest
from fake_queue import EASY, FAILED, GOOD, HARD, UNDECIDED, FakeQueue, FakeRollouts
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from prime_ext.algorithms.prompt_filter import KEPT, AccuracyBand
from prime_ext.config.settings import VerifierSettings
from prime_ext.trainer.prompt_judge import PromptJudge, PromptsExhausted
from prime_ext.trainer.replay_buffer import PromptFilterReplayBufferAsync, staleness_metrics

HALF_FAILED = [None, 1.0, 0.0]
BAND = AccuracyBand(0.2, 0.8)


class Rollouts(FakeRollouts):
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

    def pass_time(self, rounds):
        """Rollouts go on while the trainer is busy."""
        for _ in range(rounds):
            self.advance()

    def finish(self, *uids):
        for uid in uids:
            self.running.remove(uid)
            self._finish(uid)


def make_buffer(monkeypatch, rollouts, *, max_examined=1000, partial=False, **control):
    options = {"max_off_policy_threshold": None, "max_off_policy_strategy": "drop", **control}
    buffer = PromptFilterReplayBufferAsync(
        judge=PromptJudge(BAND, "acc", VerifierSettings(on_failure="drop", warn_rate=0.1)),
        max_in_flight=9,
        max_examined=max_examined,
        partial=partial,
        trainer_mode="colocate_async",
        trainer_config=OmegaConf.create({}),
        sampler_kwargs=OmegaConf.create({}),
        refill_fn=rollouts.submit,
        poll_interval=0.0,
        **options,
    )
    monkeypatch.setattr(buffer, "_wait_for_next_poll", rollouts.advance)
    rollouts.buffer = buffer
    return buffer


def start(monkeypatch, outcomes, seed=0, lengths=None, **options):
    rollouts = Rollouts(FakeQueue().install(monkeypatch), outcomes, seed, lengths)
    make_buffer(monkeypatch, rollouts, **options)
    return rollouts


def step(rollouts, batch_size, window, mini_batches=1):
    """One step of the trainer. Returns its batches as lists of prompts, and the metrics."""
    rollouts.submit(window - rollouts.buffer.count_prompts())
    batches, metrics, used = [], {}, []
    for _ in range(mini_batches):
        batch, metrics = rollouts.buffer.sample(rollouts.step, "train", batch_size // mini_batches)
        assert batch.keys == sorted(batch.keys)
        batches.append(sorted({int(key.split("_")[0]) for key in batch.keys}))
        used.extend(batch.keys)
    metrics = {**metrics, **rollouts.buffer.step_metrics()}
    rollouts.queue.kv_clear(keys=used, partition_id="train")
    rollouts.step += 1
    return batches, metrics


def in_system(rollouts):
    return {key for key, tag in rollouts.queue.tags["train"].items() if tag.get("is_prompt")}


data = st.lists(st.sampled_from([GOOD, HARD, EASY, HALF_FAILED, FAILED, [0.0, None]]), min_size=20, max_size=20).map(
    lambda kinds: [kind for other in kinds for kind in (other, other[::-1], HARD, GOOD, GOOD)]
)


@given(data, st.integers(0, 10_000), st.integers(0, 4), st.sampled_from([1, 2]), st.integers(0, 5), st.integers(0, 3))
def test_every_prompt_is_trained_on_once_or_rejected_or_still_there(
    outcomes, seed, extra, mini_batches, busy, interrupted_at
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        rollouts = start(monkeypatch, outcomes, seed)
        batch_size, window = 2 * mini_batches, 2 * mini_batches + extra
        trained = []
        for number in range(4):
            if number == interrupted_at:
                # Killed and resumed: a new buffer finds the store as it was; what was generating starts again.
                for uid in rollouts.running:
                    rollouts.queue.tags["train"][uid].update(status="pending", global_steps=rollouts.step)
                make_buffer(monkeypatch, rollouts)
            batches, metrics = step(rollouts, batch_size, window, mini_batches)
            trained += [f"{prompt:04d}" for batch in batches for prompt in batch]
            assert [len(batch) for batch in batches] == [2] * mini_batches
            assert len(in_system(rollouts)) == window - batch_size
            assert metrics["prime/filter/waiting"] + metrics["prime/filter/in_flight"] == window - batch_size
            rollouts.pass_time(busy)
        assert len(set(trained)) == len(trained)
        left = in_system(rollouts)
        for uid in rollouts.submitted:
            accuracies = [value for value in outcomes[int(uid)] if value is not None]
            kept = BAND.classify(accuracies, [False] * len(accuracies)) == KEPT
            assert kept == (uid in trained) or uid in left
            assert not (uid in trained and uid in left)
        assert rollouts.submitted == sorted(set(rollouts.submitted))


@given(data, st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 5))
def test_when_nothing_may_be_generating_the_batches_do_not_depend_on_the_delays(outcomes, first, second, extra):
    runs = []
    for seed in (first, second):
        with pytest.MonkeyPatch.context() as monkeypatch:
            rollouts = start(monkeypatch, outcomes, seed, max_off_policy_threshold=1, max_off_policy_strategy="wait")
            runs.append([step(rollouts, 2, 2 + extra)[0] for _ in range(3)])
            assert not rollouts.running
    assert runs[0] == runs[1]


def test_the_earliest_of_the_finished_prompts_are_taken_and_the_others_wait(monkeypatch):
    rollouts = start(monkeypatch, [GOOD] * 20)
    rollouts.submit(6)
    rollouts.finish("0005", "0003", "0001")
    batches, metrics = step(rollouts, 2, 6)
    assert batches == [[1, 3]]
    assert metrics["prime/filter/waiting"] == 1 and metrics["prime/filter/in_flight"] == 3
    rollouts.finish("0002")
    metrics = rollouts.buffer.step_metrics()
    assert metrics["prime/filter/waiting"] == 2 and metrics["prime/filter/in_flight"] == 2
    rollouts.finish("0004")
    assert step(rollouts, 2, 6)[0] == [[2, 4]]


def test_what_the_filter_did_is_reported_once_per_step(monkeypatch):
    outcomes = [HARD, GOOD, EASY, GOOD, GOOD, FAILED] + [GOOD] * 20
    rollouts = start(monkeypatch, outcomes, max_off_policy_threshold=1, max_off_policy_strategy="wait")
    _, metrics = step(rollouts, 4, 6, mini_batches=2)
    counts = {name.removeprefix("prime/filter/"): value for name, value in metrics.items()}
    assert (counts["examined"], counts["kept"], counts["waiting"], counts["in_flight"]) == (9, 4, 2, 0)
    assert (counts["too_hard"], counts["too_easy"], counts["failed"], counts["truncated"]) == (1, 1, 1, 0)
    assert counts["kept_fraction"] == pytest.approx(6 / 9)
    assert metrics["prime/accuracy/before_filter"] == metrics["prime/accuracy/after_filter"] == 0.5
    _, metrics = step(rollouts, 4, 6)
    assert metrics["prime/filter/examined"] == 4 and metrics["prime/filter/failed"] == 0
    assert rollouts.buffer.judge.verdicts.keys() == in_system(rollouts)


def test_stale_prompts_are_dropped_and_replaced_or_waited_for(monkeypatch):
    rollouts = start(monkeypatch, [GOOD] * 20, max_off_policy_threshold=2, max_off_policy_strategy="drop")
    rollouts.submit(3)
    rollouts.step = 4
    rollouts.finish("0000")
    batches, metrics = step(rollouts, 1, 3)
    assert batches[0][0] >= 3 and metrics["training/off_policy/evicted_samples"] >= 1

    rollouts = start(monkeypatch, [GOOD] * 20, max_off_policy_threshold=2, max_off_policy_strategy="wait")
    rollouts.submit(3)
    rollouts.step = 4
    rollouts.finish("0001")
    batches, _ = step(rollouts, 1, 3)
    assert batches == [[0]] and "0002" not in rollouts.running


def test_a_stale_prompt_some_of_whose_rollouts_failed_is_dropped_too(monkeypatch):
    rollouts = start(
        monkeypatch, [HALF_FAILED] + [GOOD] * 20, max_off_policy_threshold=2, max_off_policy_strategy="drop"
    )
    rollouts.submit(2)
    rollouts.step = 4
    rollouts.finish("0000", "0001")
    assert step(rollouts, 1, 2)[0][0][0] >= 2


def test_rollouts_that_could_not_be_judged_leave_their_group(monkeypatch):
    outcomes = [[1.0, 0.0, UNDECIDED], [UNDECIDED, UNDECIDED]] + [GOOD] * 10
    rollouts = start(monkeypatch, outcomes, max_off_policy_threshold=1, max_off_policy_strategy="wait")
    rollouts.submit(2)
    batch, _ = rollouts.buffer.sample(1, "train", 1)
    metrics = rollouts.buffer.step_metrics()
    assert batch.keys == ["0000_0_0", "0000_1_0"]
    assert metrics["prime/filter/failed"] == 1 and metrics["verifier/failure_rate"] == pytest.approx(3 / 7)


def test_too_few_good_prompts_are_an_error_or_a_smaller_batch(monkeypatch, caplog):
    few = [HARD, GOOD] + [HARD] * 40
    with pytest.raises(PromptsExhausted, match=r"only 1 of 2 .* set prime.filter.on_exhausted=partial"):
        step(start(monkeypatch, few, max_examined=8), 2, 4)
    batches, metrics = step(start(monkeypatch, few, max_examined=8, partial=True), 2, 4)
    assert batches == [[1]] and metrics["prime/filter/kept"] == 1
    assert "training on the smaller batch" in caplog.text


def test_the_bound_starts_anew_with_every_batch(monkeypatch):
    rollouts = start(monkeypatch, ([HARD] * 5 + [GOOD]) * 6, max_examined=8)
    assert [step(rollouts, 1, 2)[0] for _ in range(4)] == [[[5]], [[11]], [[17]], [[23]]]


def test_rollouts_without_a_prompt_are_forgotten_after_a_resume(monkeypatch):
    rollouts = start(monkeypatch, [GOOD] * 10)
    rollouts.submit(2)
    rollouts.finish("0000", "0001")
    batch, _ = rollouts.buffer.sample(1, "train", 1)
    rollouts.buffer.drop_orphans()
    assert set(rollouts.queue.tags["train"]) == {"0001", "0001_0_0", "0001_1_0"}
    assert rollouts.buffer.count_rollouts() == 2 and batch.keys == ["0000_0_0", "0000_1_0"]


def test_staleness_counts_weight_updates_since_the_first_and_the_last_token():
    def tag(first, last, **more):
        return {"min_global_steps": first, "max_global_steps": last, **more}

    tags = [tag(6, 6), tag(4, 6), tag(3, 4), tag(6, 6), tag(0, 0, is_padding=True), tag(None, None)]
    assert staleness_metrics(tags, step=7) == {
        "prime/staleness/mean": (0 + 2 + 3 + 0) / 4,
        "prime/staleness/max": 3,
        "prime/staleness/last_token/mean": (0 + 0 + 2 + 0) / 4,
        "prime/staleness/partial_fraction": 0.5,
    }
    assert staleness_metrics([tag(None, None)], step=7) == {}
