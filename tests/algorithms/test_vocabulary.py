# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and divergences over the vocabulary in pieces, against the definitions."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.chunked_log_probs import compute_log_probs_and_entropy
from prime_ext.algorithms.distillation import log_probs_and_reverse_kl, policy_relative_rewards

ENTROPY_WEIGHT = 0.3


def inputs(seed, n, vocabulary, width, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    hidden_NH = scale * torch.randn(n, width, generator=generator, dtype=torch.float64)
    weight_VH = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    target_N = torch.randint(vocabulary, (n,), generator=generator)
    return hidden_NH.to(dtype).requires_grad_(), weight_VH.to(dtype).requires_grad_(), target_N


def definition(hidden_NH, weight_VH, target_N, temperature=1.0, entropy_weight=0.0):
    log_prob_NV = torch.log_softmax(hidden_NH @ weight_VH.T / temperature, -1)
    entropy_N = -(log_prob_NV.exp() * log_prob_NV).sum(-1)
    return log_prob_NV[torch.arange(len(target_N)), target_N] + entropy_weight * entropy_N


def gradients(function, hidden_NH, weight_VH, target_N, *options):
    hidden_NH = hidden_NH.detach().requires_grad_()
    weight_VH = weight_VH.detach().requires_grad_()
    value_N = function(hidden_NH, weight_VH, target_N, *options)
    upstream_N = torch.linspace(-1, 2, len(target_N), dtype=value_N.dtype)
    (value_N * upstream_N).sum().backward()
    return value_N.detach(), hidden_NH.grad, weight_VH.grad


def chunked_log_probs(*arguments):
    return compute_log_probs_and_entropy(*arguments, with_entropy=False)[0]


def with_entropy(*arguments):
    log_prob_N, entropy_N = compute_log_probs_and_entropy(*arguments)
    return log_prob_N + ENTROPY_WEIGHT * entropy_N


@given(
    st.integers(0, 1000),
    st.integers(0, 9),
    st.integers(2, 20),
    st.integers(1, 10),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_value_and_gradients_equal_the_definition_for_any_chunk(
    seed, n, vocabulary, chunk, temperature
):
    given_inputs = inputs(seed, n, vocabulary, 4)
    for function, options, entropy_weight in (
        (chunked_log_probs, (chunk, temperature), 0.0),
        (with_entropy, (chunk, temperature), ENTROPY_WEIGHT),
    ):
        expected = gradients(definition, *given_inputs, temperature, entropy_weight)
        for got, wanted in zip(gradients(function, *given_inputs, *options), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)


def test_bf16_weights_give_float32_log_probs_and_bf16_gradients():
    hidden_NH, weight_VH, target_N = inputs(2, 6, 50, 8, torch.bfloat16)
    log_prob_N, grad_hidden, grad_weight = gradients(
        chunked_log_probs, hidden_NH, weight_VH, target_N, 4
    )
    assert log_prob_N.dtype == torch.float32
    assert grad_hidden.dtype == grad_weight.dtype == torch.bfloat16
    expected = gradients(definition, hidden_NH.float(), weight_VH.float(), target_N)
    torch.testing.assert_close(log_prob_N, expected[0])
    torch.testing.assert_close(grad_hidden.float(), expected[1], atol=0.05, rtol=0.05)
    torch.testing.assert_close(grad_weight.float(), expected[2], atol=0.05, rtol=0.05)


def test_logits_of_low_precision_factors_are_not_rounded():
    hidden_NH, weight_VH, target_N = inputs(2, 64, 50, 16, torch.bfloat16, scale=6.0)
    exact_N = definition(hidden_NH.double(), weight_VH.double(), target_N)
    assert float((hidden_NH.double() @ weight_VH.double().T).abs().max()) > 16
    log_prob_N = chunked_log_probs(hidden_NH, weight_VH, target_N)
    torch.testing.assert_close(log_prob_N.double(), exact_N, atol=1e-4, rtol=1e-6)


def test_certain_and_impossible_tokens_have_finite_gradients():
    hidden_NH = torch.tensor([[1e4], [1e4]], requires_grad=True)
    log_prob_N = chunked_log_probs(
        hidden_NH, torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]), 1
    )
    log_prob_N.sum().backward()
    assert log_prob_N.tolist() == [0.0, -2e4] and hidden_NH.grad.isfinite().all()


