# SPDX-License-Identifier: Apache-2.0
"""The tensors of one step: what is read from the store, and what becomes the advantage."""

import logging

import pytest
import torch
from small_batch import NAN, PADDING, ROLLOUTS, filled_queue, loaded

from prime_ext.trainer.reward_sources import NotFinite, advantages


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


@pytest.mark.parametrize("value, said", [(0.5, "0.5"), (NAN, "not in (-inf, 0]")])
def test_impossible_log_probabilities_are_warned_about_inside_the_mask_only(queue, caplog, value, said):
    step = loaded(queue, scored=False)
    step.reference_log_prob_BT = torch.zeros_like(step.mask_BT)
    log_prob_BT = torch.where(step.mask_BT.bool(), -1.0, torch.tensor(value))
    with caplog.at_level(logging.WARNING):
        step.set_scores(log_prob_BT, beta=0.05)
        assert not caplog.records and advantages(step, 1.0)[0].isfinite().all()
        log_prob_BT[0, 1] = value
        step.set_scores(log_prob_BT, beta=0.05)
    assert "log-probabilities of the PRM" in caplog.text and said in caplog.text


def test_rewards_that_are_not_finite_end_the_run_before_the_policy_is_trained_on_them(queue):
    step = loaded(queue)
    step.process_reward_BT[0, 0] = step.metrics["prm/loss"] = NAN
    with pytest.raises(NotFinite, match=r"not finite because of process \(prm/loss: nan\).*prm.model.path"):
        advantages(step, 1.0)
