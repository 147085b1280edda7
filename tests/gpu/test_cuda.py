# SPDX-License-Identifier: Apache-2.0
"""Conditions on a CUDA device that a test can state; tests/gpu/measure.py has the engines."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prime_ext.algorithms.chunked_log_probs import compute_log_probs_and_entropy
from prime_ext.generate.generation import BatchedGenerator, GenerationRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def plain_log_probs(hidden_NH, weight_VH, target_N):
    """Compute log-probabilities by the definition, with the logits of all tokens at once."""
    return (hidden_NH @ weight_VH.T).log_softmax(-1).gather(1, target_N[:, None])[:, 0]


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_chunked_log_probs_and_gradients_equal_fp64_on_the_cpu(dtype, bound):
    torch.manual_seed(0)
    hidden_NH = torch.randn(700, 64).to(dtype)
    weight_VH = (torch.randn(5000, 64) / 4).to(dtype)
    target_N = torch.randint(5000, (700,))
    results = []
    for function, device, precision in (
        (plain_log_probs, "cpu", torch.float64),
        (
            lambda *of_tokens: compute_log_probs_and_entropy(*of_tokens, with_entropy=False)[0],
            "cuda",
            dtype,
        ),
    ):
        hidden, weight = (x.to(device, precision).requires_grad_() for x in (hidden_NH, weight_VH))
        log_prob_N = function(hidden, weight, target_N.to(device))
        log_prob_N.sum().backward()
        results.append([x.detach().cpu().double() for x in (log_prob_N, hidden.grad, weight.grad)])
    for exact, there in zip(*results, strict=True):
        assert (there - exact).norm() <= bound * exact.norm()


def test_equal_seeds_give_the_same_tokens_as_the_cpu():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config).double().eval()
    requests = [
        GenerationRequest([5 + i, 7, 11][: 1 + i % 3], max_new_tokens=20, seed=i) for i in range(16)
    ]
    outputs = [
        BatchedGenerator(model.to(device), eos_token_ids=[1], pad_token_id=0, n_tokens=97).generate(
            requests
        )
        for device in ("cpu", "cuda")
    ]
    assert [output.token_ids for output in outputs[0]] == [
        output.token_ids for output in outputs[1]
    ]
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=1e-6, rtol=0
        )
