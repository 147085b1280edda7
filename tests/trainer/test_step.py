# SPDX-License-Identifier: Apache-2.0
"""One step on rollouts of the store: its tensors and advantages, and the PRM's part in the order of every mode."""

import logging
from types import SimpleNamespace

import pytest
import torch
from small_batch import NAN, PADDING, ROLLOUTS, batch_of, filled_queue, loaded, settings

from prime_ext.config.settings import ReplaySettings
from prime_ext.prm.replay import PRMReplay
from prime_ext.prm.worker import INPUT_FIELDS, LABEL, OFFSET, PRM_LOG_PROBS, REFERENCE_LOG_PROBS, ROW, WEIGHT
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.prm_phase import PRMPhase
from prime_ext.trainer.reward_sources import NotFinite, advantages
from prime_ext.utils import transfer_queue as transfer


@pytest.fixture
def queue(monkeypatch):
    return filled_queue(monkeypatch)


def test_groups_labels_and_masks_are_read_by_key(queue):
    step = loaded(queue, scored=False)
    assert step.mask_BT.tolist()[:5] == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert step.label_B.tolist()[:5] == step.reward_BT.sum(-1).tolist()[:5] == [1.0, 0.0, 0.0, 1.0, 0.5]
    assert step.group_B[0] == step.group_B[1] == step.group_B[2] != step.group_B[3] == step.group_B[4]
    assert step.valid_B.tolist() == [True] * 5 + [False] * 2


def advantages_by_key(queue, keys=(*ROLLOUTS, *PADDING), gate=1.0, **changes):
    step = loaded(queue, keys, **changes)
    advantage_BT, return_BT = advantages(step, gate)
    rows = {key: advantage_BT[row, : len(ROLLOUTS[key][1])] for row, key in enumerate(keys) if key in ROLLOUTS}
    return rows, step.metrics, (advantage_BT, return_BT)


def test_padding_rows_and_row_order_change_nothing(queue):
    expected, expected_metrics, _ = advantages_by_key(queue, list(ROLLOUTS))
    keys = [PADDING[0], *reversed(ROLLOUTS), PADDING[1]]
    rows, metrics, (advantage_BT, return_BT) = advantages_by_key(queue, keys)
    torch.testing.assert_close(rows, dict(reversed(expected.items())))
    assert metrics == pytest.approx(expected_metrics)
    for padding in (0, -1):
        assert not advantage_BT[padding].any() and not return_BT[padding].any()


def test_kl_in_reward_reaches_the_outcome_at_its_tokens_but_not_the_label(queue):
    step = loaded(queue, scored=False, kl_in_reward=True)
    assert step.reward_BT[0].tolist() == pytest.approx([-0.25 / 3, -0.25 / 3, 1 - 0.25 / 3, 0.0])
    assert step.reward_BT.sum(-1)[:5].tolist() == pytest.approx([0.75, -0.25, -0.25, 0.75, 0.25])
    assert step.label_B[:5].tolist() == [1.0, 0.0, 0.0, 1.0, 0.5]


def test_the_gate_scales_the_process_source_and_a_shut_gate_removes_it(queue):
    shut, metrics, _ = advantages_by_key(queue, gate=0.0)
    torch.testing.assert_close(shut, advantages_by_key(queue, process__coefficient=0.0)[0])
    assert "prime/process/return_std" not in metrics
    half, *_ = advantages_by_key(queue, gate=0.5)
    torch.testing.assert_close(half, advantages_by_key(queue, process__coefficient=0.5)[0])


def test_pair_accuracy_before_and_after_are_logged_apart_and_only_before_feeds_the_gate(queue):
    step = loaded(queue, scored=False)
    step.reference_log_prob_BT = torch.full_like(step.mask_BT, -5.0)
    right_BT = torch.full_like(step.mask_BT, -5.0)
    right_BT[:, 0] += step.label_B
    step.measure_scores(right_BT, when="before")
    step.measure_scores(-10.0 - right_BT, when="after")
    assert step.metrics["prm/pair_accuracy/before_update"] == 1.0 == step.pairs_before.accuracy
    assert step.metrics["prm/pair_accuracy/after_update"] == 0.0


def test_a_rollout_alone_in_its_group_is_counted_and_warned_about(queue, caplog):
    keys = ["000000000007_0_0", "000000000007_1_0", "000000000009_0_0", *PADDING]
    with caplog.at_level(logging.WARNING):
        rows, metrics, _ = advantages_by_key(queue, keys, whitening=False)
    assert metrics["prime/rollouts_without_baseline"] == 1 and "alone in their group" in caplog.text
    assert rows["000000000009_0_0"].tolist() == [0.0]


