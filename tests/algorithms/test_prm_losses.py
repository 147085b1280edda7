# SPDX-License-Identifier: Apache-2.0
"""The PRM's losses: the formulas in loops, and that neither micro-batches nor row order change value or gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_batches import NAN, Batch, batches, orders

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_losses import PRM_LOSSES, RowFields
from prime_ext.algorithms.prm_losses.kto import mismatched_partners
from prime_ext.algorithms.prm_losses.row_fields import relative

LOSSES = sorted(PRM_LOSSES)
HARD = sorted(name for name, entry in PRM_LOSSES.items() if not entry.allows_soft_labels)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


class Case:
    """A batch with log-ratios before the update (garbage in padding) and labels that the loss takes."""

    def __init__(self, name: str, batch: Batch):
        self.entry, self.batch = PRM_LOSSES[name], batch
        self.mask_BT, self.group_B = batch.mask_BT, batch.group_B
        self.valid_B = batch.mask_BT.any(-1)
        self.ratio_BT = torch.where(batch.mask_BT.bool(), batch.reward_BT, 0.0)
        self.label_B = batch.label_B if self.entry.allows_soft_labels else (batch.label_B > 0.5).double()
        # What the PRM said before the update, and not what it says now.
        now_B = self.ratio_BT.sum(-1)
        self.score_B = torch.where(self.valid_B, (0.7 * now_B + 0.1).round(decimals=0), NAN)

    def rows(self, order=None, **options) -> RowFields:
        order = list(range(len(self.group_B))) if order is None else order
        return self.entry.prepare(
            self.label_B[order], self.group_B[order], self.valid_B[order], self.score_B[order], **options
        )

    def loss(self, ratio_BT, rows: RowFields, beta, part=slice(None), **options):
        """The loss of a mini-batch that is the whole batch, or the part of it that a micro-batch contributes."""
        rows = rows.scaled(torch.full_like(rows.weight_B, 1 / max(1, int(self.valid_B.sum()))))
        return self.entry.loss(ratio_BT[part], self.mask_BT[part], rows[part], beta, **options)


# ---- the formulas, response by response --------------------------------------------------------------------------


def best_of_n(case, i, key_B):
    members = case.batch.members(i)
    share = sum(float(key_B[j]) <= float(key_B[i]) for j in members) / len(members)
    return len(members) * share ** (len(members) - 1)


def terms(name, case, i, beta):
    """(relative weight before scaling to the mean 1, loss of the row)."""
    batch, label, members = case.batch, float(case.label_B[i]), case.batch.members(i)
    q = [float(batch.reward_BT[i, t]) for t in batch.tokens(i)]
    h, sign = sum(q), 1 if label > 0 else -1
    bce = label * softplus(-beta * h) + (1 - label) * softplus(beta * h)
    if name == "ce":
        return 1.0, bce
    if name == "bon_acc":
        return best_of_n(case, i, case.label_B), bce
    if name == "bon_rm":
        return best_of_n(case, i, case.score_B), bce
    if name == "dpo":
        opponents = [float(case.score_B[j]) for j in members if float(case.label_B[j]) != label]
        if not opponents:
            return 0.0, 0.0
        return 1.0, softplus(-beta * sign * (h - sum(opponents) / len(opponents)))
    if name == "nca":
        total = sum(float(case.label_B[j]) for j in members)
        share = label / total if total else 0.0
        return 1.0 / len(members), len(members) * share * softplus(-beta * h) + softplus(beta * h)
    if name == "kto":
        z = max(0.0, sum(float(case.score_B[j]) for j in batch.rows) / len(batch.rows))
        return 1.0, 1.0 - sigmoid(beta * sign * (h - z))
    assert name == "ipvrm"
    mu = sum(float(case.label_B[j]) for j in members) / len(members)
    if mu in (0.0, 1.0):
        return 0.0, 0.0
    boundary = math.log(mu / (1 - mu))
    margin = 5.0 - boundary if label else 5.0 + boundary
    raw = {j: (1 - mu) if float(case.label_B[j]) else mu for j in members}
    weight = raw[i] * len(members) / sum(raw.values())
    losses = [softplus(margin - sign * beta * sum(q[: t + 1]) / (t + 1)) for t in range(len(q))]
    return weight, sum(losses) / len(losses)


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), beta=st.sampled_from([0.05, 1.0]))
def test_equals_the_formula_averaged_over_the_rows_of_the_batch(name, batch, beta):
    case = Case(name, batch)
    pairs = {i: terms(name, case, i, beta) for i in batch.rows}
    counting = [weight for weight, _ in pairs.values() if weight > 0]
    scale = 1.0 if not counting else len(counting) / sum(counting)
    expected = sum(weight * scale * loss for weight, loss in pairs.values()) / max(1, len(batch.rows))
    rows = case.rows()
    assert float(case.loss(case.ratio_BT, rows, beta)) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert rows.counts_B.tolist() == [i in pairs and pairs[i][0] > 0 for i in range(len(batch.group_B))]


# ---- micro-batches, ranks, order ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), seed=st.integers(0, 1000), size=st.integers(1, 5))
def test_value_and_gradient_are_the_same_for_any_cut_into_micro_batches_and_any_order(name, batch, seed, size):
    case = Case(name, batch)
    whole_BT = case.ratio_BT.clone().requires_grad_()
    whole = case.loss(whole_BT, case.rows(), 0.3)
    whole.backward()

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


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), seed=st.integers(0, 100))
def test_padding_changes_nothing_and_receives_no_gradient(name, batch, seed):
    case = Case(name, batch)
    ratio_BT = case.ratio_BT.clone().requires_grad_()
    loss = case.loss(ratio_BT, case.rows(), 0.3)
    loss.backward()
    assert math.isfinite(float(loss)) and not ratio_BT.grad[~batch.mask_BT.bool()].any()
    alone = Case(name, batch.permuted(batch.rows))
    assert float(alone.loss(alone.ratio_BT, alone.rows(), 0.3)) == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_weights_have_the_mean_one_over_the_rows_that_count_whatever_the_groups(name, batch, dtype):
    case = Case(name, batch)
    case.label_B = case.label_B.to(dtype)
    rows = case.rows()
    assert rows.weight_B.dtype == rows.target_B.dtype == rows.offset_B.dtype == dtype
    for field in (rows.weight_B, rows.target_B, rows.offset_B):
        assert field.isfinite().all() and not field[~case.valid_B].any()
    if rows.counts_B.any():
        assert float(rows.weight_B[rows.counts_B].mean()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_micro_batch_in_which_no_row_counts_gives_a_zero_that_still_has_a_graph(name):
    """Ranks that run out of rows must still take part in the backward pass."""
    ratio_BT = torch.randn(2, 3, requires_grad=True)
    rows = RowFields(torch.zeros(2), torch.ones(2), torch.zeros(2))
    loss = PRM_LOSSES[name].loss(ratio_BT, torch.ones(2, 3), rows, 0.05)
    loss.backward()
    assert float(loss) == 0.0 and not ratio_BT.grad.any()


# ---- golden values -----------------------------------------------------------------------------------------------


def one_row(target, offset=0.0, weight=1.0):
    return RowFields(torch.tensor([weight]), torch.tensor([target]), torch.tensor([offset]))


@pytest.mark.parametrize("label, expected", [(1.0, 0.688160), (0.0, 0.698160)])
def test_golden_ce(label, expected):
    loss = PRM_LOSSES["ce"].loss(torch.tensor([[0.2]]), torch.ones(1, 1), one_row(label), 0.05)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_golden_nca_of_a_pair():
    """h = 2 for the correct and -3 for the wrong response, beta = .05."""
    rows = PRM_LOSSES["nca"].prepare(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.ones(2, dtype=torch.bool))
    loss = PRM_LOSSES["nca"].loss(torch.tensor([[2.0], [-3.0]]), torch.ones(2, 1), rows.scaled(torch.tensor(0.5)), 0.05)
    assert float(loss) == pytest.approx(1.327074, abs=1e-6)
    pair = softplus(-0.1) + softplus(0.1) / 2 + softplus(-0.15) / 2
    assert float(loss) == pytest.approx(pair, abs=1e-6)


@pytest.mark.parametrize("h, label, expected", [(2.0, 1.0, 0.480011), (-3.0, 0.0, 0.457602)])
def test_golden_kto(h, label, expected):
    loss = PRM_LOSSES["kto"].loss(torch.tensor([[h]]), torch.ones(1, 1), one_row(label, offset=0.4), 0.05)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("label, margin, expected", [(1.0, 5.0, 4.622867), (0.0, 5.0, 5.394548), (1.0, 0.0, 0.567236)])
def test_golden_ipvrm(label, margin, expected):
    ratio_BT = torch.tensor([[0.1, -0.2, 0.3]])
    loss = PRM_LOSSES["ipvrm"].loss(ratio_BT, torch.ones(1, 3), one_row(label, margin), 10.0)
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_golden_adaptive_boundary_and_dynamic_weights_at_an_accuracy_of_three_quarters():
    label_B, valid_B = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.ones(4, dtype=torch.bool)
    rows = PRM_LOSSES["ipvrm"].prepare(label_B, torch.zeros(4), valid_B)
    assert rows.offset_B.tolist() == pytest.approx([3.901388] * 3 + [6.098612], abs=1e-5)
    assert rows.weight_B.tolist() == pytest.approx([2 / 3] * 3 + [2.0])


# ---- what each loss is at initialisation -------------------------------------------------------------------------

AT_START = {"ce": math.log(2), "bon_acc": math.log(2), "bon_rm": math.log(2), "dpo": math.log(2), "kto": 0.5}


@pytest.mark.parametrize("name", sorted(AT_START))
def test_the_loss_at_initialisation_is_a_known_constant_whatever_the_groups(name):
    label_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    group_B = torch.tensor([0, 0, 0, 1, 1, 1])
    entry, zeros_BT = PRM_LOSSES[name], torch.zeros(6, 4)
    rows = entry.prepare(label_B, group_B, torch.ones(6, dtype=torch.bool), torch.zeros(6)).scaled(torch.tensor(1 / 6))
    assert float(entry.loss(zeros_BT, torch.ones(6, 4), rows, entry.beta)) == pytest.approx(AT_START[name])


def test_nca_starts_at_two_ln_two():
    label_B, valid_B = torch.tensor([1.0, 0.0, 0.0]), torch.ones(3, dtype=torch.bool)
    rows = PRM_LOSSES["nca"].prepare(label_B, torch.zeros(3), valid_B).scaled(torch.tensor(1 / 3))
    loss = PRM_LOSSES["nca"].loss(torch.zeros(3, 2), torch.ones(3, 2), rows, 0.05)
    assert float(loss) == pytest.approx(2 * math.log(2))


# ---- known defects of earlier implementations --------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"kto", "ipvrm"}))
@pytest.mark.parametrize("h", [1000.0, -1000.0])
def test_a_saturated_prm_that_is_wrong_keeps_its_gradient(name, h):
    """A probability before the logarithm caps the loss at 100 (PRIME's BCELoss) or makes it infinite (the recipe's
    log(sigmoid)), and the gradient vanishes."""
    ratio_BT = torch.tensor([[h]], requires_grad=True)
    loss = PRM_LOSSES[name].loss(ratio_BT, torch.ones(1, 1), one_row(0.0 if h > 0 else 1.0), 1.0)
    loss.backward()
    assert float(loss) == pytest.approx(1000.0) and float(ratio_BT.grad.abs()) == pytest.approx(1.0)


def test_a_saturated_prefix_keeps_its_gradient():
    ratio_BT = torch.tensor([[100.0]], requires_grad=True)
    PRM_LOSSES["ipvrm"].loss(ratio_BT, torch.ones(1, 1), one_row(0.0, 5.0), 10.0).backward()
    assert float(ratio_BT.grad) == pytest.approx(10.0)


def test_kto_loses_its_gradient_by_its_own_definition_and_not_by_rounding():
    """1 - sigmoid(x) is exactly 0 in float32 from x = 17 on; sigmoid(-x) is not."""
    ratio_BT = torch.tensor([[30.0]], requires_grad=True)
    loss = PRM_LOSSES["kto"].loss(ratio_BT, torch.ones(1, 1), one_row(1.0), 1.0)
    loss.backward()
    assert float(loss) == pytest.approx(math.exp(-30)) and float(ratio_BT.grad) == pytest.approx(-math.exp(-30))


def test_beta_scales_the_logit_of_every_loss():
    """The original left beta out of the rewards and relied on a normalisation to hide it; the loss never may."""
    for name in LOSSES:
        ratio_BT, rows = torch.tensor([[0.3, -0.1]]), one_row(1.0)
        small = PRM_LOSSES[name].loss(2.0 * ratio_BT, torch.ones(1, 2), rows, 0.5)
        assert float(small) == pytest.approx(float(PRM_LOSSES[name].loss(ratio_BT, torch.ones(1, 2), rows, 1.0)))


@pytest.mark.parametrize("name", LOSSES)
def test_the_last_token_takes_part_in_the_loss(name):
    """verl's recipe dropped it from the scores; scores and loss must speak of the same sum."""
    ratio_BT = torch.full((1, 3), 0.5, requires_grad=True)
    PRM_LOSSES[name].loss(ratio_BT, torch.tensor([[1.0, 1.0, 0.0]]), one_row(1.0), 1.0).backward()
    assert float(ratio_BT.grad[0, 1]) != 0.0 and float(ratio_BT.grad[0, 2]) == 0.0


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(padding=False))
def test_the_loss_is_a_mean_so_that_a_batch_twice_as_large_has_the_same_loss(name, batch):
    """The recipe's bon losses were sums, so that the learning rate depended on the size of the micro-batch."""
    case = Case(name, batch)
    both = [*range(len(batch.group_B))] * 2
    doubled = batch.permuted(both)
    doubled.group_B = torch.cat([batch.group_B, batch.group_B + 1000])
    twice = Case(name, doubled)
    once = float(case.loss(case.ratio_BT, case.rows(), 0.3))
    assert float(twice.loss(twice.ratio_BT, twice.rows(), 0.3)) == pytest.approx(once, rel=1e-9)