def test_the_backward_pass_keeps_at_most_one_chunk_of_logits():
    hidden_NH, weight_VH, target_N = inputs(4, 40, 30, 2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        chunked_log_probs(hidden_NH, weight_VH, target_N, 8)
    assert sum(kept) == hidden_NH.numel() + weight_VH.numel() + 3 * len(target_N)


# ---- the PRM as a distribution -------------------------------------------------------------------


def _draw(seed: int, tokens: int, vocabulary: int, targets: int, dtype=torch.float64, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = [
        size * torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64)
        for _ in range(1 + targets)
    ]
    token_N = torch.randint(vocabulary, (tokens,), generator=generator)
    return [value.to(dtype) for value in logits], token_N


@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.integers(2, 12),
    st.integers(0, 3),
    st.integers(1, 5),
)
def test_the_chunked_divergence_is_the_definition(seed, tokens, vocabulary, targets, chunk):
    (logits_NV, *target_logits), token_N = _draw(seed, tokens, vocabulary, targets)
    logits_NV.requires_grad_()
    weight_N = torch.randn(tokens).double()
    weight_NJ = torch.randn(tokens, targets).double()

    log_prob_N, kl_NJ = log_probs_and_reverse_kl(logits_NV, token_N, target_logits, chunk)
    (slope_NV,) = torch.autograd.grad(
        (weight_N * log_prob_N).sum() + (weight_NJ * kl_NJ).sum(), logits_NV
    )

    plain_NV = F.log_softmax(logits_NV, -1)
    plain_N = plain_NV.gather(1, token_N[:, None])[:, 0]
    plain_NJ = torch.zeros(tokens, targets).double()
    for j, target_NV in enumerate(target_logits):
        log_target_NV = F.log_softmax(target_NV, -1)
        kl_NV = F.kl_div(log_target_NV, plain_NV, reduction="none", log_target=True)
        plain_NJ[:, j] = kl_NV.sum(-1)
    (expected_NV,) = torch.autograd.grad(
        (weight_N * plain_N).sum() + (weight_NJ * plain_NJ).sum(), logits_NV
    )
    torch.testing.assert_close(log_prob_N, plain_N)
    torch.testing.assert_close(kl_NJ, plain_NJ)
    torch.testing.assert_close(slope_NV, expected_NV)


def test_only_log_probs_or_only_divergences_may_be_used():
    (logits_NV, phi_NV), token_N = _draw(5, 5, 6, 1)
    for pick in (0, 1):
        one = logits_NV.clone().requires_grad_()
        both = logits_NV.clone().requires_grad_()
        log_probs_and_reverse_kl(one, token_N, [phi_NV], 2)[pick].sum().backward()
        outputs = log_probs_and_reverse_kl(both, token_N, [phi_NV], 2)
        (outputs[pick].sum() + 0.0 * outputs[1 - pick].sum()).backward()
        torch.testing.assert_close(one.grad, both.grad)


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_impossible_tokens_and_16_bit_logits(fused):
    options = {"chunk": 4, "fused": fused}
    logits_NV = torch.tensor([[0.0, 1.0, -torch.inf]]).requires_grad_()
    phi_NV = torch.tensor([[0.0, 1.0, 5.0]])
    log_prob_N, kl_N1 = log_probs_and_reverse_kl(logits_NV, torch.tensor([1]), [phi_NV], **options)
    (log_prob_N + kl_N1[:, 0]).sum().backward()
    assert (
        kl_N1.isfinite().all()
        and logits_NV.grad.isfinite().all()
        and float(logits_NV.grad[0, 2]) == 0.0
    )

    (wide_NV, phi_NV), token_N = _draw(1, 6, 40, 1, torch.float32)
    narrow_NV = wide_NV.bfloat16().requires_grad_()
    log_prob_N, kl_N1 = log_probs_and_reverse_kl(narrow_NV, token_N, [phi_NV.bfloat16()], **options)
    assert log_prob_N.dtype == kl_N1.dtype == torch.float32
    plain_N, plain_N1 = log_probs_and_reverse_kl(narrow_NV, token_N, [phi_NV.bfloat16()])
    torch.testing.assert_close((log_prob_N, kl_N1), (plain_N, plain_N1))
    sums = [(log_prob_N + kl_N1[:, 0]).sum(), (plain_N + plain_N1[:, 0]).sum()]
    fused_NV, plain_NV = (torch.autograd.grad(one, narrow_NV)[0] for one in sums)
    assert fused_NV.dtype == torch.bfloat16
    torch.testing.assert_close(fused_NV, plain_NV)


def test_a_target_of_another_vocabulary_is_refused():
    (logits_NV, phi_NV), token_N = _draw(0, 3, 5, 1)
    with pytest.raises(ValueError, match="policy's vocabulary"):
        log_probs_and_reverse_kl(logits_NV, token_N, [phi_NV[:, :4]])


def test_relative_rewards_vanish_where_policy_and_prm_agree():
    log_prob_BT = torch.tensor([[-1.0, -2.0, torch.nan]])
    mask_BT = torch.tensor([[1, 1, 0]])
    assert policy_relative_rewards(log_prob_BT, log_prob_BT, mask_BT).tolist() == [[0.0, 0.0, 0.0]]
    rewards_BT = policy_relative_rewards(
        torch.tensor([[-1.0, -2.0, 0.0]]), torch.tensor([[-3.0, -1.0, 0.0]]), mask_BT
    )
    assert rewards_BT.tolist() == [[2.0, -1.0, 0.0]]
