# SPDX-License-Identifier: Apache-2.0
"""From the settings to the reward sources of a step, on rollouts as the trainer sees them."""

import math
from dataclasses import replace

import pytest
import torch
from small_batch import NAN, PADDING, ROLLOUTS, batch_of, filled_queue, settings
from small_batch import loaded as load
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage as compute_advantage_by_verl

from prime_ext.algorithms.accumulation import StepScore
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.estimators import compute_advantage
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.returns import last_token_mask, return_to_go
from prime_ext.trainer.prime_step import PrimeStep, ResponseSteps
from prime_ext.trainer.reward_sources import advantages, build_sources, shaping_of
from prime_ext.utils import transfer_queue as transfer
from recipes.quickstart.model import build_tokenizer

TOKENIZER = build_tokenizer()
# The texts of the rollouts; the hole of the third one is a delimiter that is not the model's own.
TEXTS = ["1;2", "3;", "4;;5", "6", ";7"]
GREEDY = {"000000000007": 1.0, "000000000009": 0.25}


@pytest.fixture
def queue(monkeypatch):
    queue = filled_queue(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    for key, text in zip(ROLLOUTS, TEXTS, strict=True):
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        queue.put(
            key,
            queue.tags["train"][key],
            responses=torch.tensor(ids),
            values=torch.rand(len(ids), generator=generator),
            old_log_probs=-torch.rand(len(ids), generator=generator),
        )
    for key in PADDING:
        nothing = {"values": torch.tensor([NAN]), "old_log_probs": torch.tensor([NAN])}
        queue.put(key, queue.tags["train"][key], responses=torch.tensor([0]), **nothing)
    return queue


DELIMITERS = {"steps__splitter": "delimiters", "steps__delimiters": [";"]}
STEPS = {"process__granularity": "step", **DELIMITERS}
CHAIN = {**STEPS, "process__step_score": "sigmoid", "process__accumulation__mode": "geometric"}


def loaded(queue, **changes):
    """Settings that need steps find them in the tokenizer's texts."""
    steps = settings(**changes)
    found = ResponseSteps(steps.steps, TOKENIZER) if steps.needs_steps else None
    return load(queue, response_steps=found, greedy=GREEDY, **changes)


def process_source(queue, **changes):
    step = loaded(queue, process__normalization="none", **changes)
    return step, build_sources(step, 1.0)["process"]


# ---- from the PRM's scores to rewards ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"process__granularity": "response"}, {"granularity": "response"}),
        (STEPS, {"granularity": "step"}),
        ({**STEPS, "process__credit": "min_form"}, {"granularity": "step", "credit": "min_form"}),
        (
            {**CHAIN, "process__step_score_scale": 20.0, "process__accumulation__reward_position": "tokens"},
            {
                "granularity": "step",
                "score": StepScore("sigmoid", 20.0),
                "chain": ChainReward(accumulation="geometric", shape="none"),
                "reward_position": "tokens",
            },
        ),
    ],
)
def test_each_key_shapes_the_rewards_as_it_says(changes, expected):
    """What the shaping then does: tests/algorithms."""
    assert shaping_of(settings(**changes)) == replace(ProcessShaping(), **expected)


def test_rewards_relative_to_the_policy_carry_no_beta_and_a_divergence_is_no_source(queue):
    relative = {"process__target": "policy", "process__discount": 0.0, "process__estimator": "reinforce"}
    step, source = process_source(queue, **relative)
    plain, source_of_reference = process_source(queue)  # beta * log pi_prm, as the reference is 0
    assert torch.equal(source_of_reference.reward_BT, plain.process_reward_BT)
    assert torch.equal(source_of_reference.mask_BT, plain.mask_BT)
    expected_BT = plain.process_reward_BT / 0.05 - step.old_log_prob_BT
    torch.testing.assert_close(source.reward_BT, torch.where(step.mask_BT.bool(), expected_BT, 0.0))
    torch.testing.assert_close(compute_advantage(source, step.mask_BT, step.group_B), source.reward_BT)
    divergence = loaded(queue, process__form="kl", process__target="policy")
    assert set(build_sources(divergence, 1.0)) == {"outcome"}


@pytest.mark.parametrize("delimiters", [";", TOKENIZER.convert_tokens_to_ids(";")])
def test_step_rewards_are_paid_at_the_end_of_each_step(queue, delimiters):
    step, source = process_source(queue, **STEPS | {"steps__delimiters": [delimiters]})
    # "4" has a hole behind it, so that its step goes on to the next delimiter of the model. A response that begins with
    # a delimiter: in the text nothing is written before it, by token it is a step.
    last = [0, 1, 0, 0] if delimiters == ";" else [1, 1, 0, 0]
    assert source.mask_BT.tolist()[:5] == [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], last]
    reward_BT, r = step.process_reward_BT, source.reward_BT
    assert float(r[0, 1]) == pytest.approx(float(reward_BT[0, :2].sum())) and float(r[0, 2]) == float(reward_BT[0, 2])
    torch.testing.assert_close(r.sum(-1), reward_BT.sum(-1))
    assert step.metrics["prime/steps/mean"] == pytest.approx((2 + 1 + 2 + 1 + sum(last)) / 5)
    assert step.metrics["prime/steps/max"] == 2 and step.metrics["prime/steps/timed_out"] == 0