@pytest.mark.parametrize("name", HARD)
def test_a_partial_credit_is_neither_correct_nor_wrong(name):
    """The recipe's dpo took any label above 0 for correct."""
    valid_B = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"'{name}' takes labels 0 and 1 only, got 0.25; ce, bon_acc, bon_rm and nca"):
        PRM_LOSSES[name].prepare(torch.tensor([0.25, 1.0]), torch.zeros(2), valid_B, torch.zeros(2))


@pytest.mark.parametrize("labels", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
def test_a_prompt_without_an_opponent_does_not_count_in_dpo(labels):
    """The recipe compared it with 0, which pushes a whole prompt to one side."""
    rows = PRM_LOSSES["dpo"].prepare(
        torch.tensor(labels), torch.zeros(3), torch.ones(3, dtype=torch.bool), torch.randn(3)
    )
    assert not rows.weight_B.any() and not rows.offset_B.any()


@pytest.mark.parametrize("name", sorted(name for name, entry in PRM_LOSSES.items() if entry.needs_scores))
def test_a_loss_that_needs_scores_says_so_instead_of_failing_on_a_missing_key(name):
    valid_B = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"'{name}' needs the summed log-ratios of the PRM before its update"):
        PRM_LOSSES[name].prepare(torch.tensor([0.0, 1.0]), torch.zeros(2), valid_B)
    with pytest.raises(ValueError, match="before the update are not finite"):
        PRM_LOSSES[name].prepare(torch.tensor([0.0, 1.0]), torch.zeros(2), valid_B, torch.tensor([0.0, NAN]))


