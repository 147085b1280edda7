# SPDX-License-Identifier: Apache-2.0
"""Losses of the PRM equal formulas in loops, for any micro-batches and order of rows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, Batch, batches, orders

from prime_ext import names
from prime_ext.algorithms.prm_losses import PRM_LOSSES, RowFields, compute_logit

LOSSES = sorted(PRM_LOSSES)
HARD = sorted(name for name, traits in names.PRM_LOSSES.items() if not traits.allows_soft_labels)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


class Case:
    """A batch for a loss: log-ratios, earlier scores (NaN for padding), labels that it takes."""

    def __init__(self, name: str, batch: Batch):
        self.entry = PRM_LOSSES[name]
        self.batch = batch
        self.mask_BT = batch.mask_BT
        self.group_B = batch.group_B
        self.valid_B = batch.mask_BT.any(-1)
        self.ratio_BT = torch.where(batch.mask_BT.bool(), batch.reward_BT, 0.0)
        self.label_B = batch.label_B if name not in HARD else (batch.label_B > 0.5).double()
        # What the PRM said before the update, and not what it says now.
        now_B = self.ratio_BT.sum(-1)
        self.score_B = torch.where(self.valid_B, (0.7 * now_B + 0.1).round(decimals=0), NAN)

    def rows(self, order=None) -> RowFields:
        order = list(range(len(self.group_B))) if order is None else order
        scores = [self.score_B[order]] if self.entry.needs_scores else []
        rows = self.entry.prepare(
            self.label_B[order], self.group_B[order], self.valid_B[order], *scores
        )
        assert rows.weight_B.dtype == rows.target_B.dtype == self.label_B.dtype
        return rows

    def loss(self, ratio_BT, rows: RowFields, beta, part=slice(None), **options):
        """Return the loss of the batch as one mini-batch, or the share of the rows ``part``."""
        weight_B = rows.weight_B / max(1, int(self.valid_B.sum()))
        rows = RowFields(weight_B, rows.target_B, rows.offset_B)
        return self.entry.loss(ratio_BT[part], self.mask_BT[part], rows[part], beta, **options)


# ---- the formulas, response by response ----------------------------------------------------------


def terms(name, case, i, beta, bias):
    """Return the relative weight before scaling to the mean 1, and the loss of the row."""
    batch = case.batch
    label = float(case.label_B[i])
    members = case.batch.members(i)
    h = sum(float(batch.reward_BT[i, t]) for t in batch.tokens(i))
    sign = 1 if label > 0 else -1
    if name == "ce":
        return 1.0, label * softplus(-beta * h - bias) + (1 - label) * softplus(beta * h + bias)
    if name == "dpo":
        opponents = [float(case.score_B[j]) for j in members if float(case.label_B[j]) != label]
        if not opponents:
            return 0.0, 0.0
        return 1.0, softplus(-beta * sign * (h - sum(opponents) / len(opponents)))
    if name == "nca":
        total = sum(float(case.label_B[j]) for j in members)
        share = label / total if total else 0.0
        return 1.0 / len(members), len(members) * share * softplus(-beta * h) + softplus(beta * h)
    assert name == "kto"
    z = max(0.0, sum(float(case.score_B[j]) for j in batch.rows) / len(batch.rows))
    return 1.0, 1.0 - sigmoid(beta * sign * (h - z))


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), beta=st.sampled_from([0.05, 1.0]), bias=st.sampled_from([0.0, 0.7]))
def test_equals_the_formula_averaged_over_the_rows_of_the_batch(name, batch, beta, bias):
    case = Case(name, batch)
    options = {"bias": bias} if name == "ce" else {}
    pairs = {i: terms(name, case, i, beta, bias) for i in batch.rows}
    counting = [weight for weight, _ in pairs.values() if weight > 0]
    scale = 1.0 if not counting else len(counting) / sum(counting)
    expected = sum(weight * scale * loss for weight, loss in pairs.values()) / max(
        1, len(batch.rows)
    )
    rows = case.rows()
    assert float(case.loss(case.ratio_BT, rows, beta, **options)) == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )
    assert (rows.weight_B > 0).tolist() == [
        i in pairs and pairs[i][0] > 0 for i in range(len(batch.group_B))
    ]


# ---- micro-batches, ranks, order -----------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), seed=st.integers(0, 1000), size=st.integers(1, 5))
def test_cut_order_and_padding_change_neither_value_nor_gradient(name, batch, seed, size):
    case = Case(name, batch)
    whole_BT = case.ratio_BT.clone().requires_grad_()
    whole = case.loss(whole_BT, case.rows(), 0.3)
    whole.backward()
    assert not whole_BT.grad[~batch.mask_BT.bool()].any()
    alone = Case(name, batch.permuted(batch.rows))
    assert float(alone.loss(alone.ratio_BT, alone.rows(), 0.3)) == pytest.approx(
        float(whole), rel=1e-9
    )

    order = orders(batch, seed)
    back = torch.tensor(order).argsort().tolist()
    rows = case.rows(order)[back]  # prepared in another order, brought back
    cut_BT = case.ratio_BT.clone().requires_grad_()
    total = 0.0
    for start in range(0, len(order), size):
        loss = case.loss(cut_BT, rows, 0.3, part=order[start : start + size])
        loss.backward()
        total += float(loss)
    assert total == pytest.approx(float(whole), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(cut_BT.grad, whole_BT.grad)


def one_row(target, offset=0.0):
    return RowFields(torch.ones(1), torch.tensor([target]), torch.tensor([offset]))


@pytest.mark.parametrize(
    ("name", "h", "row", "beta", "expected", "slope"),
    [
        *[(name, 1000.0, one_row(0.0), 1.0, 1000.0, 1.0) for name in LOSSES if name != "kto"],
        *[(name, -1000.0, one_row(1.0), 1.0, 1000.0, -1.0) for name in LOSSES if name != "kto"],
        # By its own definition it saturates, but not by rounding: 1 - sigmoid(x) is exactly 0 in
        # float32 from 17 on.
        ("kto", 30.0, one_row(1.0), 1.0, math.exp(-30), -math.exp(-30)),
    ],
)
def test_a_saturated_prm_keeps_its_gradient(name, h, row, beta, expected, slope):
    """The logarithm of a saturated probability would have no gradient.

    The loss would be capped at 100 (PRIME's BCELoss) or infinite (the recipe's log(sigmoid)).
    """
    ratio_BT = torch.tensor([[h]], requires_grad=True)
    loss = PRM_LOSSES[name].loss(ratio_BT, torch.ones(1, 1), row, beta)
    loss.backward()
    assert float(loss) == pytest.approx(expected) and float(ratio_BT.grad) == pytest.approx(slope)


@pytest.mark.parametrize("name", HARD)
def test_labels_and_scores_that_a_loss_cannot_use_are_refused(name):
    entry = PRM_LOSSES[name]
    # The recipe's dpo took any label above 0 for correct.
    wrong = [(0.25, 0.0, f"'{name}' takes labels 0 and 1 only, got 0.25")]
    if entry.needs_scores:
        wrong += [(1.0, NAN, "before the update are not finite")]
    for label, score, message in wrong:
        with pytest.raises(ValueError, match=message):
            entry.prepare(
                torch.tensor([label]),
                torch.zeros(1),
                torch.ones(1, dtype=torch.bool),
                torch.tensor([score]),
            )


@pytest.mark.parametrize(
    ("mean", "logit"),
    [
        (0.5, 0.0),
        (0.3, math.log(0.3 / 0.7)),
        (0.0, -4.0),
        (1.0, 4.0),
        (1e-4, -4.0),
        (1 - 1e-4, 4.0),
    ],
)
def test_the_starting_value_of_a_bias_is_bounded(mean, logit):
    assert compute_logit(mean) == logit
