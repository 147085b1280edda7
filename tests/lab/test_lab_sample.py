# SPDX-License-Identifier: Apache-2.0
"""The sampler draws from what a pass over the whole response gives, and stops at ``<eos>``."""

import torch
from transformers import AutoModelForCausalLM

from recipes.lab.train import chosen_log_probs, response_logits, sample


def sampled(task, start, seed, limit=None):
    model = AutoModelForCausalLM.from_pretrained(start)
    drawn = []
    model.register_forward_hook(lambda module, inputs, output: drawn.append(output.logits[:, -1]))
    prompt_BP = task.prompts(task.draw(64, torch.Generator().manual_seed(seed)))
    rollouts = sample(model, prompt_BP, task.pad, task.eos, limit or task.limit, torch.Generator().manual_seed(seed))
    return model, rollouts, torch.stack(drawn, 1).clone()


def test_logits_with_the_cache_are_those_of_one_pass(task, start):
    """Prompts of different lengths, so that left padding counts."""
    model, rollouts, cached_BTV = sampled(task, start, 0)
    assert not rollouts.prompt_mask_BP.all()
    with torch.no_grad():
        full_BTV = response_logits(model, rollouts)
    valid_BT = rollouts.mask_BT[:, : cached_BTV.shape[1]]
    torch.testing.assert_close(cached_BTV[valid_BT], full_BTV[:, : cached_BTV.shape[1]][valid_BT], atol=1e-5, rtol=1e-4)
    log_prob_BT = chosen_log_probs(full_BTV, rollouts)
    by_hand = full_BTV[3, 1].log_softmax(-1)[rollouts.response_BT[3, 1]]
    assert log_prob_BT[3, 1] == by_hand


def test_padding_on_the_left_changes_nothing(task, start):
    model, rollouts, _ = sampled(task, start, 1)
    row = int((~rollouts.prompt_mask_BP).any(1).nonzero()[0])
    alone = rollouts.rows(torch.tensor([row]))
    short = alone._replace(
        prompt_BP=alone.prompt_BP[alone.prompt_mask_BP][None], prompt_mask_BP=alone.prompt_mask_BP[:, -1:]
    )
    short = short._replace(prompt_mask_BP=torch.ones_like(short.prompt_BP, dtype=torch.bool))
    with torch.no_grad():
        padded, bare = response_logits(model, alone), response_logits(model, short)
    torch.testing.assert_close(padded[alone.mask_BT], bare[alone.mask_BT], atol=1e-5, rtol=1e-4)


def test_a_response_ends_with_its_first_end_token_or_at_the_limit(task, start):
    _, rollouts, _ = sampled(task, start, 2)
    is_end_BT = rollouts.response_BT == task.eos
    for tokens, end, mask in zip(rollouts.response_BT, is_end_BT, rollouts.mask_BT, strict=True):
        length = int(end.nonzero()[0]) + 1 if end.any() else task.limit
        assert mask.tolist() == [t < length for t in range(task.limit)]
        assert (tokens[length:] == task.pad).all()
    assert is_end_BT.any(1).float().mean() > 0.5
    assert sampled(task, start, 2, limit=3)[1].mask_BT.all()
