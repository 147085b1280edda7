# SPDX-License-Identifier: Apache-2.0
"""Scores and credit of steps; chains of steps: accumulated, shaped, placed on tokens.

Expected values come from the papers, released code, and loops over tokens.
"""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, batches, orders, random_boundaries, random_spans, step_scores

from prime_ext.algorithms.accumulation import MODES, StepScoreFunction, accumulate
from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import ProcessShaping, center_wrong, credit_rewards
from prime_ext.algorithms.returns import mark_last_token
from prime_ext.algorithms.shaping import SHAPES, gaussian, released, weibull, weibull_mode
from prime_ext.algorithms.steps import (
    find_valid_ends,
    place_at_ends,
    spans_from_ends,
    step_spans,
    sum_over_steps,
)
from prime_ext.names import Credit, RewardPosition

seeds = st.integers(0, 10_000)
step_score_rows = step_scores(-1.0, 1.0, most=5)


def steps_by_loops(tokens, boundary):
    """Return lists of the token positions of each step of one response."""
    steps = [[]]
    for t in tokens:
        steps[-1].append(t)
        if boundary[t]:
            steps.append([])
    return [step for step in steps if step]


@given(batches(), st.integers(0, 1000))
def test_steps_end_at_boundaries_and_the_last_valid_token(batch, seed):
    boundary_BT = random_boundaries(batch, seed)
    spans = step_spans(boundary_BT, batch.mask_BT)
    steps = {i: steps_by_loops(batch.tokens(i), boundary_BT[i]) for i in range(len(batch.group_B))}
    assert spans.mask_BS.shape[1] == max(1, *map(len, steps.values()), 0)
    for i, expected in steps.items():
        n = len(expected)
        assert spans.mask_BS[i].tolist() == [True] * n + [False] * (spans.mask_BS.shape[1] - n)
        assert int(spans.count_B[i]) == n
        assert spans.end_BS[i, :n].tolist() == [step[-1] for step in expected]
        assert spans.length_BS[i].tolist() == [len(s) for s in expected] + [0] * (
            spans.mask_BS.shape[1] - n
        )
        number = {t: k for k, step in enumerate(expected) for t in step}
        assert spans.step_BT[i].tolist() == [
            number.get(t, -1) for t in range(spans.step_BT.shape[1])
        ]


@given(batches(), st.integers(0, 1000))
def test_values_of_steps_go_back_and_forth(batch, seed):
    boundary_BT = random_boundaries(batch, seed)
    spans = step_spans(boundary_BT, batch.mask_BT)
    total_BS = sum_over_steps(batch.reward_BT, spans)
    placed_BT = place_at_ends(total_BS, spans)
    expected_placed = torch.zeros_like(placed_BT)
    for i in batch.rows:
        for k, step in enumerate(steps_by_loops(batch.tokens(i), boundary_BT[i])):
            total = sum(float(batch.reward_BT[i, t]) for t in step)
            assert float(total_BS[i, k]) == pytest.approx(total)
            expected_placed[i, step[-1]] = total
    torch.testing.assert_close(placed_BT, expected_placed)
    assert int(place_at_ends(spans.mask_BS.float(), spans).sum()) == int(spans.mask_BS.sum())


@given(
    st.lists(st.booleans(), min_size=1, max_size=8).filter(any),
    st.lists(st.integers(0, 7), max_size=4),
)
def test_a_step_ends_at_or_before_its_last_token(mask, ends):
    valid = [t for t, one in enumerate(mask) if one]
    expected = [max((t for t in valid if t <= end), default=valid[0]) for end in ends]
    assert (
        find_valid_ends(torch.tensor(ends, dtype=torch.long), torch.tensor(mask)).tolist()
        == expected
    )


# ---- credit and shaping --------------------------------------------------------------------------


