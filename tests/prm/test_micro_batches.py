# SPDX-License-Identifier: Apache-2.0
"""Micro-batches do not wait for the device, and tokens of tools have no part in a loss.

The device is torch's ``meta``: its tensors have no values, so that reading one is an error.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import no_padding_2_padding

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.prm.fields import (
    LABEL,
    OFFSET,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
)
from prime_ext.prm.loss import PRMLoss, pad_responses
from prime_ext.verl_adapter import outcome_bias
from prime_ext.verl_adapter.policy_loss import COEFFICIENTS, TargetedPolicyLoss

PROMPTS = [3, 1, 4]
RESPONSES = [2, 6, 1]


def jagged(lengths, dtype=torch.float32):
    return torch.nested.as_nested_tensor(
        [torch.ones(n, dtype=dtype) for n in lengths], layout=torch.jagged
    )


def micro_batch(device, seed=0):
    """Return a micro-batch on the device, the engine's output, and the output's flat values."""
    whole = [sum(pair) for pair in zip(PROMPTS, RESPONSES, strict=True)]
    data = tu.get_tensordict(
        {
            "prompts": jagged(PROMPTS, torch.long),
            "responses": jagged(RESPONSES, torch.long),
            "response_mask": jagged(RESPONSES, torch.long),
            REFERENCE_LOG_PROBS: jagged(RESPONSES),
            **{name: torch.ones(3) for name in (LABEL, WEIGHT, OFFSET)},
            ROW: torch.arange(3),
        },
        {"dp_size": 1, COEFFICIENTS: {"prm": 1.0}},
    ).to(device)
    values = (
        torch.randn(sum(whole), generator=torch.Generator().manual_seed(seed))
        .to(device)
        .requires_grad_()
    )
    offsets = torch.tensor([0, *whole]).cumsum(0).to(device)
    return data, {"log_probs": torch.nested.nested_tensor_from_jagged(values, offsets)}, values


@pytest.mark.parametrize("name", PRM_LOSSES)
def test_the_loss_of_the_prm(name, monkeypatch):
    data, output, values = micro_batch("meta")
    loss_fn = PRMLoss(name, 0.05)
    if name == "ce":
        monkeypatch.setattr(outcome_bias, "get_device_name", lambda: "meta")
        bias = outcome_bias.OutcomeBias(0.05)
        bias.start(torch.tensor(0.5).sigmoid().item())
        loss_fn.bias = bias.parameter
    loss_fn.start_recording()
    for _ in range(2):
        loss, _ = loss_fn(output, data)
        loss.backward(retain_graph=True)
    assert values.grad.shape == values.shape


def test_responses_are_those_that_verl_cuts_out():
    data, output, values = micro_batch("cpu")
    actual = pad_responses(output["log_probs"], data["responses"])
    expected = no_padding_2_padding(output["log_probs"], data)
    assert torch.equal(actual, expected)
    slope = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(padded, values, slope)[0] for padded in (actual, expected)]
    assert torch.equal(*gradients)


def pull(mode, value, data):
    """Return the policy's loss with nothing in it but the pull toward the PRM."""
    config = SimpleNamespace(loss_agg_mode=mode, global_batch_info={})
    nothing = partial(
        lambda config, model_output, data, dp_group: (torch.zeros(()), {}), config=config
    )
    return TargetedPolicyLoss(nothing)(model_output={"kl_prm": value}, data=data)[0]


masks = st.tuples(*(st.lists(st.integers(0, 1), min_size=n, max_size=n) for n in RESPONSES)).filter(
    lambda drawn: any(map(any, drawn))
)
MODES = [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


@pytest.mark.parametrize("name", [*PRM_LOSSES, *MODES])
@given(
    masks=st.tuples(
        *(st.lists(st.integers(0, 1), min_size=n, max_size=n) for n in RESPONSES)
    ).filter(lambda masks: any(map(any, masks)))
)
def test_tokens_of_tools_have_no_part_in_a_loss(name, masks):
    data, output, values = micro_batch("cpu")
    own = [torch.tensor(mask) for mask in masks]
    data["response_mask"] = torch.nested.as_nested_tensor(own, layout=torch.jagged)
    garbage = [torch.where(mask > 0, -0.5, torch.nan) for mask in own]
    data[REFERENCE_LOG_PROBS] = torch.nested.as_nested_tensor(garbage, layout=torch.jagged)
    # The value of a token is at the place before it.
    counts = [[0] * (prompt - 1) + mask + [0] for prompt, mask in zip(PROMPTS, masks, strict=True)]
    counted_N = torch.tensor(sum(counts, [])).bool()
    losses = []
    for other in (0.0, -50.0):
        leaf_N = torch.where(counted_N, values.detach(), other).requires_grad_()
        value = torch.nested.nested_tensor_from_jagged(leaf_N, output["log_probs"].offsets())
        loss = (
            PRMLoss(name, 0.05)({"log_probs": value}, data)[0]
            if name in PRM_LOSSES
            else pull(name, value, data)
        )
        loss.backward()
        assert (
            not leaf_N.grad[~counted_N].any() and loss.isfinite() and leaf_N.grad.isfinite().all()
        )
        losses.append(loss.detach())
    assert torch.equal(*losses)
