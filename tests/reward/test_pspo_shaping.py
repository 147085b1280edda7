# SPDX-License-Identifier: Apache-2.0
"""Equal step scores get equal rewards from the reward manager and the implicit PRM's pipeline."""

import functools
import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pspo_rows import configuration

from prime_ext.algorithms.accumulation import MODES, StepScoreFunction
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import Credit, ProcessShaping
from prime_ext.algorithms.steps import step_spans
from prime_ext.config.checks import SettingsError
from prime_ext.config.pspo_settings import PSPOSettings
from prime_ext.reward.managers import PSPOShaping, ShapedReward

CHAINS = {"weibull": "pspo_wrs", "gaussian": "cn_ppo", "released": "pspo_released", "none": "plain"}


@functools.cache
def section():
    return OmegaConf.to_container(configuration().pspo, resolve=True)


@functools.cache
def shaping_section(shape):
    return OmegaConf.to_container(configuration(f"chain@pspo={CHAINS[shape]}").pspo)["shaping"]


def settings_with(shape="weibull", credit="sum", **accumulation):
    changed = {"credit": credit, "shaping": shaping_section(shape)}
    changed["accumulation"] = {**section()["accumulation"], **accumulation}
    if changed["accumulation"]["mode"] == "none":
        changed["accumulation"] = None
    return PSPOSettings.from_mapping({**section(), **changed})


def shape_scores(scores, **values):
    return PSPOShaping(settings_with(**values))(scores)


def through_the_implicit_pipeline(scores, settings):
    """Return shaped rewards of two tokens a step, whose own rewards sum to the scores' logits."""
    logits = [math.log(score / (1 - score)) for score in scores]
    reward_BT = torch.tensor([[x for logit in logits for x in (logit, 0.0)]], dtype=torch.float64)
    boundary_BT = torch.tensor([[False, True] * len(scores)])
    mask_BT = torch.ones_like(reward_BT)
    shaping = ProcessShaping(
        "step",
        credit=settings.credit,
        score=StepScoreFunction("sigmoid"),
        chain=ChainReward(**settings.chain_arguments()),
        reward_position=settings.reward_position,
    )
    return shaping(reward_BT, mask_BT, step_spans(boundary_BT, mask_BT))[0][0]


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_both_scorers_go_through_the_same_functions(mode):
    scores = [0.9, 0.2, 0.7, 0.6, 0.95]
    tried = 0
    for shape, place, credit in itertools.product(
        CHAINS, ("last_token", "step_ends"), get_args(Credit)
    ):
        try:
            settings = settings_with(shape, credit, mode=mode, reward_position=place)
        except SettingsError:
            continue
        values = (shape, place, credit)
        tried += 1
        ours = PSPOShaping(settings)(scores)
        theirs_T = through_the_implicit_pipeline(scores, settings)
        assert ours.reward == pytest.approx(float(theirs_T.sum()), abs=1e-9), values
        if settings.pays_tokens:
            assert theirs_T[1::2].tolist() == pytest.approx(list(ours.paid), abs=1e-9), values
        else:
            assert ours.paid == () and float(theirs_T[-1]) == pytest.approx(ours.reward, abs=1e-9)
    assert tried == 12


@given(
    st.lists(st.floats(1e-6, 1.0), max_size=40), st.sampled_from(["weibull", "gaussian", "none"])
)
def test_rewards_of_bounded_shapes_lie_between_0_and_1(scores, shape):
    result = shape_scores(scores, shape=shape, reward_position="step_ends")
    assert 0.0 <= result.reward <= 1.0 + 1e-12 and result.reward == pytest.approx(
        math.fsum(result.paid), abs=1e-9
    )


def test_chains_without_steps_or_with_score_0_earn_0():
    assert (
        shape_scores([]) == ShapedReward(0.0, 0.0, 0.0)
        and shape_scores([], mode="none").score is None
    )
    assert shape_scores([0.9, 0.0, 0.9]).reward == 0.0