@pytest.mark.parametrize("name", get_args(Credit))
@given(steps=step_score_rows)
def test_every_credit_is_that_of_the_loops(name, steps):
    score_BS, mask_BS = steps
    result_BS = credit_rewards(name, score_BS, mask_BS)
    assert not result_BS[~mask_BS].any()
    for row, mask_S, found_S in zip(score_BS, mask_BS, result_BS, strict=True):
        p = row[mask_S].tolist()
        weights = [math.exp(-x / 0.1) for x in p]
        min_form = [w / sum(weights) * x for w, x in zip(weights, p, strict=True)]
        assert found_S[mask_S].tolist() == pytest.approx(
            {"sum": p, "min_form": min_form}[name], abs=1e-9
        )


@given(batches())
def test_a_response_is_paid_the_sum_at_its_last_token(batch):
    paid_BT, source_BT = ProcessShaping("response")(batch.reward_BT, batch.mask_BT)
    for i in batch.rows:
        assert paid_BT[i, source_BT[i].bool()].tolist() == pytest.approx(
            [sum(batch.rewards(i))], abs=1e-6
        )


# ---- rewards of wrong responses ------------------------------------------------------------------


def test_the_wrong_responses_of_a_prompt_earn_nothing_together():
    label_B = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    group_B = torch.tensor([1, 1, 1, 2, 2, 1])
    reward_BT = torch.tensor([[0.9, 0.9], [0.8, 0.2], [0.5, NAN], [0.7, 0.3], [0.4, 0.4], [NAN, 9]])
    mask_BT = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [1, 1], [0, 0]])
    centered_BT = center_wrong(reward_BT, mask_BT, label_B, group_B)
    # Prompt 1: three rewards with the mean 0.5; prompt 2: two with the same mean.
    expected = [[0.9, 0.9], [0.3, -0.3], [0.0, 0.0], [0.2, -0.2], [0.4, 0.4], [0.0, 0.0]]
    torch.testing.assert_close(centered_BT, torch.tensor(expected))


@given(batch=batches(), seed=seeds)
def test_centering_keeps_right_responses_and_differences_between_wrong_ones(batch, seed):
    spans = random_spans(batch, seed)
    paid_BT = place_at_ends(spans.mask_BS.double(), spans)
    centered_BT = center_wrong(batch.reward_BT, paid_BT, batch.label_B, batch.group_B)
    assert not centered_BT[~paid_BT.bool()].any()
    for i in batch.rows:
        places = paid_BT[i].bool()
        wrong = [j for j in batch.members(i) if batch.label_B[j] <= 0.5]
        if i not in wrong:
            assert torch.equal(centered_BT[i, places], batch.reward_BT[i, places])
            continue
        assert float(centered_BT[wrong].sum()) == pytest.approx(0, abs=1e-9)
        rewards = [float(r) for j in wrong for r in batch.reward_BT[j, paid_BT[j].bool()]]
        mean = sum(rewards) / len(rewards)
        torch.testing.assert_close(centered_BT[i, places], batch.reward_BT[i, places] - mean)


@given(batch=batches(), seed=seeds)
def test_row_order_group_numbers_and_padding_do_not_change_centered_rewards(batch, seed):
    reference_BT = center_wrong(batch.reward_BT, batch.mask_BT, batch.label_B, batch.group_B)
    for rows in (orders(batch, seed), batch.rows):
        part = batch.permuted(rows)
        moved_BT = center_wrong(part.reward_BT, part.mask_BT, part.label_B, 77 - part.group_B)
        torch.testing.assert_close(moved_BT, reference_BT[rows])


# ---- accumulated scores --------------------------------------------------------------------------


PAPER = ChainReward(shape="weibull")
RELEASED = ChainReward(power=2.0, shape="released")
PREDECESSOR = ChainReward(first_weight=0.2, shape="gaussian")
UNSHAPED = ChainReward()
MODE_NAMES = sorted(MODES)


def accumulate_by_loops(p, mode):
    if not p:
        return 0.0
    loops = {
        "mean": lambda: sum(p) / len(p),
        "geometric": lambda: math.prod(p) ** (1 / len(p)),
        "min": lambda: min(p),
    }
    return loops[mode]()


