# SPDX-License-Identifier: Apache-2.0
"""Chunked log-probabilities against log_softmax of all logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.algorithms.chunked_log_probs import chunked_log_probs, chunked_log_probs_and_entropy

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
    hidden_NH, weight_VH = hidden_NH.detach().requires_grad_(), weight_VH.detach().requires_grad_()
    value_N = function(hidden_NH, weight_VH, target_N, *options)
    upstream_N = torch.linspace(-1, 2, len(target_N), dtype=value_N.dtype)
    (value_N * upstream_N).sum().backward()
    return value_N.detach(), hidden_NH.grad, weight_VH.grad


def with_entropy(*arguments):
    log_prob_N, entropy_N = chunked_log_probs_and_entropy(*arguments)
    return log_prob_N + ENTROPY_WEIGHT * entropy_N


@given(
    st.integers(0, 1000), st.integers(0, 9), st.integers(2, 20), st.integers(1, 10), st.sampled_from([0.5, 1.0, 1.7])
)
def test_value_and_gradients_equal_the_definition_for_any_chunk(seed, n, vocabulary, chunk, temperature):
    given_inputs = inputs(seed, n, vocabulary, 4)
    for function, options, entropy_weight in (
        (chunked_log_probs, (chunk, temperature), 0.0),
        (with_entropy, (chunk, temperature), ENTROPY_WEIGHT),
    ):
        expected = gradients(definition, *given_inputs, temperature, entropy_weight)
        for got, wanted in zip(gradients(function, *given_inputs, *options), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)


def test_low_precision_weights_give_float32_log_probabilities_and_gradients_in_their_own_precision():
    hidden_NH, weight_VH, target_N = inputs(2, 6, 50, 8, torch.bfloat16)
    log_prob_N, grad_hidden, grad_weight = gradients(chunked_log_probs, hidden_NH, weight_VH, target_N, 4)
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
    log_prob_N = chunked_log_probs(hidden_NH, torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]), 1)
    log_prob_N.sum().backward()
    assert log_prob_N.tolist() == [0.0, -2e4] and hidden_NH.grad.isfinite().all()


def test_no_more_than_a_chunk_of_logits_is_kept_for_the_backward_pass():
    hidden_NH, weight_VH, target_N = inputs(4, 40, 30, 2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        chunked_log_probs(hidden_NH, weight_VH, target_N, 8)
    assert sum(kept) == hidden_NH.numel() + weight_VH.numel() + 3 * len(target_N)


def test_shapes_that_do_not_fit_are_refused():
    hidden_NH, weight_VH, target_N = inputs(5, 4, 6, 2)
    with pytest.raises(ValueError, match=r"must be \(N, H\) and \(V, H\)"):
        chunked_log_probs(hidden_NH, weight_VH.T, target_N)
    with pytest.raises(ValueError, match="one id per row"):
        chunked_log_probs(hidden_NH, weight_VH, target_N[:2])
    for chunk, temperature in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="must be positive"):
            chunked_log_probs(hidden_NH, weight_VH, target_N, chunk, temperature)