def test_a_pattern_that_takes_too_long_makes_one_step_and_is_counted(queue, monkeypatch):
    def never(*_):
        raise TimeoutError

    monkeypatch.setattr("prime_ext.step_rm.response_cut.split_steps", never)
    step = loaded(queue, process__granularity="step", steps__splitter="pattern", steps__pattern="^x")
    source = build_sources(step, 1.0)["process"]
    assert torch.equal(source.mask_BT, last_token_mask(step.mask_BT))
    assert step.metrics["prime/steps/timed_out"] == len(ROLLOUTS)


def test_weibull_shaping_of_implicit_step_rewards_is_paid_at_the_last_token(queue):
    step, source = process_source(queue, **CHAIN, process__shaping__name="weibull", process__step_score_scale=20.0)
    assert torch.equal(source.mask_BT, last_token_mask(step.mask_BT))
    # beta * q summed over each step, by hand: "1;" "2" / "3;" / "4;;" "5" / "6" / ";7".
    r = step.process_reward_BT.tolist()
    sums = [[r[0][0] + r[0][1], r[0][2]], [r[1][0] + r[1][1]], [r[2][0] + r[2][2], r[2][3]], [r[3][0]], [sum(r[4])]]
    means = [math.prod(1 / (1 + math.exp(-20 * one)) for one in steps) ** (1 / len(steps)) for steps in sums]
    # Two steps are worth .888150 of their geometric mean, one step nothing; padding has none.
    expected = [0.888150 * mean * (len(steps) == 2) for mean, steps in zip(means, sums, strict=True)]
    assert source.reward_BT.sum(-1).tolist() == pytest.approx([*expected, 0.0, 0.0], abs=1e-6)
    chain = {name.removeprefix("prime/chain/"): value for name, value in step.metrics.items() if "/chain/" in name}
    # A chain of one step keeps its score, though it is paid nothing.
    found = {"reward": sum(expected) / 5, "factor": 0.888150 * 2 / 5, "score": sum(means) / 5, "at_most_one_step": 0.6}
    assert chain == pytest.approx(found, abs=1e-6)


# ---- estimators; every one with any rewards: test_turns.py --------------------------------------------------------


def options_of(outcome, **changes):
    return {"outcome__estimator": outcome, "process__coefficient": 0.0, "whitening": False, **changes}


@pytest.mark.parametrize(("coefficient", "discount", "whitening"), [(1.0, 0.5, False), (0.0, 1.0, True)])
def test_a_source_that_does_not_count_changes_no_bit(queue, coefficient, discount, whitening):
    plain = {"process__estimator": "reinforce", "process__normalization": "none", "whitening": whitening}
    step = loaded(
        queue,
        process__coefficient=coefficient,
        process__discount=discount,
        outcome__coefficient=1 - coefficient,
        **plain,
    )
    advantage_BT, _ = advantages(step, 1.0)
    if coefficient:
        torch.testing.assert_close(advantage_BT, return_to_go(step.process_reward_BT, step.mask_BT, discount))
    else:
        step.process_reward_BT = None
        assert torch.equal(advantages(step, 1.0)[0], advantage_BT)


def test_with_gae_for_both_sources_one_critic_values_the_weighted_sum_of_the_rewards(queue):
    both = {"outcome__coefficient": 2.0, "process__coefficient": 0.5, "process__estimator": "gae"}
    step = loaded(queue, **options_of("gae", **both))
    advantage_BT, return_BT = advantages(step, 0.5)
    normalizer = step.metrics["prime/process/normalizer"] + 1e-6
    reward_BT = 2.0 * step.reward_BT.sum(-1)[:, None] * last_token_mask(step.mask_BT)
    reward_BT = reward_BT + 0.5 * 0.5 * step.process_reward_BT / normalizer
    expected_BT = return_to_go(reward_BT, step.mask_BT)
    torch.testing.assert_close(return_BT, expected_BT)
    value_BT = torch.where(step.mask_BT.bool(), step.value_BT, 0.0)
    torch.testing.assert_close(advantage_BT, expected_BT - value_BT)
    assert "prime/outcome_and_process/return_std" in step.metrics
    shut_BT, _ = advantages(loaded(queue, **options_of("gae", **both)), 0.0)
    torch.testing.assert_close(shut_BT, 2.0 * (step.reward_BT.sum(-1)[:, None] * step.mask_BT - value_BT))