def test_rewards_that_are_not_finite_end_the_run_before_the_policy_is_trained_on_them(queue):
    step = loaded(queue)
    step.process_reward_BT[0, 0] = step.metrics["prm/loss"] = NAN
    with pytest.raises(NotFinite, match=r"not finite because of process \(prm/loss: nan\).*prm.model.path"):
        advantages(step, 1.0)


# ---- the order of scoring and updates of the PRM, and what each order knows when ------------------------------------


class UpdatedPRM:
    """A PRM that orders all pairs wrongly until it has been updated; its passes over the batch are counted."""

    mini_batch_rows = 8
    replay: PRMReplay | None = None

    def __init__(self, queue, mode, needs_scores=False):
        self.reward_noise = 0.0
        self.settings = SimpleNamespace(beta=0.05, update_mode=mode, accuracy_freq=0)
        self.queue, self.passes, self.sign, self.needs_scores = queue, 0, -1.0, needs_scores
        self.mini_batch_of_key: dict[str, int] = {}

    def row(self, key, offset):
        """Of the length of the response; the label is in its first token, if the row has one."""
        fields = self.queue.fields["train"][key]
        values_T = torch.full(fields["response_mask"].shape, -5.0)
        if "extra_fields" in fields:
            values_T[0] += offset * fields["extra_fields"]["reward_extra_info"]["acc"]
        return values_T

    def write(self, batch, name, offset):
        for key in batch.keys:
            self.queue.fields["train"][key][name] = self.row(key, offset)
        return transfer.with_field(batch, name)

    def reference(self, batch, as_update):
        self.fields_of_reference = batch.fields
        batch = self.write(batch, REFERENCE_LOG_PROBS, 0.0)
        return batch, transfer.fetch_padded(batch, [REFERENCE_LOG_PROBS])[REFERENCE_LOG_PROBS]

    def put_rows(self, batch, label_B, group_B, valid_B, score_B, replayed_B=None, mini_batch_rows=None):
        self.planned = (list(batch.keys), label_B, group_B, valid_B, score_B)
        self.replayed_B, self.rows_of_plan = replayed_B, mini_batch_rows
        return batch

    def plan(self, batch, *_):
        return SimpleNamespace(mini_batch_B=torch.tensor([self.mini_batch_of_key.get(key, 0) for key in batch.keys]))

    def rows_with_replay(self, new, replayed):
        return self.mini_batch_rows + -(-replayed // (new // self.mini_batch_rows))

    def score(self, batch):
        self.passes += 1
        self.fields_of_score = batch.fields
        self.write(batch, PRM_LOG_PROBS, self.sign)

    def update(self, batch, mini_batch_rows=None, score=False):
        if score:
            self.write(batch, PRM_LOG_PROBS, self.sign)
        self.passes += 1
        self.fields_of_update, self.rows_of_update = batch.fields, mini_batch_rows
        self.rows_trained_on = {key: dict(self.queue.fields["train"][key]) for key in batch.keys}
        self.sign = 1.0
        return {"loss": 0.7}

    def take_pass_counts(self):
        return {}


def run(queue, prm, number=1, **changes):
    """The phase of one step; the step, and the batch as it was given and as it came back."""
    batch = batch_of(queue, [*ROLLOUTS, *PADDING])
    step = PrimeStep.load(batch, settings(**changes), number=number)
    after = PRMPhase(prm, step, end_token=2).run(batch)
    assert after.keys == batch.keys and set(queue.tags["train"]) == set(batch.keys), "nothing else is left"
    return step, after


DISTILS = {"process__form": "kl", "process__target": "policy"}


@pytest.mark.parametrize(
    ("mode", "gated", "passes", "rewards_of_the_updated", "changes"),
    [
        ("interleaved", True, 1, False, {}),
        ("after", True, 2, False, {}),
        ("before", True, 2, True, {}),
        ("before", False, 2, True, {}),
        ("none", True, 1, False, {}),
        # Without process rewards the training passes are enough.
        ("before", True, 1, False, DISTILS),
        ("before", False, 1, False, DISTILS),
    ],
)
def test_the_gate_judges_the_prm_before_its_update_and_costs_no_pass(
    monkeypatch, mode, gated, passes, rewards_of_the_updated, changes
):
    queue = filled_queue(monkeypatch)
    prm = UpdatedPRM(queue, mode)
    step, _ = run(queue, prm, process__reliability_gate=gated, **changes)
    assert prm.passes == passes
    # Whatever it says of a tool's answer is no reward.
    assert not step.process_reward_BT[~step.mask_BT.bool()].any()
    # Untrained it orders every pair wrongly, updated every pair rightly.
    assert step.pairs_before.accuracy == (None if mode == "before" and not gated and not changes else 0.0)
    right = step.process_reward_BT.sum(-1)[step.label_B == 1.0].mean()
    wrong = step.process_reward_BT.sum(-1)[step.label_B == 0.0].mean()
    assert bool(right > wrong) is rewards_of_the_updated


def test_workers_fetch_what_the_prm_reads_and_nothing_of_the_policys_passes(monkeypatch):
    queue = filled_queue(monkeypatch)
    batch = transfer.with_fields(batch_of(queue), [*INPUT_FIELDS, "old_log_probs", "rm_scores"])
    prm = UpdatedPRM(queue, "after")
    after = PRMPhase(prm, PrimeStep.load(batch, settings())).run(batch)
    assert prm.fields_of_reference == prm.fields_of_score == list(INPUT_FIELDS)
    assert prm.fields_of_update == [*INPUT_FIELDS, REFERENCE_LOG_PROBS, LABEL, WEIGHT, OFFSET, ROW]
    assert after.fields == [*batch.fields, REFERENCE_LOG_PROBS]


@pytest.mark.parametrize("mode", ["interleaved", "before"])
def test_pairs_over_two_mini_batches_do_not_open_the_gate(monkeypatch, mode):
    """The second of them was scored by a PRM that had been trained on the first, which answers the same prompt."""
    queue = filled_queue(monkeypatch)
    prm = UpdatedPRM(queue, mode)
    prm.mini_batch_of_key = {"000000000007_2_0": 1, "000000000009_0_0": 1, "000000000009_2_0": 1}
    step, _ = run(queue, prm, process__reliability_gate=True)
    # Of the first prompt one of two pairs (1 and 0) is left, of the second its only one (1 and 0.5).
    assert step.pairs_before.total == 1.5


def with_tokens(queue):
    """What else the rollout engine writes, of other lengths for each rollout."""
    for place, fields in enumerate(queue.fields["train"].values()):
        prompt = torch.arange(2 + place) + 10
        response = torch.arange(len(fields["response_mask"])) + 50
        position_ids = torch.arange(len(prompt) + len(response))
        fields.update(prompts=prompt, responses=response, position_ids=position_ids)
        fields["input_ids"] = torch.cat((prompt, response))


@pytest.mark.parametrize("mode", ["interleaved", "after", "before"])
def test_the_prm_alone_is_trained_on_rollouts_of_earlier_steps(monkeypatch, tmp_path, mode):
    replay = PRMReplay(ReplaySettings(batches=1, ratio=0.5), tmp_path / "replay")
    accuracies = [accuracy for accuracy, _ in ROLLOUTS.values()]
    # The labels that could be drawn for each step, and how many are: half of the 5 new ones.
    for number, (pool, replayed) in enumerate([([], 0), (accuracies, 2), (accuracies, 2)], start=1):
        found = []
        for with_replay in (False, True):
            queue = filled_queue(monkeypatch)
            with_tokens(queue)
            prm = UpdatedPRM(queue, mode)
            prm.mini_batch_rows, prm.replay = 7, replay if with_replay else None
            found.append((prm, run(queue, prm, number)[0]))
        (_, plain_step), (prm, step) = found
        # The policy and the gate see what they would have seen; nothing of it is left in the store.
        torch.testing.assert_close(step.process_reward_BT, plain_step.process_reward_BT, rtol=0, atol=0)
        assert step.pairs_before == plain_step.pairs_before
        assert step.metrics["prm/replayed_rollouts"] == replayed
        keys, label_B, group_B, valid_B, _ = prm.planned
        assert int(valid_B.sum()) == 5 + replayed
        if not replayed:
            assert prm.replayed_B is prm.rows_of_plan is prm.rows_of_update is None
            continue
        again_B = prm.replayed_B
        assert [key.startswith("replay") for key in keys] == again_B.tolist()
        assert not set(group_B[again_B].tolist()) & set(group_B[~again_B].tolist())
        assert set(label_B[again_B].tolist()) <= set(pool)
        # One mini-batch of 7 rows, and two replayed ones on top.
        assert prm.rows_of_plan == prm.rows_of_update == 9 == len(keys)
        assert "multi_modal_inputs" not in prm.fields_of_update
        for key, fields in prm.rows_trained_on.items():
            # Those of padding as well, which verl copies from a rollout of another length.
            assert len(fields[REFERENCE_LOG_PROBS]) == len(fields["responses"]) == len(fields["response_mask"])
            if key.startswith("replay"):
                assert (fields[REFERENCE_LOG_PROBS] == -5.0).all()
                assert torch.equal(fields["input_ids"], torch.cat((fields["prompts"], fields["responses"])))
                assert torch.equal(fields["loss_mask"], fields["response_mask"])
