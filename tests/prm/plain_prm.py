# SPDX-License-Identifier: Apache-2.0
"""The engine tests' model, their PRM as a plain loop over transformers, and comparisons."""

import math

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

BETA = 0.5


def write_model(path):
    """Write a small Llama with a vocabulary of 40 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(2.5)  # away from the uniform distribution of a fresh model
    model.save_pretrained(path)
    vocabulary = {"<pad>": 0, "<eos>": 1, **{str(number): number for number in range(2, 40)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(path)


def response_log_probs(model, rollout):
    ids = torch.cat((rollout["prompt"], rollout["response"]))
    log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return log_probs[len(rollout["prompt"]) - 1 :]


def mini_batches(rollouts):
    """Return valid rows in the order of their prompts, cut into two equal halves."""
    valid = [rollout for rollout in rollouts if not rollout["padding"]]
    return [valid[: len(valid) // 2], valid[len(valid) // 2 :]]


def two_updates(model_path, rollouts, bias=None, epochs=1, batches=None, trainable_layers=None):
    """Make two updates of two mini-batches each, one rollout at a time.

    The schedule is a cosine over 10 updates. A starting value ``bias`` is trained with the model,
    by AdamW with a learning rate of 0.05. ``batches`` are other mini-batches than the two halves.
    With ``trainable_layers`` only the last layers are trained.
    """
    trained = torch.tensor(bias or 0.0, dtype=torch.float64, requires_grad=True)
    bias_optimizer = torch.optim.AdamW(
        [trained], lr=0.05, betas=(0.9, 0.99), eps=1e-4, weight_decay=0.0
    )
    reference = AutoModelForCausalLM.from_pretrained(model_path).requires_grad_(False)
    model = AutoModelForCausalLM.from_pretrained(model_path)
    if trainable_layers is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(
                any(f"layers.{2 - 1 - i}." in name for i in range(trainable_layers))
            )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.0, eps=1e-3
    )
    updates = []
    for update in range(2):
        losses = []
        norms = []
        for batch in (batches or mini_batches(rollouts)) * epochs:
            bias_optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 + math.cos(math.pi * update / 10)) / 2
            optimizer.zero_grad()
            total = 0.0
            for rollout in batch:
                mask = rollout["mask"]
                q = (
                    (response_log_probs(model, rollout) - response_log_probs(reference, rollout))
                    * mask
                ).sum()
                p = torch.sigmoid(BETA * q + trained)
                y = rollout["label"]
                loss = -(y * p.log() + (1 - y) * (1 - p).log()) / len(batch)
                loss.backward()
                total += float(loss)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)))
            optimizer.step()
            if bias is not None:
                bias_optimizer.step()
            losses.append(total)
        updates.append({"loss": losses, "grad_norm": norms, "bias": float(trained)})
    scores = [response_log_probs(model, rollout).detach() for rollout in rollouts]
    return {"updates": updates, "scores": scores, "weights": dict(model.named_parameters())}


def assert_rows_close(rows, expected_rows, tolerance=1e-5):
    assert len(rows) == len(expected_rows)
    for row, expected in zip(rows, expected_rows, strict=True):
        torch.testing.assert_close(row, expected, atol=tolerance, rtol=0)


def largest_difference(left, right):
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


def assert_updates_close(updates, expected):
    for update, other in zip(updates, expected, strict=True):
        assert update["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert update["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def assert_weights_close(weights, expected, tolerance=1e-5):
    assert set(weights) == set(expected)
    for name, weight in weights.items():
        torch.testing.assert_close(
            weight,
            expected[name].detach(),
            atol=tolerance,
            rtol=0,
            msg=lambda m, n=name: f"{n}: {m}",
        )
