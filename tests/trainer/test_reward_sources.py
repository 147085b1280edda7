# SPDX-License-Identifier: Apache-2.0
"""Reward sources and advantages of a step, from settings and scores, on a trainer's rollouts."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from small_batch import NAN, PADDING, ROLLOUTS, SHAPINGS, Case, filled_queue, get_batch, settings
from small_batch import loaded as load
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.advantage import outcome_source
from prime_ext.algorithms.estimators import compute_advantage
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.algorithms.returns import NOISE_MARGIN, mark_last_token, return_to_go
from prime_ext.algorithms.steps import step_spans
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts, Steps
from prime_ext.methods.step_scorer.scorer import FAILURE, StepRewardModel
from prime_ext.methods.step_scorer.source import build_shaping
from prime_ext.names import Credit
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step_rm.response_cut import ResponseCutter
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from recipes.quickstart.small_model import build_tokenizer

TOKENIZER = build_tokenizer()
# The texts of the rollouts; the hole of the third one is a delimiter that is not the model's own.
TEXTS = ["1;2", "3;", "4;;5", "6", ";7"]


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


DELIMITERS = {"steps": {"delimiters": [";"]}}
STEPS = {"process__form": "steps", **DELIMITERS}
CHAIN = {**STEPS, "process__step_score": "sigmoid", "process__accumulation__mode": "geometric"}


def loaded(queue, **changes):
    """Load rollouts; settings that need steps find them in the tokenizer's texts."""
    steps = settings(**changes)
    cutter = ResponseCutter(steps.steps, TOKENIZER) if steps.needs.steps else None
    return load(queue, cutter=cutter, **changes)


def process_source(queue, **changes):
    case = loaded(queue, process__normalization="none", **changes)
    return case, case.sources().by_name["process"]


# ---- from the PRM's scores to rewards ------------------------------------------------------------


def test_relative_rewards_have_no_beta_and_divergences_no_source(queue):
    relative = {
        "process__target": "policy",
        "process__discount": 0.0,
        "process__estimator": "reinforce",
    }
    case, source = process_source(queue, **relative)
    plain, source_of_reference = process_source(queue)  # beta * log pi_prm, as the reference is 0
    rollouts = case.rollouts
    plain_BT = plain.scored.reward_BT
    assert torch.equal(source_of_reference.reward_BT, plain_BT)
    assert torch.equal(source_of_reference.mask_BT, rollouts.mask_BT)
    expected_BT = plain_BT / 0.05 - rollouts.old_log_prob_BT
    torch.testing.assert_close(
        source.reward_BT, torch.where(rollouts.mask_BT.bool(), expected_BT, 0.0)
    )
    torch.testing.assert_close(
        compute_advantage(source, rollouts.mask_BT, rollouts.group_B), source.reward_BT
    )
    divergence = loaded(queue, process__form="kl")
    assert set(divergence.sources().by_name) == {"outcome"}


@pytest.mark.parametrize("delimiters", [";", TOKENIZER.convert_tokens_to_ids(";")])
def test_step_rewards_are_paid_at_the_end_of_each_step(queue, delimiters):
    case, source = process_source(queue, **STEPS | {"steps": {"delimiters": [delimiters]}})
    # "4" has a hole after it, so that its step goes on to the next delimiter of the model. A
    # response that begins with a delimiter: in the text nothing is written before it, by token it
    # is a step.
    last = [0, 1, 0, 0] if delimiters == ";" else [1, 1, 0, 0]
    assert source.mask_BT.tolist()[:5] == [
        [0, 1, 1, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 1],
        [1, 0, 0, 0],
        last,
    ]
    reward_BT = case.scored.reward_BT
    r = source.reward_BT
    metrics = case.sources().metrics
    assert float(r[0, 1]) == pytest.approx(float(reward_BT[0, :2].sum())) and float(
        r[0, 2]
    ) == float(reward_BT[0, 2])
    torch.testing.assert_close(r.sum(-1), reward_BT.sum(-1))
    assert metrics["prime/steps/mean"] == pytest.approx((2 + 1 + 2 + 1 + sum(last)) / 5)
    assert metrics["prime/steps/max"] == 2 and metrics["prime/steps/timed_out"] == 0