@pytest.mark.parametrize("name", sorted(name for name, entry in PRM_LOSSES.items() if not entry.needs_scores))
@given(batch=batches())
def test_a_loss_that_needs_no_scores_ignores_them(name, batch):
    case = Case(name, batch)
    without = case.entry.prepare(case.label_B, case.group_B, case.valid_B)
    for field in ("weight_B", "target_B", "offset_B"):
        assert torch.equal(getattr(without, field), getattr(case.rows(), field))


@pytest.mark.parametrize("name", LOSSES)
def test_a_single_response_per_prompt_divides_by_nothing(name):
    label_B, group_B = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    rows = PRM_LOSSES[name].prepare(label_B, group_B, torch.ones(2, dtype=torch.bool), torch.tensor([1.0, -1.0]))
    counts = name not in ("dpo", "ipvrm")
    assert rows.counts_B.tolist() == [counts, counts]
    loss = PRM_LOSSES[name].loss(torch.ones(2, 1), torch.ones(2, 1), rows, 1.0)
    assert loss.isfinite()


@pytest.mark.parametrize("name", LOSSES)
def test_labels_outside_of_zero_and_one_are_refused(name):
    valid_B = torch.ones(1, dtype=torch.bool)
    for label in (1.5, -0.1, NAN):
        with pytest.raises(ValueError, match="labels must be in"):
            PRM_LOSSES[name].prepare(torch.tensor([label]), torch.zeros(1), valid_B, torch.zeros(1))


