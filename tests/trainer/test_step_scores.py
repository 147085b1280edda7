# SPDX-License-Identifier: Apache-2.0
"""Scores that came with the rewards, from the store to advantages, gate and metrics."""

import json

import pytest
import torch
from small_batch import ROLLOUTS, batch_of, filled_queue, settings

from prime_ext.reward.pspo_info import FAILURE
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.reward_sources import advantages, build_sources, step_scorer

# Ends and scores of the steps; the first end of the third response is in its hole, and the fourth has no content.
SCORED = {
    "000000000007_0_0": ([1, 2], [0.75, 0.5]),
    "000000000007_1_0": ([0, 1], [0.5, 0.125]),
    "000000000007_2_0": ([0, 1, 3], [0.5, 0.25, 0.875]),
    "000000000009_0_0": ([], []),
    "000000000009_2_0": ([1], [0.375]),
}
STEPS = {"process__scorer": "step_scorer", "process__granularity": "step", "process__normalization": "none"}


def loaded(monkeypatch, changed=None, **changes):
    """The step with these scores, and what was logged; ``changed`` goes into the first rollout's info."""
    queue = filled_queue(monkeypatch)
    for number, (key, (accuracy, mask)) in enumerate(ROLLOUTS.items()):
        (ends, scores), n_tokens = SCORED[key], len(mask)
        info = {"acc": accuracy, "n_tokens": n_tokens, "steps_timed_out": 0.0, "step_ends": json.dumps(ends)}
        info |= {"step_scores": json.dumps(scores), "lowest_step_score": min(scores, default=None)}
        info |= changed or {} if number == 0 else {}
        tag = {**queue.tags["train"][key], "response_len": n_tokens}
        queue.put(key, tag, extra_fields={"reward_extra_info": info})
    batch = batch_of(queue)
    step = PrimeStep.load(batch, settings(**STEPS | changes))
    assert step_scorer(step, batch) == batch
    return step, step.metrics


def test_the_score_of_a_step_is_the_reward_of_its_last_token(monkeypatch):
    step, metrics = loaded(monkeypatch)
    assert step.process_reward_BT.tolist() == [
        [0.0, 0.75, 0.5, 0.0],
        [0.5, 0.125, 0.0, 0.0],
        # The end in the hole moves to the token before, which then closes both steps: the lower score counts.
        [0.25, 0.0, 0.0, 0.875],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.375, 0.0, 0.0],
        [0.0] * 4,
        [0.0] * 4,
    ]
    assert step.spans().count_B.tolist() == [2, 2, 2, 1, 1, 0, 0]
    source = build_sources(step, 1.0)["process"]
    assert torch.equal(source.reward_BT, step.process_reward_BT)
    assert metrics["prm/lowest_step_score"] == pytest.approx((0.5 + 0.125 + 0.25 + 0.375) / 4)
    assert metrics["prime/steps/max"] == 2 and "prm/absolute_accuracy/before_update" not in metrics


@pytest.mark.parametrize(
    ("changes", "pay"),
    [
        ({}, [1.25, 0.625, 1.125, 0.0, 0.375]),
        ({"process__granularity": "response"}, [1.25, 0.625, 1.125, 0.0, 0.375]),
        ({"process__accumulation__mode": "mean"}, [0.625, 0.3125, 0.5625, 0.0, 0.0]),
    ],
)
def test_pairs_are_ordered_by_what_a_response_is_paid_in_all(monkeypatch, changes, pay):
    """One right and two wrong responses to the first prompt; the second has labels 1 and 1/2."""
    step, metrics = loaded(monkeypatch, **changes)
    labels, groups = [1.0, 0.0, 0.0, 1.0, 0.5], [0, 0, 0, 1, 1]
    right = total = 0.0
    for one in range(5):
        for other in range(5):
            if groups[one] == groups[other] and labels[one] > labels[other]:
                weight = labels[one] - labels[other]
                total += weight
                right += weight * ((pay[one] > pay[other]) + 0.5 * (pay[one] == pay[other]))
    assert tuple(step.pairs_before) == pytest.approx((right, total))
    assert metrics["prm/pair_accuracy/before_update"] == pytest.approx(right / total)
    assert metrics["prm/reward_sum/mean"] == pytest.approx(sum(pay) / 5)


def test_advantages_are_those_of_the_two_sources_and_padding_changes_nothing(monkeypatch):
    step, metrics = loaded(monkeypatch, process__estimator="reinforce", whitening=False)
    advantage_BT, _ = advantages(step, 0.5)
    alone, _ = loaded(monkeypatch, process__coefficient=0.0, whitening=False)
    outcome_BT, _ = advantages(alone, 1.0)
    # Half the return: what this step and those behind it score.
    expected_BT = outcome_BT + 0.5 * step.process_reward_BT.flip(-1).cumsum(-1).flip(-1) * step.mask_BT
    torch.testing.assert_close(advantage_BT, expected_BT)
    assert not advantage_BT[5:].any()


def test_a_response_without_scores_has_steps_worth_nothing(monkeypatch):
    failed = {FAILURE: 1.0, "failure_detail": "step scorer: no answer", "step_scores": "[]", "lowest_step_score": None}
    step, _ = loaded(monkeypatch, changed=failed)
    assert not step.process_reward_BT[0].any() and step.spans().count_B[0] == 2


def test_steps_of_another_output_are_refused(monkeypatch):
    with pytest.raises(RuntimeError, match="rollout 000000000007_0_0 has 3 tokens, and the step scorer read 9"):
        loaded(monkeypatch, changed={"n_tokens": 9})