def test_a_slow_pattern_makes_one_step_and_is_counted(queue, monkeypatch):
    def never(*_):
        raise TimeoutError

    monkeypatch.setattr("prime_ext.step_rm.response_cut.split_steps", never)
    case = loaded(queue, process__form="steps", steps={"pattern": "^x"})
    sources = case.sources()
    assert torch.equal(sources.by_name["process"].mask_BT, mark_last_token(case.rollouts.mask_BT))
    assert sources.metrics["prime/steps/timed_out"] == len(ROLLOUTS)


def test_weibull_shaped_step_rewards_are_paid_at_the_last_token(queue):
    case, source = process_source(
        queue, **CHAIN, process__shaping=SHAPINGS["pspo_wrs"], process__step_score_scale=20.0
    )
    assert torch.equal(source.mask_BT, mark_last_token(case.rollouts.mask_BT))
    # beta * q summed over each step, by hand: "1;" "2" / "3;" / "4;;" "5" / "6" / ";7".
    r = case.scored.reward_BT.tolist()
    metrics = case.sources().metrics
    sums = [
        [r[0][0] + r[0][1], r[0][2]],
        [r[1][0] + r[1][1]],
        [r[2][0] + r[2][2], r[2][3]],
        [r[3][0]],
        [sum(r[4])],
    ]
    means = [
        math.prod(1 / (1 + math.exp(-20 * one)) for one in steps) ** (1 / len(steps))
        for steps in sums
    ]
    # Two steps are worth .888150 of their geometric mean, one step nothing; padding has none.
    expected = [
        0.888150 * mean * (len(steps) == 2) for mean, steps in zip(means, sums, strict=True)
    ]
    assert source.reward_BT.sum(-1).tolist() == pytest.approx([*expected, 0.0, 0.0], abs=1e-6)
    chain = {
        name.removeprefix("prime/chain/"): value
        for name, value in metrics.items()
        if "/chain/" in name
    }
    # A chain of one step keeps its score, though it is paid nothing.
    expected_metrics = {
        "reward": sum(expected) / 5,
        "factor": 0.888150 * 2 / 5,
        "score": sum(means) / 5,
        "at_most_one_step": 0.6,
    }
    assert chain == pytest.approx(expected_metrics, abs=1e-6)


# ---- estimators; every one with any rewards: test_turns.py ---------------------------------------


def get_options(outcome, **changes):
    return {"outcome__estimator": outcome, "process__form": "none", "whitening": False, **changes}


@pytest.mark.parametrize(
    ("coefficient", "discount", "whitening"), [(1.0, 0.5, False), (0.0, 1.0, True)]
)
def test_a_source_that_does_not_count_changes_no_bit(queue, coefficient, discount, whitening):
    plain = {
        "process__estimator": "reinforce",
        "process__normalization": "none",
        "whitening": whitening,
    }
    if not coefficient:
        case = loaded(queue, process__form="none", whitening=whitening)
        assert torch.equal(case.paid(None).step().advantage_BT, case.step().advantage_BT)
        return
    case = loaded(
        queue,
        process__coefficient=coefficient,
        process__discount=discount,
        outcome__coefficient=1 - coefficient,
        **plain,
    )
    advantage_BT = case.step().advantage_BT
    reward_BT = case.scored.reward_BT
    torch.testing.assert_close(
        advantage_BT, return_to_go(reward_BT, case.rollouts.mask_BT, discount)
    )


def test_one_critic_values_the_weighted_sum_of_both_sources(queue):
    both = {
        "process__form": "tokens",
        "outcome__coefficient": 2.0,
        "process__coefficient": 0.5,
        "process__estimator": "gae",
    }
    case = loaded(queue, **get_options("gae", **both))
    result = case.step(0.5)
    mask_BT = case.rollouts.mask_BT
    outcome_B = case.rollouts.reward_BT.sum(-1)
    normalizer = result.metrics["prime/process/normalizer"] + 1e-6
    reward_BT = 2.0 * outcome_B[:, None] * mark_last_token(mask_BT)
    reward_BT = reward_BT + 0.5 * 0.5 * case.scored.reward_BT / normalizer
    expected_BT = return_to_go(reward_BT, mask_BT)
    torch.testing.assert_close(result.return_BT, expected_BT)
    value_BT = torch.where(mask_BT.bool(), case.rollouts.value_BT, 0.0)
    torch.testing.assert_close(result.advantage_BT, expected_BT - value_BT)
    assert "prime/outcome_and_process/return_std" in result.metrics
    shut = case.step(0.0)
    torch.testing.assert_close(shut.advantage_BT, 2.0 * (outcome_B[:, None] * mask_BT - value_BT))


