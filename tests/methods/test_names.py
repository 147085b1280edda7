# SPDX-License-Identifier: Apache-2.0
"""Traits of estimators and losses, against what these do."""

import pytest
import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from prime_ext import names
from prime_ext.algorithms.estimators import ESTIMATORS, RewardSource, compute_advantage
from prime_ext.algorithms.prm_losses import PRM_LOSSES

OURS = [name for name in names.ESTIMATORS if name in ESTIMATORS]
# The last token of the second rollout does not count.
MASK_BT = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()


def estimate(name, reward_BT, group_B, mask_BT=MASK_BT):
    source = RewardSource(
        reward_BT,
        mask_BT,
        estimator=name,
        value_BT=torch.zeros(mask_BT.shape),
        turn_end_BT=torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1]]).bool(),
    )
    return compute_advantage(source, mask_BT, group_B)


@pytest.mark.parametrize("name", OURS)
def test_estimators_that_compare_rollouts_need_two_of_a_prompt(name):
    reward_BT = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.25]])
    alone_BT = estimate(name, reward_BT, torch.tensor([0, 1, 2]))
    together_BT = estimate(name, reward_BT, torch.tensor([0, 0, 0]))
    assert names.compares_rollouts(name) == (not torch.equal(alone_BT, together_BT))
    assert names.compares_rollouts(name) == (not alone_BT.any())


def test_verls_registry_has_the_estimators_that_the_table_says():
    in_verl = {name for name, traits in names.ESTIMATORS.items() if traits.in_verl}
    assert in_verl <= set(ADV_ESTIMATOR_REGISTRY)
    others = set(names.ESTIMATORS) - in_verl
    # Only those of ours that verl lacks.
    assert others == {"maxrl", "rloo_per_token", "turn_rloo", "reinforce", "prm_value"}
    assert not others & set(ADV_ESTIMATOR_REGISTRY)


def test_verls_estimators_of_a_response_read_the_sum_of_its_rewards():
    tokens = names.list_token_estimators()
    assert tokens == ["gae", "reinforce_plus_plus"]
    summed = {name for name, traits in names.ESTIMATORS.items() if traits.sums_response}
    assert summed == {
        *("rloo", "grpo", "maxrl", "turn_rloo"),
        *("reinforce_plus_plus_baseline", "grpo_vectorized"),
        *("grpo_passk", "rloo_vectorized", "opo", "gpg"),
    }
    assert {name for name in names.ESTIMATORS if names.compares_rollouts(name)} == {
        *summed,
        "rloo_per_token",
    }
    assert not names.compares_rollouts("unknown")


def test_estimators_name_the_model_whose_values_they_read():
    models = {name: names.find_value_model(name) for name in names.ESTIMATORS}
    assert {name: model for name, model in models.items() if model} == {
        "gae": "critic",
        "prm_value": "prm",
    }
    assert names.find_value_model("unknown") is None


@pytest.mark.parametrize(
    ("source", "estimators"),
    [
        ("outcome", ["rloo", "grpo", "maxrl", "turn_rloo", "reinforce", "gae", "prm_value"]),
        ("process", ["rloo", "grpo", "rloo_per_token", "turn_rloo", "reinforce", "gae"]),
        ("turns", ["rloo", "grpo", "turn_rloo", "reinforce"]),
    ],
)
def test_sources_have_their_estimators(source, estimators):
    assert names.list_estimators(source) == estimators


@pytest.mark.parametrize(
    ("name", "needs_scores", "takes_fractions"),
    [("ce", False, True), ("dpo", True, False), ("nca", False, True), ("kto", True, False)],
)
def test_losses_need_scores_and_take_fractions_as_the_table_says(
    name, needs_scores, takes_fractions
):
    loss = PRM_LOSSES[name]
    assert loss.needs_scores == needs_scores
    assert names.PRM_LOSSES[name] == names.LossTraits(needs_scores, takes_fractions)
    label_B, group_B = torch.tensor([1.0, 0.5]), torch.zeros(2, dtype=torch.long)
    score_B = torch.zeros(2)
    if takes_fractions:
        assert loss.prepare(label_B, group_B, torch.ones(2), score_B).target_B.isfinite().all()
    else:
        with pytest.raises(ValueError, match="takes labels 0 and 1 only, got 0.5"):
            loss.prepare(label_B, group_B, torch.ones(2), score_B)


def test_only_shapes_without_parameters_are_plain():
    assert names.list_plain_shapes() == ["released"]
