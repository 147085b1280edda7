# SPDX-License-Identifier: Apache-2.0
"""The batched generator: exact log-probabilities, and samples that belong to the request alone."""

import copy
import math

import numpy as np
import pytest
import torch
from character_llama import build_model, build_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from transformers import Mamba2Config, Mamba2ForCausalLM

from prime_ext.generate.generation import (
    BatchedGenerator,
    GenerationRequest,
    process_logits,
    sample_by_inversion,
)

EOS = 1


@pytest.fixture(scope="module")
def model():
    return build_model(0, len(build_tokenizer()))


def engine(model, **options) -> BatchedGenerator:
    return BatchedGenerator(
        model, eos_token_ids=[EOS], pad_token_id=0, n_tokens=model.config.vocab_size, **options
    )


def random_requests(n, seed=0, **options) -> list[GenerationRequest]:
    generator = np.random.default_rng(seed)
    requests = []
    for seed in range(n):
        prompt_ids = generator.integers(2, 40, size=generator.integers(1, 12)).tolist()
        requests.append(
            GenerationRequest(prompt_ids, int(generator.integers(1, 20)), seed=seed, **options)
        )
    return requests


@pytest.mark.parametrize("temperature", [1.0, 0.0, 0.6])
def test_log_probs_equal_those_of_a_plain_forward_pass(model, temperature):
    requests = random_requests(40, temperature=temperature)
    for request, output in zip(
        requests, engine(model, max_batch_size=16).generate(requests), strict=True
    ):
        ids = torch.tensor([[*request.prompt_ids, *output.token_ids]])
        logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / (temperature or 1.0)
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(output.log_probs).float(), expected, atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(("double", "tolerance"), [(False, 1e-5), (True, 1e-12)])
def test_samples_depend_neither_on_batch_nor_on_order(model, double, tolerance):
    model = copy.deepcopy(model).double() if double else model
    requests = random_requests(30)
    expected = [engine(model).generate([request])[0] for request in requests]
    for size, step in ((3, -1), (64, 1)):
        outputs = engine(model, max_batch_size=size, max_prefill_tokens=32).generate(
            requests[::step]
        )[::step]
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    # Requests that join a running batch.
    generator = engine(model, max_batch_size=8)
    outputs = {}
    waiting = list(requests)
    tickets = []
    while waiting or generator.has_work:
        if waiting:
            tickets.append(generator.submit(waiting.pop(0)))
        outputs |= generator.step()
    for ticket, output in zip(tickets, expected, strict=True):
        assert outputs[ticket].token_ids == output.token_ids
        assert outputs[ticket].log_probs == pytest.approx(output.log_probs, abs=tolerance)


def test_sampled_tokens_are_fixed(model):
    """Equal seeds give these tokens in every run: 5 requests in one batch, in float64."""
    requests = [
        *random_requests(3),
        *random_requests(2, seed=1, temperature=0.7, top_p=0.9, top_k=20),
    ]
    outputs = engine(copy.deepcopy(model).double()).generate(requests)
    assert [output.token_ids for output in outputs] == [
        [34, 5, 26, 9, 40, 33, 10, 6, 46, 21, 5, 3, 17, 48, 38, 8, 32, 49],
        [44, 10, 20, 11, 15, 45, 41, 26, 12, 13, 18, 34, 45, 47, 47, 40, 10, 10],
        [12, 34, 25, 43, 43, 49, 11, 11, 5, 37, 16, 2, 12, 41, 7, 41, 11],
        [49, 49, 25, 12, 41, 4, 28, 12, 41, 41, 35, 12, 42, 22, 12, 2, 14, 46, 22],
        [1],
    ]