def test_the_coefficient_scales_advantages_but_not_the_critics_target(
    queue,
):
    """Against verl's own estimators: tests/algorithms."""
    case = loaded(queue, **get_options("gae", outcome__coefficient=3.0))
    result = case.step(gamma=0.9, gae_lambda=0.8)
    rollouts = case.rollouts
    plain = outcome_source(
        rollouts.reward_BT,
        rollouts.mask_BT,
        "gae",
        discount=0.9,
        gae_lambda=0.8,
        value_BT=rollouts.value_BT,
    )
    expected_BT = compute_advantage(plain, rollouts.mask_BT, rollouts.group_B)
    torch.testing.assert_close(result.advantage_BT, 3.0 * expected_BT)
    torch.testing.assert_close(
        result.return_BT, expected_BT + torch.where(rollouts.mask_BT.bool(), rollouts.value_BT, 0.0)
    )


def test_an_advantage_of_verl_is_used_unchanged(queue):
    generator = torch.Generator().manual_seed(1)
    for key in (*ROLLOUTS, *PADDING):
        mask = queue.fields["train"][key]["response_mask"]
        queue.put(
            key, queue.tags["train"][key], advantages=torch.randn(len(mask), generator=generator)
        )
    case = load(queue, **get_options("opo", outcome__coefficient=2.0))
    advantage_BT = case.step().advantage_BT
    verls_BT = case.rollouts.store.fetch("advantages")["advantages"]
    torch.testing.assert_close(advantage_BT, 2.0 * verls_BT * case.rollouts.mask_BT)
    assert advantage_BT.any()


# ---- rows ----------------------------------------------------------------------------------------


def test_rewards_outside_the_mask_move_to_the_last_token(queue):
    """The outcome of a response that ends in a tool's answer; verl's gae would never see it."""
    key = next(iter(ROLLOUTS))
    rewards = torch.tensor([-0.1, 0.0, 0.7])
    queue.put(
        key,
        queue.tags["train"][key],
        response_mask=torch.tensor([1, 1, 0]),
        token_level_rewards=rewards,
    )
    reward_BT = load(queue, kl_in_reward=True).rollouts.reward_BT
    assert reward_BT[0].tolist() == pytest.approx([-0.1, 0.7, 0.0, 0.0])
    assert not reward_BT[len(ROLLOUTS) :].any()


# ---- scores of a step reward model ---------------------------------------------------------------


# Ends and scores of the steps; the first end of the third response is in its hole, and the fourth
# has no content.
SCORED = {
    "000000000007_0_0": ([1, 2], [0.75, 0.5]),
    "000000000007_1_0": ([0, 1], [0.5, 0.125]),
    "000000000007_2_0": ([0, 1, 3], [0.5, 0.25, 0.875]),
    "000000000009_0_0": ([], []),
    "000000000009_2_0": ([1], [0.375]),
}
SCORES_OF_STEPS = {
    "process__form": "step_scorer",
    "process__credit": "sum",
    "process__estimator": "rloo",
}


def with_scores(monkeypatch, changed=None, kl_in_reward=False, **changes):
    """Return rollouts with step scores as a case; ``changed`` goes into the first one's info."""
    queue = filled_queue(monkeypatch)
    for number, (key, (accuracy, mask)) in enumerate(ROLLOUTS.items()):
        (ends, scores) = SCORED[key]
        n_tokens = len(mask)
        info = {
            "acc": accuracy,
            "n_tokens": n_tokens,
            "steps_timed_out": 0.0,
            "step_ends": json.dumps(ends),
        }
        info |= {"step_scores": json.dumps(scores), "lowest_step_score": min(scores, default=None)}
        info |= changed or {} if number == 0 else {}
        tag = {**queue.tags["train"][key], "response_len": n_tokens}
        queue.put(key, tag, extra_fields={"reward_extra_info": info})
    options = settings(**SCORES_OF_STEPS | changes)
    rollouts = load_rollouts(TransferQueueStore(get_batch(queue)), options, 1, kl_in_reward)
    scorer = StepRewardModel(build_shaping(options.process))
    return Case(rollouts, scorer.score_and_update(rollouts), options)