@pytest.mark.parametrize("mode", MODE_NAMES)
@pytest.mark.parametrize("first_weight", [1.0, 0.2, 2.0])
@given(data=st.data())
def test_every_mode_equals_a_loop_and_is_0_without_steps(mode, first_weight, data):
    score_BS, mask_BS = data.draw(step_scores() if mode == "geometric" else step_scores(-3.0, 3.0))
    result_B = accumulate(score_BS, mask_BS, mode, first_weight)
    for result, score_S, mask_S in zip(result_B.tolist(), score_BS, mask_BS, strict=True):
        p = score_S[mask_S].tolist()
        p[:1] = [first_weight * x for x in p[:1]]
        assert result == pytest.approx(accumulate_by_loops(p, mode), abs=1e-9)


@pytest.mark.parametrize(("score", "n_steps"), [(0.005, 20), (1e-30, 1000), (0.0, 3)])
def test_the_geometric_mean_does_not_underflow_in_float32(score, n_steps):
    """The original multiplies first: these are 0 there."""
    score_BS = torch.full((1, n_steps), score)
    assert float(score_BS.prod()) == 0.0
    assert float(accumulate(score_BS, torch.ones(1, n_steps))) == pytest.approx(score, rel=1e-4)


# ---- score times factor --------------------------------------------------------------------------


def chain(*scores):
    return torch.tensor([scores], dtype=torch.float64), torch.ones(1, len(scores))


@pytest.mark.parametrize(
    ("reward", "scores", "expected"),
    [
        # Equal steps: section 1.4 of the notes on the method.
        (PAPER, [0.9] * 2, 0.799335),
        (RELEASED, [0.9] * 2, 2.201808),
        (PAPER, [0.9] * 20, 0.054994),
        (RELEASED, [0.9] * 20, 29.644570),
        (PAPER, [0.1] * 5, 0.097086),
        (RELEASED, [0.1] * 5, 0.066859),
        (RELEASED, [0.21159] * 12, 0.330810),
        # (0.2 * 0.9 * 0.8 * 0.7)^(1/3) * 0.880163
        (PREDECESSOR, [0.9, 0.8, 0.7], 0.409622),
        (UNSHAPED, [0.9] * 1000, 0.9),
        (PAPER, [0.9] * 1000, 0.0),
        (PREDECESSOR, [0.9] * 1000, 0.0),
    ],
)
def test_golden_rewards(reward, scores, expected):
    assert float(reward(*chain(*scores)).reward_B) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_only_single_steps_that_are_kept_have_a_reward(shape):
    score_BS = torch.full((2, 1), 0.5)
    mask_BS = torch.tensor([[1], [0]])
    assert ChainReward(shape=shape)(score_BS, mask_BS).reward_B.tolist() == [0.0, 0.0]
    kept = ChainReward(shape=shape, single_step="keep")(score_BS, mask_BS)
    assert float(kept.reward_B[0]) > 0 and float(kept.reward_B[1]) == 0.0
    if shape == "weibull":
        assert float(kept.reward_B[0]) == pytest.approx(0.5 * 0.680871, abs=5e-7)


# ---- length shaping ------------------------------------------------------------------------------


SIX = 5e-7
# The paper's curve: k = 1.5, lambda = 8, C = 10.735.
WEIBULL_VALUES = {
    1: 0.680871,
    2: 0.888150,
    3: 0.979688,
    4: 0.999406,
    5: 0.970858,
    8: 0.740472,
    12: 0.392644,
}
# s, n: ff(s, n) of the released code, whose reward is s * ff.
RELEASED_VALUES = [
    (0.9, 2, 2.446454),
    (0.9, 4, 6.650150),
    (0.9, 5, 7.349521),
    (0.9, 20, 32.938411),
    (0.5, 4, 3.694528),
    (0.5, 8, 4.209342),
    (0.2, 8, 1.470084),
    (0.19, 8, 0.941076),
    (0.1, 5, 0.668593),
    (0.88433, 8, 8.858422),
    (0.21159, 12, 1.563450),
]


