# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps: every prompt once, the same rows on any ranks, and losses of step labels."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import byte_tokenizer

from prime_ext.algorithms.implicit_reward import prefix_values
from prime_ext.prm.fields import ROW, WEIGHT
from prime_ext.utils.rows import SourceError
from prime_ext.utils.text_tokens import TextEncoder
from prime_ext.verl_adapter.offline_prm.batches import (
    TokenRow,
    build_batch,
    drop_cut_responses,
    encode,
    encode_prompts,
    epoch_batches,
)
from prime_ext.verl_adapter.offline_prm.labeled_responses import Example, PromptGroup
from prime_ext.verl_adapter.offline_prm.losses import step_loss

ENCODER = TextEncoder(byte_tokenizer(None))


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_every_prompt_once_in_similar_steps(n, size, seed, epoch):
    batches = epoch_batches(n, size, seed, epoch)
    assert sorted(group for batch in batches for group in batch) == list(range(n))
    sizes = [len(batch) for batch in batches]
    assert min(sizes) >= min(size, n) and max(sizes) - min(sizes) <= 1
    assert batches == epoch_batches(n, size, seed, epoch)
    assert epoch_batches(40, 4, seed, epoch) != epoch_batches(40, 4, seed, epoch + 1)


@given(st.integers(1, 9), st.sampled_from([1, 2, 4]))
def test_ranks_share_the_rows_and_padding_weighs_nothing(n, ranks):
    rows = [TokenRow(torch.arange(3), torch.arange(2 + row)) for row in range(n)]
    fields = {
        WEIGHT: list(torch.ones(n)),
        "by_token": [torch.full((2 + row,), float(row)) for row in range(n)],
    }
    seen = []
    for rank in range(ranks):
        batch, share = build_batch(rows, fields, rank, ranks)
        assert batch[ROW].tolist() == share and len(share) == -(-n // ranks)
        for place, row in enumerate(share):
            mask = batch["response_mask"].unbind()[place]
            values = batch["by_token"].unbind()[place]
            if row < n:
                seen.append(row)
                assert mask.tolist() == [1] * (2 + row) and values.tolist() == [float(row)] * (
                    2 + row
                )
            else:
                assert (
                    mask.tolist() == [0] and batch[WEIGHT][place] == 0 and values.tolist() == [0.0]
                )
    assert sorted(seen) == list(range(n))


def test_a_truncated_response_loses_the_labels_after_the_cut():
    example = Example("ab\n\ncd", None, (2, 6), (1.0, 0.0))
    whole = encode(ENCODER, [5, 6], example, 20)
    assert whole.labeled_ends == ((1, 1.0), (6, 0.0)) and len(whole.response) == 7
    cut = encode(ENCODER, [5, 6], example, 6)
    assert len(cut.response) == 4 and cut.labeled_ends == ((1, 1.0),)


def test_prompts_without_room_for_a_response_are_dropped():
    groups = [
        PromptGroup(prompt, [Example("abcdefghij", 1.0, where="row")])
        for prompt in ("p0", "p" * 9, "p1")
    ]
    usable = encode_prompts(groups, ENCODER, 8)
    assert [(group.prompt, len(group.prompt_ids)) for group in usable] == [("p0", 2), ("p1", 2)]
    with pytest.raises(SourceError, match="no prompt leaves room"):
        encode_prompts(groups, ENCODER, 2)


def test_a_response_is_whole_with_its_end_token_or_dropped():
    group = PromptGroup("p0", [Example("abc", 1.0), Example("ab", 0.0), Example("é", 1.0)])
    # Room for three tokens, one of which ends the sequence.
    [kept] = drop_cut_responses(encode_prompts([group], ENCODER, 5), ENCODER, 5)
    assert [example.text for example in kept.examples] == ["ab", "é"]
    with pytest.raises(SourceError, match="no response fits"):
        drop_cut_responses(encode_prompts([group], ENCODER, 4), ENCODER, 4)


BETA = 0.5


def slow_loss(q_rows, ends_rows, labels_rows):
    losses = []
    for q, ends, labels in zip(q_rows, ends_rows, labels_rows, strict=True):
        for end, label in zip(ends, labels, strict=True):
            p = 1 / (1 + math.exp(-BETA * sum(q[: end + 1])))
            losses.append(-(label * math.log(p) + (1 - label) * math.log(1 - p)))
    return sum(losses) / len(losses)


LABELLED_STEPS = st.lists(
    st.tuples(st.lists(st.floats(-2, 2), min_size=1, max_size=3), st.sampled_from([0.0, 1.0]))
)


@given(st.lists(LABELLED_STEPS.filter(bool), min_size=1, max_size=3))
def test_the_loss_is_the_mean_over_labeled_steps(responses):
    q_rows = [[value for step, _ in steps for value in step] for steps in responses]
    ends_rows = [[n - 1 for n in accumulate(len(step) for step, _ in steps)] for steps in responses]
    labels_rows = [[label for _, label in steps] for steps in responses]
    total = sum(map(len, ends_rows))
    width = 1 + max(map(len, q_rows))
    q, mask, label, weight = (
        torch.zeros(len(q_rows), width, dtype=torch.float64) for _ in range(4)
    )
    q += 5.0
    for row, (values, ends, labels) in enumerate(zip(q_rows, ends_rows, labels_rows, strict=True)):
        q[row, : len(values)] = torch.tensor(values)
        mask[row, : len(values)] = 1
        label[row, ends] = torch.tensor(labels, dtype=torch.float64)
        weight[row, ends] = 1 / total
    loss = step_loss(prefix_values(q, mask, BETA), label, weight)
    assert float(loss) == pytest.approx(slow_loss(q_rows, ends_rows, labels_rows), abs=1e-5)