# ---- properties of single losses ---------------------------------------------------------------------------------


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=2), st.sampled_from([0.05, 1.0]))
def test_dpo_of_one_pair_is_the_pairwise_loss_with_half_its_gradient(scores, beta):
    ratio_B1 = torch.tensor(scores, dtype=torch.float64)[:, None].requires_grad_()
    label_B = torch.tensor([1.0, 0.0], dtype=torch.float64)
    valid_B = torch.ones(2, dtype=torch.bool)
    rows = PRM_LOSSES["dpo"].prepare(label_B, torch.zeros(2), valid_B, ratio_B1.detach()[:, 0])
    loss = PRM_LOSSES["dpo"].loss(ratio_B1, torch.ones(2, 1), rows.scaled(torch.tensor(0.5)), beta)
    loss.backward()
    gradient = ratio_B1.grad.clone()
    ratio_B1.grad = None
    pair = torch.nn.functional.softplus(-beta * (ratio_B1[0, 0] - ratio_B1[1, 0]))
    pair.backward()
    assert float(loss) == pytest.approx(float(pair))
    torch.testing.assert_close(2.0 * gradient, ratio_B1.grad)


def test_best_of_n_weights_favour_the_best_and_their_raw_scale_is_the_recipes():
    """n = 4 with labels 0, 0, 1, 1: raw weights 4 * (1/2)^3 and 4 * 1, the mean of which is 2.25."""
    label_B, valid_B = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.ones(4, dtype=torch.bool)
    rows = PRM_LOSSES["bon_acc"].prepare(label_B, torch.zeros(4), valid_B)
    assert rows.weight_B.tolist() == pytest.approx([0.5 / 2.25, 4 / 2.25, 0.5 / 2.25, 4 / 2.25])
    score_B = torch.tensor([3.0, 1.0, 2.0, 0.0])
    rows = PRM_LOSSES["bon_rm"].prepare(label_B, torch.zeros(4), valid_B, score_B)
    raw = [4 * (k / 4) ** 3 for k in (4, 2, 3, 1)]
    assert rows.weight_B.tolist() == pytest.approx([weight * 4 / sum(raw) for weight in raw])