def one(value):
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_golden_weibull_to_six_digits_from_counts_of_any_dtype(dtype):
    result = weibull(torch.tensor(list(WEIBULL_VALUES), dtype=dtype))
    assert result.tolist() == pytest.approx(list(WEIBULL_VALUES.values()), abs=SIX)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_golden_mode_and_peak_of_the_weibull():
    assert weibull_mode() == pytest.approx(3.8459989, abs=5e-8)
    assert float(weibull(one(weibull_mode()), constant=None)) == pytest.approx(1.0, abs=1e-14)
    # The published constant is rounded, and the published values with it.
    assert float(weibull(one(weibull_mode()))) == pytest.approx(0.9999956, abs=5e-8)
    assert float(weibull(one(4.0), constant=None)) == pytest.approx(0.999411, abs=SIX)
    assert float(weibull(one(4.0), shape=1.0, constant=8.0)) == pytest.approx(math.exp(-0.5))


def test_golden_gaussian_of_the_predecessor():
    golden = {
        2: 0.604927,
        3: 0.880163,
        4: 0.997356,
        5: 0.880163,
        6: 0.604927,
        8: 0.134977,
        10: 0.011080,
    }
    assert gaussian(torch.tensor(list(golden))).tolist() == pytest.approx(
        list(golden.values()), abs=SIX
    )
    # The same area makes another peak.
    assert float(gaussian(one(4.0), std=1.0)) == pytest.approx(1.994711, abs=SIX)
    assert gaussian(torch.tensor([4])).dtype == torch.float32


@pytest.mark.parametrize(("score", "steps", "factor"), RELEASED_VALUES)
def test_golden_values_of_the_released_code(score, steps, factor):
    assert score * float(released(one(score), torch.tensor([steps]))) == pytest.approx(
        factor, abs=SIX
    )


# ---- implicit step rewards on tokens -------------------------------------------------------------


SIGMOID = StepScoreFunction("sigmoid")


def test_golden_scores_of_summed_rewards():
    """sigmoid(1) = .731059, sigmoid(-2) = .119203."""
    sum_BS = torch.tensor([[1.0, -2.0, NAN]])
    mask_BS = torch.tensor([[1, 1, 0]])
    assert StepScoreFunction("none")(sum_BS, mask_BS).tolist() == [[1.0, -2.0, 0.0]]
    assert SIGMOID(sum_BS, mask_BS)[0].tolist() == pytest.approx(
        [0.731059, 0.119203, 0.0], abs=5e-7
    )
    assert (
        StepScoreFunction("sigmoid", 0.5)(2 * sum_BS, mask_BS)[0].tolist()
        == SIGMOID(sum_BS, mask_BS)[0].tolist()
    )


@pytest.mark.parametrize("reward_position", get_args(RewardPosition))
@pytest.mark.parametrize("credit", get_args(Credit))
@given(batch=batches(padding=True), seed=seeds)
def test_the_paid_rewards_sum_to_that_of_the_chain(reward_position, credit, batch, seed):
    spans = random_spans(batch, seed)
    shaping = ProcessShaping(
        "step", credit=credit, score=SIGMOID, chain=PAPER, reward_position=reward_position
    )
    paid_BT, source_BT = shaping(batch.reward_BT, batch.mask_BT, spans)
    end_BT = place_at_ends(spans.mask_BS.float(), spans)
    where = {
        "last_token": mark_last_token(batch.mask_BT),
        "step_ends": end_BT,
        "tokens": batch.mask_BT,
    }
    assert (
        torch.equal(source_BT.bool(), where[reward_position].bool())
        and not paid_BT[~source_BT.bool()].any()
    )
    for i in batch.rows:
        ends = spans.end_BS[i, spans.mask_BS[i]].tolist()
        tokens = batch.tokens(i)
        scores = []
        start = 0
        for end in ends:
            inside = [t for t in tokens if start <= t <= end]
            scores.append(1 / (1 + math.exp(-sum(float(batch.reward_BT[i, t]) for t in inside))))
            start = end + 1
        n = len(ends)
        factor = 10.735 * 1.5 / 8 * math.sqrt(n / 8) * math.exp(-((n / 8) ** 1.5)) if n > 1 else 0.0
        assert float(paid_BT[i].sum()) == pytest.approx(
            math.prod(scores) ** (1 / n) * factor, abs=1e-6
        )


