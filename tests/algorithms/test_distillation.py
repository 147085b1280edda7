# SPDX-License-Identifier: Apache-2.0
"""The PRM as a distribution: divergences against loops and closed forms, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.distillation import (
    log_probs_and_reverse_kl,
    policy_relative_rewards,
    reverse_kl,
    topk_reverse_kl,
)


def _draw(seed: int, tokens: int, vocabulary: int, targets: int, dtype=torch.float64, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = [
        size * torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64) for _ in range(1 + targets)
    ]
    token_N = torch.randint(vocabulary, (tokens,), generator=generator)
    return [value.to(dtype) for value in logits], token_N


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 12), st.integers(1, 3), st.integers(1, 5))
def test_the_chunked_divergence_is_the_definition(seed, tokens, vocabulary, targets, chunk):
    (logits_NV, *target_logits), token_N = _draw(seed, tokens, vocabulary, targets)
    logits_NV.requires_grad_()
    weight_N, weight_NJ = torch.randn(tokens).double(), torch.randn(tokens, targets).double()

    log_prob_N, kl_NJ = log_probs_and_reverse_kl(logits_NV, token_N, target_logits, chunk)
    (slope_NV,) = torch.autograd.grad((weight_N * log_prob_N).sum() + (weight_NJ * kl_NJ).sum(), logits_NV)

    plain_NV = F.log_softmax(logits_NV, -1)
    plain_N = plain_NV.gather(1, token_N[:, None])[:, 0]
    plain_NJ = torch.stack(
        [F.kl_div(F.log_softmax(t, -1), plain_NV, reduction="none", log_target=True).sum(-1) for t in target_logits], -1
    )
    (expected_NV,) = torch.autograd.grad((weight_N * plain_N).sum() + (weight_NJ * plain_NJ).sum(), logits_NV)
    torch.testing.assert_close(log_prob_N, plain_N)
    torch.testing.assert_close(kl_NJ, plain_NJ)
    torch.testing.assert_close(slope_NV, expected_NV)


def test_only_log_probs_or_only_divergences_may_be_used():
    (logits_NV, phi_NV), token_N = _draw(5, 5, 6, 1)
    for pick in (0, 1):
        one, both = logits_NV.clone().requires_grad_(), logits_NV.clone().requires_grad_()
        log_probs_and_reverse_kl(one, token_N, [phi_NV], 2)[pick].sum().backward()
        outputs = log_probs_and_reverse_kl(both, token_N, [phi_NV], 2)
        (outputs[pick].sum() + 0.0 * outputs[1 - pick].sum()).backward()
        torch.testing.assert_close(one.grad, both.grad)


def test_impossible_tokens_and_16_bit_logits():
    logits_NV = torch.tensor([[0.0, 1.0, -torch.inf]]).requires_grad_()
    log_prob_N, kl_N1 = log_probs_and_reverse_kl(logits_NV, torch.tensor([1]), [torch.tensor([[0.0, 1.0, 5.0]])])
    (log_prob_N + kl_N1[:, 0]).sum().backward()
    assert kl_N1.isfinite().all() and logits_NV.grad.isfinite().all() and float(logits_NV.grad[0, 2]) == 0.0

    (wide_NV, phi_NV), token_N = _draw(1, 6, 40, 1, torch.float32)
    narrow_NV = wide_NV.bfloat16().requires_grad_()
    log_prob_N, kl_N1 = log_probs_and_reverse_kl(narrow_NV, token_N, [phi_NV.bfloat16()])
    assert log_prob_N.dtype == kl_N1.dtype == torch.float32
    kl_N1.sum().backward()
    assert narrow_NV.grad.dtype == torch.bfloat16


def test_shapes_are_checked():
    (logits_NV, phi_NV), token_N = _draw(0, 3, 5, 1)
    with pytest.raises(ValueError, match="policy's vocabulary"):
        log_probs_and_reverse_kl(logits_NV, token_N, [phi_NV[:, :4]])
    with pytest.raises(ValueError, match="no targets"):
        log_probs_and_reverse_kl(logits_NV, token_N, [])
    empty = log_probs_and_reverse_kl(logits_NV[:0], token_N[:0], [phi_NV[:0]])
    assert empty[0].shape == (0,) and empty[1].shape == (0, 1)


@given(st.integers(0, 10**6), st.integers(2, 10), st.integers(1, 10))
def test_top_k_is_a_lower_bound_that_all_tokens_reach(seed, vocabulary, k):
    (logits_NV, phi_NV), _ = _draw(seed, 4, vocabulary, 1)
    log_pi_NV, log_phi_NV = F.log_softmax(logits_NV, -1), F.log_softmax(phi_NV, -1)
    chosen_NK = log_pi_NV.topk(min(k, vocabulary), -1).indices
    bound_N = topk_reverse_kl(log_pi_NV.gather(1, chosen_NK), log_phi_NV.gather(1, chosen_NK))
    whole_N = reverse_kl(log_pi_NV, log_phi_NV)
    assert (bound_N <= whole_N + 1e-9).all() and (bound_N >= -1e-9).all()
    if k >= vocabulary - 1:
        torch.testing.assert_close(bound_N, whole_N)


def test_rewards_relative_to_the_policy_vanish_where_it_equals_the_prm():
    log_prob_BT = torch.tensor([[-1.0, -2.0, torch.nan]])
    mask_BT = torch.tensor([[1, 1, 0]])
    assert policy_relative_rewards(log_prob_BT, log_prob_BT, mask_BT).tolist() == [[0.0, 0.0, 0.0]]
    rewards_BT = policy_relative_rewards(torch.tensor([[-1.0, -2.0, 0.0]]), torch.tensor([[-3.0, -1.0, 0.0]]), mask_BT)
    assert rewards_BT.tolist() == [[2.0, -1.0, 0.0]]