@given(batches())
def test_the_mismatched_partner_of_kto_belongs_to_another_prompt(batch):
    valid_B = batch.mask_BT.any(-1)
    partner_B = mismatched_partners(batch.group_B, valid_B).tolist()
    prompts = {int(batch.group_B[i]) for i in batch.rows}
    for i in range(len(batch.group_B)):
        if i not in batch.rows or len(prompts) < 2:
            assert partner_B[i] == -1
        else:
            assert partner_B[i] in batch.rows and batch.group_B[partner_B[i]] != batch.group_B[i]


def test_kto_takes_its_anchor_from_mismatched_pairs_if_given_and_never_below_zero():
    label_B, valid_B = torch.tensor([1.0, 0.0]), torch.ones(2, dtype=torch.bool)
    prepare = PRM_LOSSES["kto"].prepare
    assert prepare(label_B, torch.zeros(2), valid_B, torch.tensor([1.0, 2.0])).offset_B.tolist() == [1.5, 1.5]
    rows = prepare(label_B, torch.zeros(2), valid_B, torch.tensor([1.0, 2.0]), mismatched_B=torch.tensor([0.2, 0.6]))
    assert rows.offset_B.tolist() == pytest.approx([0.4, 0.4])
    assert not prepare(label_B, torch.zeros(2), valid_B, torch.tensor([-3.0, 2.0])).offset_B.any()
    rows = prepare(label_B, torch.zeros(2), valid_B, torch.zeros(2), desirable_weight=3.0)
    assert rows.weight_B.tolist() == pytest.approx([1.5, 0.5])


