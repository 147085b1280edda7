# SPDX-License-Identifier: Apache-2.0
"""Tokens that are not the policy's own have no part in a loss: their log-probabilities have no gradient."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.utils import tensordict_utils as tu

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.prm.worker import LABEL, OFFSET, REFERENCE_LOG_PROBS, ROW, WEIGHT, PRMLoss
from prime_ext.trainer.policy_loss import COEFFICIENTS, TargetedPolicyLoss

NAN = float("nan")


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@st.composite
def micro_batches(draw):
    """Packed rows with tools' tokens anywhere, and what an engine says at each place: of the token behind it."""
    masks = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n_prompt = torch.randint(1, 4, (len(masks),), generator=generator).tolist()
    own = [torch.tensor(mask) for mask in masks]
    # Garbage of the reference where the token is not the policy's.
    reference = [torch.where(mask > 0, -torch.rand(len(mask), generator=generator), NAN) for mask in own]
    data = tu.get_tensordict(
        {
            "prompts": jagged([torch.ones(n, dtype=torch.long) for n in n_prompt]),
            "responses": jagged([torch.ones(len(mask), dtype=torch.long) for mask in own]),
            "response_mask": jagged(own),
            REFERENCE_LOG_PROBS: jagged(reference),
            LABEL: torch.randint(0, 2, (len(own),), generator=generator).float(),
            WEIGHT: torch.ones(len(own)),
            OFFSET: torch.rand(len(own), generator=generator),
            ROW: torch.arange(len(own)),
        },
        {"dp_size": 1, COEFFICIENTS: {"prm": 1.0}},
    )
    # The value at a place is of the next token: the last place of the prompt says the first token of the response.
    counts = [[False] * (n - 1) + mask.bool().tolist() + [False] for n, mask in zip(n_prompt, own, strict=True)]
    lengths = torch.tensor([0, *map(len, counts)]).cumsum(0)
    counted_N = torch.tensor(sum(counts, []))
    value_N = -torch.rand(len(counted_N), generator=generator)
    return data, lengths, counted_N, value_N


def of_engine(value_N, lengths):
    value_N = value_N.clone().requires_grad_()
    return value_N, torch.nested.nested_tensor_from_jagged(value_N, lengths)


def has_no_part(loss_of, lengths, counted_N, value_N):
    losses = []
    for other in (0.0, -50.0):
        leaf_N, nested = of_engine(torch.where(counted_N, value_N, other), lengths)
        loss = loss_of(nested)
        loss.backward()
        assert torch.equal(leaf_N.grad[~counted_N], torch.zeros_like(leaf_N.grad[~counted_N]))
        assert loss.isfinite() and leaf_N.grad.isfinite().all()
        losses.append(loss.detach())
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", PRM_LOSSES)
@given(micro_batches())
def test_the_loss_of_the_prm(name, drawn):
    data, *rest = drawn
    has_no_part(lambda nested: PRMLoss(name, 0.05)({"log_probs": nested}, data)[0], *rest)


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
)
@given(micro_batches())
def test_the_pull_towards_the_prm_as_a_distribution(mode, drawn):
    data, lengths, counted_N, value_N = drawn
    if not counted_N.any():
        return
    config = SimpleNamespace(loss_agg_mode=mode, global_batch_info={})
    nothing = partial(lambda config, model_output, data, dp_group: (torch.zeros(()), {}), config=config)
    loss = TargetedPolicyLoss(nothing)
    has_no_part(lambda nested: loss(model_output={"kl_prm": nested}, data=data)[0], lengths, counted_N, -value_N)