def test_the_cache_forgets_columns_that_no_row_uses(model):
    generator = engine(model, max_batch_size=4)
    for request in random_requests(200):
        generator.submit(request)
    while generator.has_work:
        generator.step()
        if generator._batch is not None:
            assert generator._batch.cache.get_seq_length() <= 12 + 20 + 20


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.7, "temperature": 1.3}]
)
def test_truncated_sampling_stays_in_its_support_with_renormalized_log_probs(model, options):
    prompt = [4, 8]
    requests = [GenerationRequest(prompt, 1, seed=seed, **options) for seed in range(300)]
    outputs = engine(model).generate(requests + random_requests(5))[: len(requests)]
    logits = model(torch.tensor([prompt])).logits[0, -1].double() / options.get("temperature", 1.0)
    ranked = logits.softmax(-1).sort(descending=True)
    kept = ranked.values[: options.get("top_k", len(logits))]
    kept = kept / kept.sum()
    n_kept = int((kept.cumsum(0) - kept < options.get("top_p", 1.0)).sum())
    support = ranked.indices[:n_kept].tolist()
    assert {output.token_ids[0] for output in outputs} == set(support)
    expected = dict(zip(support, (kept[:n_kept] / kept[:n_kept].sum()).log().tolist(), strict=True))
    for output in outputs:
        assert output.log_probs[0] == pytest.approx(expected[output.token_ids[0]], abs=1e-5)


def test_stop_tokens_minimum_length_and_ignored_eos(model):
    stops = {
        "seed": 1,
        "stop_token_ids": [token for token in range(model.config.vocab_size) if token != 5],
    }
    short = [
        GenerationRequest([3], 20, **stops),
        GenerationRequest([3], 20, min_new_tokens=4, **stops),
    ]
    plain = [GenerationRequest([3], 60, seed=seed) for seed in range(60)]
    stopped, forced, *plain = engine(model).generate([*short, *plain])
    assert len(stopped.token_ids) == 1 or stopped.token_ids[0] == 5
    assert forced.token_ids[:4] == [5, 5, 5, 5]
    assert {output.stop_reason for output in plain} == {"stop", "length"}
    for output in plain:
        assert (EOS in output.token_ids) == (output.stop_reason == "stop")
        assert EOS not in output.token_ids[:-1] and (
            output.stop_reason == "stop" or len(output.token_ids) == 60
        )
    # Tokens of the model that the tokenizer lacks are not sampled.
    few = BatchedGenerator(model, eos_token_ids=[EOS], pad_token_id=0, n_tokens=10)
    unstoppable = few.generate(
        [GenerationRequest([3], 60, seed=seed, ignore_eos=True) for seed in range(60)]
    )
    assert all(len(output.token_ids) == 60 and max(output.token_ids) < 10 for output in unstoppable)
    assert any(EOS in output.token_ids for output in unstoppable)


def test_impossible_requests_and_models_are_refused(model):
    for name, value in {
        "prompt_ids": [],
        "max_new_tokens": 0,
        "top_p": 0.0,
        "top_k": -2,
        "seed": 2**64,
    }.items():
        with pytest.raises(ValueError, match=name):
            GenerationRequest(**{"prompt_ids": [3], "max_new_tokens": 2, name: value})
    with pytest.raises(ValueError, match="tokenizer has 1000 tokens"):
        BatchedGenerator(model, eos_token_ids=[EOS], pad_token_id=0, n_tokens=1000)
    sizes = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_heads": 4,
        "head_dim": 8,
    }
    config = Mamba2Config(**sizes, state_size=8, n_groups=1, expand=2)
    with pytest.raises(ValueError, match="attention models only"):
        BatchedGenerator(
            Mamba2ForCausalLM(config).eval(), eos_token_ids=[1], pad_token_id=0, n_tokens=20
        )


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 12),
    st.floats(0.01, 1.0),
)
def test_inversion_takes_the_token_whose_interval_contains_the_uniform(logits, uniform, k, p):
    top_k = torch.tensor([k])
    top_p = torch.tensor([p], dtype=torch.float64)
    processed = process_logits(
        torch.tensor([logits]), torch.tensor([0.8], dtype=torch.float64), top_k, top_p
    )
    token = int(sample_by_inversion(processed, torch.tensor([uniform], dtype=torch.float64))[0])
    probabilities = processed.double().softmax(-1)[0].tolist()
    assert probabilities[token] > 0
    assert math.fsum(probabilities[:token]) <= uniform + 1e-12
    assert uniform < math.fsum(probabilities[: token + 1]) + 1e-12