def test_remax_subtracts_the_greedy_reward_and_the_mean_of_the_prompt_where_there_is_none(queue):
    advantage_BT, _ = advantages(loaded(queue, **options_of("remax")), 1.0)
    assert advantage_BT[:5, 0].tolist() == pytest.approx([0.0, -1.0, -1.0, 0.75, 0.25])
    step = load(queue, greedy={"000000000007": NAN, "000000000009": 0.0}, **options_of("remax"))
    advantage_BT, _ = advantages(step, 1.0)
    assert advantage_BT[:5, 0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1.0, 0.5])


def test_the_prm_as_value_function_is_the_outcome_minus_the_process_rewards_so_far(queue):
    step = loaded(queue, **options_of("prm_value"))
    advantage_BT, _ = advantages(step, 1.0)
    before_BT = step.process_reward_BT.cumsum(-1) - step.process_reward_BT
    expected_BT = (step.reward_BT.sum(-1)[:, None] - before_BT) * step.mask_BT
    torch.testing.assert_close(advantage_BT, expected_BT)


@pytest.mark.parametrize("name", ["rloo", "grpo", "remax", "gae"])
@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (0.9, 0.8)])
def test_with_a_kl_penalty_of_every_token_each_outcome_estimator_is_verls(queue, name, discount, gae_lambda):
    generator = torch.Generator().manual_seed(1)
    for key, (accuracy, mask) in ROLLOUTS.items():
        reward_T = -torch.rand(len(mask), generator=generator) * torch.tensor(mask)
        reward_T[-1] += accuracy
        queue.put(key, queue.tags["train"][key], token_level_rewards=reward_T)
    step = load(
        queue,
        scored=False,
        kl_in_reward=True,
        greedy=GREEDY,
        # The critic's target knows of no coefficient.
        **options_of(name, whitening=name == "gae", outcome__coefficient=3.0 if name == "gae" else 1.0),
    )
    # verl's other estimators have no discount.
    step.gamma, step.lam = discount if name == "gae" else 1.0, gae_lambda
    advantage_BT, return_BT = advantages(step, 1.0)

    rows = slice(len(ROLLOUTS))
    data = transfer.fetch_padded(batch_of(queue, list(ROLLOUTS)), ["response_mask", "token_level_rewards", "values"])
    tensors = {"reward_baselines": step.greedy_B[rows]} if name == "remax" else {}
    verls = compute_advantage_by_verl(
        DataProto.from_dict({**data, **tensors}, {"uid": step.group_B[rows].numpy().astype(object)}),
        name,
        gamma=discount,
        lam=gae_lambda,
        config=AlgoConfig(gamma=discount, lam=gae_lambda),
    )
    mask_BT = step.mask_BT[rows]
    torch.testing.assert_close(advantage_BT[rows], verls.batch["advantages"] * mask_BT, atol=1e-6, rtol=1e-6)
    if name == "gae":
        torch.testing.assert_close(return_BT[rows], verls.batch["returns"] * mask_BT, atol=1e-6, rtol=1e-6)
    assert advantage_BT[rows].any() and not advantage_BT[len(ROLLOUTS) :].any()


def test_an_advantage_that_verl_has_computed_is_taken_as_it_is(queue):
    generator = torch.Generator().manual_seed(1)
    for key in (*ROLLOUTS, *PADDING):
        mask = queue.fields["train"][key]["response_mask"]
        queue.put(key, queue.tags["train"][key], advantages=torch.randn(len(mask), generator=generator))
    step = load(queue, scored=False, **options_of("opo", outcome__coefficient=2.0))
    advantage_BT, _ = advantages(step, 1.0)
    verls_BT = transfer.fetch_padded(batch_of(queue), ["advantages"])["advantages"]
    torch.testing.assert_close(advantage_BT, 2.0 * verls_BT * step.mask_BT)
    assert advantage_BT.any()


# ---- rows --------------------------------------------------------------------------------------------------------


def test_a_reward_outside_the_mask_is_paid_at_the_last_valid_token(queue):
    """The outcome of a response that ends in a tool's answer; verl's gae would never see it."""
    key = next(iter(ROLLOUTS))
    rewards = torch.tensor([-0.1, 0.0, 0.7])
    queue.put(key, queue.tags["train"][key], response_mask=torch.tensor([1, 1, 0]), token_level_rewards=rewards)
    step = PrimeStep.load(batch_of(queue), settings(), True)
    assert step.reward_BT[0].tolist() == pytest.approx([-0.1, 0.7, 0.0, 0.0])
    assert not step.reward_BT[len(ROLLOUTS) :].any()