def test_shares_at_step_ends_are_equal_or_favor_low_scores():
    spans = step_spans(torch.tensor([[0, 1, 1, 0]]), torch.ones(1, 4))
    reward_BT = torch.tensor([[0.5, 0.5, -2.0, 1.0]])
    common = {"score": SIGMOID, "chain": ChainReward(), "reward_position": "step_ends"}
    equal_BT, _ = ProcessShaping("step", **common)(reward_BT, torch.ones(1, 4), spans)
    total = float(equal_BT.sum())
    assert equal_BT[0].tolist() == pytest.approx([0.0, total / 3, total / 3, total / 3])
    worst_BT, _ = ProcessShaping("step", credit="min_form", **common)(
        reward_BT, torch.ones(1, 4), spans
    )
    # Scores sigmoid(1), sigmoid(-2), sigmoid(1).
    weights = [math.exp(-10 * one) for one in (0.731059, 0.119203, 0.731059)]
    assert worst_BT[0].tolist() == pytest.approx(
        [0.0, *(total * w / sum(weights) for w in weights)], abs=1e-6
    )


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_combination_is_finite_for_empty_single_and_long_responses(mode, shape):
    mask_BT = torch.zeros(4, 800)
    mask_BT[1, 0] = 1
    mask_BT[2, :3] = 1
    mask_BT[3] = 1
    reward_BT = torch.where(
        mask_BT.bool(), 0.05 * torch.randn(4, 800, generator=torch.Generator().manual_seed(0)), NAN
    )
    spans = step_spans(torch.ones(4, 800), mask_BT)
    shaping = ProcessShaping(
        "step", score=StepScoreFunction("sigmoid"), chain=ChainReward(mode, shape=shape)
    )
    paid_BT, _ = shaping(reward_BT, mask_BT, spans)
    assert paid_BT.isfinite().all() and not paid_BT[:2].any() and float(paid_BT[2].sum()) > 0
    value = shaping.chain_value(reward_BT, spans)
    assert value.count_B.tolist() == [0, 1, 3, 800]
    torch.testing.assert_close(value.reward_B, paid_BT.sum(-1))


@pytest.mark.parametrize("mode", MODES)
def test_scores_that_are_not_finite_are_refused(mode):
    mask_BS = torch.ones(1, 2)
    with pytest.raises(ValueError, match="step 1 of row 0 has the score nan, which"):
        accumulate(mask_BS * NAN, mask_BS, mode)
    # Even where its sigmoid is a number.
    with pytest.raises(ValueError, match="step 2 of row 0 has the score inf, which"):
        SIGMOID(torch.tensor([[1.0, math.inf]]), mask_BS)


def test_negative_scores_have_no_geometric_mean_and_no_power():
    score_BS = torch.tensor([[0.5, -0.25]])
    mask_BS = torch.ones(1, 2)
    with pytest.raises(ValueError, match="step 2 of row 0 has the score -0.25; geometric needs"):
        accumulate(score_BS, mask_BS, "geometric")
    with pytest.raises(ValueError, match="power=2 of a negative accumulated score, -1"):
        ChainReward("mean", power=2.0)(-mask_BS, mask_BS)
    assert ChainReward("mean", power=2.0)(0 * mask_BS, mask_BS).reward_B == 0


def test_tokens_after_the_last_end_belong_to_no_step():
    mask_BT = torch.ones(2, 4).bool()
    end_BS, mask_BS = torch.tensor([[1, 3], [1, 0]]), torch.tensor([[1, 1], [1, 0]]).bool()
    spans = spans_from_ends(end_BS, mask_BS, mask_BT)
    assert spans.step_BT.tolist() == [[0, 0, 1, 1], [0, 0, -1, -1]]
    assert spans.length_BS.tolist() == [[2, 2], [2, 0]]


def test_responses_of_one_step_have_one_column():
    spans = step_spans(torch.zeros(2, 3), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert spans.length_BS.tolist() == [[3], [1]] and spans.mask_BS.shape == (2, 1)