@pytest.mark.parametrize("time_weight, weights", [("late", [1, 2, 3, 4]), ("early", [3, 2, 1, 0])])
def test_ipvrm_may_weigh_early_or_late_prefixes(time_weight, weights):
    q = [0.4, -0.3, 0.2, 0.1]
    # A hole: only valid tokens are counted.
    ratio_BT, mask_BT = torch.tensor([[q[0], 9.0, *q[1:]]]), torch.tensor([[1.0, 0.0, 1.0, 1.0, 1.0]])
    loss = PRM_LOSSES["ipvrm"].loss(ratio_BT, mask_BT, one_row(1.0, 5.0), 2.0, time_weight=time_weight)
    terms = [softplus(5.0 - 2.0 * sum(q[: t + 1]) / (t + 1)) for t in range(4)]
    assert float(loss) == pytest.approx(sum(w * x for w, x in zip(weights, terms, strict=True)) / sum(weights))


def test_early_weights_of_a_response_of_one_token_do_not_vanish():
    loss = PRM_LOSSES["ipvrm"].loss(
        torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), one_row(1.0), 1.0, time_weight="early"
    )
    assert float(loss) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="time_weight must be one of uniform, early, late, got 'mid'"):
        PRM_LOSSES["ipvrm"].loss(torch.zeros(1, 2), torch.ones(1, 2), one_row(1.0), 1.0, time_weight="mid")


def test_the_options_of_ipvrm_switch_boundary_and_weights_off():
    label_B, valid_B = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0]), torch.ones(5, dtype=torch.bool)
    group_B = torch.tensor([0, 0, 0, 0, 1])
    rows = PRM_LOSSES["ipvrm"].prepare(
        label_B, group_B, valid_B, margin=2.0, adaptive_boundary=False, dynamic_weight=False
    )
    assert rows.offset_B.tolist() == [2.0] * 5 and rows.weight_B.tolist() == [1.0] * 5
    rows = PRM_LOSSES["ipvrm"].prepare(label_B, group_B, valid_B, margin=2.0)
    assert float(rows.weight_B[4]) == 0.0 and float(rows.offset_B[4]) == 2.0


def test_weights_of_nothing_stay_nothing():
    assert relative(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert relative(torch.tensor([0.0, 1.0, 3.0])).tolist() == [0.0, 0.5, 1.5]


def test_low_precision_log_ratios_are_summed_in_float32():
    """In bfloat16 256 + 1 is 256 again."""
    ratio_BT = torch.tensor([[256.0, 1.0, 1.0]]).bfloat16()
    loss = PRM_LOSSES["ce"].loss(ratio_BT, torch.ones(1, 3), one_row(0.0), 1.0)
    assert float(loss) == pytest.approx(258.0) and loss.dtype == torch.float32


@given(batches())
def test_at_initialisation_every_response_has_the_same_loss_and_a_gradient(batch):
    """q = 0 exactly when PRM and reference agree, padding full of NaN included."""
    ratio_BT = log_ratio(batch.reward_BT, batch.reward_BT.clone(), batch.mask_BT).requires_grad_()
    rows = PRM_LOSSES["ce"].prepare(batch.label_B.float(), batch.group_B, batch.mask_BT.any(-1))
    loss = PRM_LOSSES["ce"].loss(ratio_BT, batch.mask_BT, rows.scaled(torch.tensor(1 / len(batch.rows))), 0.05)
    loss.backward()
    assert float(loss) == pytest.approx(math.log(2), abs=1e-6) and ratio_BT.grad.isfinite().all()