def test_a_steps_score_is_its_last_tokens_reward(monkeypatch):
    case = with_scores(monkeypatch)
    assert case.scored.reward_BT.tolist() == [
        [0.0, 0.75, 0.5, 0.0],
        [0.5, 0.125, 0.0, 0.0],
        # The end in the hole moves to the token before, which then closes two steps: their scores
        # are added there.
        [0.75, 0.0, 0.0, 0.875],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.375, 0.0, 0.0],
        [0.0] * 4,
        [0.0] * 4,
    ]
    assert case.scored.steps.spans.count_B.tolist() == [2, 2, 3, 0, 1, 0, 0]
    assert torch.equal(case.sources().by_name["process"].reward_BT, case.scored.reward_BT)
    metrics = case.step().metrics
    assert metrics["prm/lowest_step_score"] == pytest.approx((0.5 + 0.125 + 0.25 + 0.375) / 4)
    assert metrics["prime/steps/max"] == 3 and "prm/absolute_accuracy/before_update" not in metrics


def test_the_scores_of_wrong_responses_are_centered(monkeypatch):
    """The two wrong responses to the first prompt have the mean .5625; a label of 1/2 is wrong."""
    case = with_scores(monkeypatch, process__center_wrong=True)
    assert case.sources().by_name["process"].reward_BT.tolist() == [
        [0.0, 0.75, 0.5, 0.0],
        [-0.0625, -0.4375, 0.0, 0.0],
        [0.1875, 0.0, 0.0, 0.3125],
        *[[0.0] * 4] * 4,
    ]
    options = with_scores(monkeypatch).settings.process
    assert case.settings.process.needs.labels and not options.needs.labels
    # The same for an implicit PRM's rewards of tokens.
    tokens = replace(case, settings=settings(process__center_wrong=True))
    paid_BT = tokens.sources().by_name["process"].reward_BT
    for rows in ([1, 2], [4]):
        assert float(paid_BT[rows].sum()) == pytest.approx(0, abs=1e-6)
    largest = float(case.scored.reward_BT[0].sum())
    torch.testing.assert_close(paid_BT[0] / paid_BT[0].sum(), case.scored.reward_BT[0] / largest)


@pytest.mark.parametrize(
    ("changes", "pay"),
    [
        ({}, [1.25, 0.625, 1.625, 0.0, 0.375]),
        ({"process__granularity": "response"}, [1.25, 0.625, 1.625, 0.0, 0.375]),
        ({"process__accumulation__mode": "mean"}, [0.625, 0.3125, 1.625 / 3, 0.0, 0.0]),
    ],
)
def test_pairs_are_ordered_by_the_total_reward_of_a_response(monkeypatch, changes, pay):
    """One right and two wrong responses to the first prompt; the second has labels 1 and 1/2."""
    scored = with_scores(monkeypatch, **changes).scored
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5])
    groups = torch.tensor([0, 0, 0, 1, 1])
    assert scored.pairs == count_pairs(torch.tensor(pay), labels, groups)
    assert scored.metrics["prm/pair_accuracy/before_update"] == scored.pairs.accuracy
    assert scored.metrics["prm/reward_sum/mean"] == pytest.approx(sum(pay) / 5)


@pytest.mark.parametrize("estimator", ["reinforce", "rloo"])
@pytest.mark.parametrize("position", ["last_token", "step_ends", "tokens"])
@pytest.mark.parametrize("credit", get_args(Credit))
def test_pspo_pays_the_chain_less_the_penalty(monkeypatch, credit, position, estimator):
    """The geometric mean times the Weibull, computed by hand, in the shares of each position."""
    if position != "step_ends" and credit != "sum":
        return
    changes = {
        "outcome__coefficient": 0.0,
        "filter__enable": False,
        "process__credit": credit,
        "process__shaping": SHAPINGS["pspo_wrs"],
        "process__accumulation__reward_position": position,
        "process__estimator": estimator,
        "process__gate": None,
    }
    case = with_scores(monkeypatch, kl_in_reward=True, **changes)
    source = case.sources().by_name["process"]
    for row, (ends, scores) in enumerate(SCORED.values()):
        mask_T = case.rollouts.mask_BT[row, : len(list(ROLLOUTS.values())[row][1])]
        n = len(scores)
        reward = 0.0
        if n > 1:
            weibull = 10.735 * 1.5 / 8 * (n / 8) ** 0.5 * math.exp(-((n / 8) ** 1.5))
            reward = math.prod(scores) ** (1 / n) * weibull
        own = [token for token, valid in enumerate(mask_T.tolist()) if valid]
        paid_T = torch.zeros(len(mask_T))
        if position == "last_token":
            paid_T[own[-1]] = reward
        elif position == "tokens":
            paid_T[own] = reward / len(own)
        else:
            weights = [math.exp(-score / 0.1) for score in scores]
            for end, weight in zip(ends, weights, strict=True):
                share = 1 / n if credit == "sum" else weight / sum(weights)
                # The last token of the policy at or before the end; steps may share it.
                paid_T[max(token for token in own if token <= end)] += share * reward
        expected_T = paid_T - 0.25 / len(mask_T)
        kept_T = source.kept_reward()[row, : len(mask_T)]
        # The penalty of a tool's answer counts at the last token.
        assert float(kept_T.sum()) == pytest.approx(float(expected_T.sum()), abs=1e-6)
        if estimator == "reinforce" and mask_T.all():
            torch.testing.assert_close(kept_T, expected_T)


def test_a_response_without_scores_has_steps_worth_nothing(monkeypatch):
    failed = {
        FAILURE: 1.0,
        "failure_detail": "step scorer: no answer",
        "step_scores": "[]",
        "lowest_step_score": None,
    }
    scored = with_scores(monkeypatch, changed=failed).scored
    assert not scored.reward_BT[0].any() and scored.steps.spans.count_B[0] == 2


def test_rewards_that_are_not_normalized_are_divided_by_one(queue):
    metrics = loaded(queue, process__normalization="none").step().metrics
    assert metrics["prime/process/normalizer"] == 1.0


def test_steps_of_another_output_are_refused(monkeypatch):
    with pytest.raises(
        RuntimeError, match="rollout 000000000007_0_0 has 3 tokens, and the step scorer read 9"
    ):
        with_scores(monkeypatch, changed={"n_tokens": 9})


# ---- rounding noise never becomes a reward, and a signal is not touched by the floor against it --


ROWS = 64
TOKENS = 40
NOISE = 0.001
AT_STEPS = {"process__form": "steps", "steps": "sentences"}
GEOMETRIC = {"process__step_score": "sigmoid", "process__accumulation__mode": "geometric"}
PIPELINES = {
    "token": {},
    "no return": {"process__discount": 0.0},
    "response": {"process__form": "steps", "process__granularity": "response"},
    "smallest step": AT_STEPS | {"process__credit": "min_form"},
    "chain": AT_STEPS | GEOMETRIC,
}
pipelines = pytest.mark.parametrize("pipeline", PIPELINES)


def get_case(seed, pipeline, signal, noise):
    """Return 16 prompts of four rollouts; rewards are rounding noise plus ``signal`` per token."""
    options = settings(process__normalization="batch_max", whitening=False, **PIPELINES[pipeline])
    generator = torch.Generator().manual_seed(seed + 1)
    length_B = torch.randint(10, TOKENS + 1, (ROWS,), generator=generator)
    mask_BT = (torch.arange(TOKENS) < length_B[:, None]).float()
    outcome_B = torch.arange(ROWS).remainder(2).float()
    drawn_BT = torch.randn(ROWS, TOKENS, generator=generator)
    nobody = TransferQueueStore(KVBatchMeta())
    rollouts = Rollouts(
        nobody,
        [],
        mask_BT,
        outcome_B[:, None] * mark_last_token(mask_BT),
        outcome_B,
        torch.arange(ROWS) // 4,
    )
    steps = Steps(step_spans((torch.arange(TOKENS) % 5 == 4).expand(ROWS, TOKENS), mask_BT))
    return Case(
        rollouts,
        ScoredRollouts((NOISE + signal) * drawn_BT * mask_BT, noise=noise, steps=steps),
        options,
    )


def valid_advantages(case):
    return case.step().advantage_BT[case.rollouts.mask_BT.bool()]


def of_noise(seed, pipeline, noise):
    """Return what rounding noise adds to the advantages of a PRM without a signal."""
    case = get_case(seed, pipeline, 0.0, noise)
    silent = case.paid(torch.zeros_like(case.rollouts.mask_BT), noise)
    return valid_advantages(case) - valid_advantages(silent)


@pipelines
@examples(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_noise_alone_stays_far_below_the_outcome(pipeline, seed):
    advantage_N = of_noise(seed, pipeline, NOISE)
    # The outcome's advantages are 0.67 from 0.
    assert float(advantage_N.std()) < 2 / NOISE_MARGIN
    assert float(advantage_N.abs().max()) < 4 / NOISE_MARGIN


@pipelines
@examples(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_a_signal_is_the_same_bit_for_bit(pipeline, seed):
    floored, published = (get_case(seed, pipeline, 100 * NOISE, noise) for noise in (NOISE, 0.0))
    assert torch.equal(valid_advantages(floored), valid_advantages(published))
