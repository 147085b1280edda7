# SPDX-License-Identifier: Apache-2.0
"""Optimiser steps: every prompt once, whole groups, and the same rows whatever the number of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import byte_tokenizer

from prime_ext.offline_prm.batches import TokenRow, build_batch, encode, epoch_batches, usable_groups
from prime_ext.offline_prm.data import BadData, Example, Group
from prime_ext.prm.worker import ROW, WEIGHT
from prime_ext.utils.text_tokens import TextEncoder

ENCODER = TextEncoder(byte_tokenizer(None))


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_meets_every_prompt_once_in_steps_of_about_the_same_size(n, size, seed, epoch):
    batches = epoch_batches(n, size, seed, epoch)
    assert sorted(group for batch in batches for group in batch) == list(range(n))
    sizes = [len(batch) for batch in batches]
    assert min(sizes) >= min(size, n) and max(sizes) - min(sizes) <= 1
    assert batches == epoch_batches(n, size, seed, epoch)
    assert epoch_batches(40, 4, seed, epoch) != epoch_batches(40, 4, seed, epoch + 1)


@given(st.integers(1, 9), st.sampled_from([1, 2, 4]))
def test_ranks_share_the_rows_and_padding_weighs_nothing(n, ranks):
    rows = [TokenRow(torch.arange(3), torch.arange(2 + row)) for row in range(n)]
    fields = {WEIGHT: list(torch.ones(n)), "by_token": [torch.full((2 + row,), float(row)) for row in range(n)]}
    found = []
    for rank in range(ranks):
        batch, share = build_batch(rows, fields, rank, ranks)
        assert batch[ROW].tolist() == share and len(share) == -(-n // ranks)
        for place, row in enumerate(share):
            mask = batch["response_mask"].unbind()[place]
            values = batch["by_token"].unbind()[place]
            if row < n:
                found.append(row)
                assert mask.tolist() == [1] * (2 + row) and values.tolist() == [float(row)] * (2 + row)
            else:
                assert mask.tolist() == [0] and batch[WEIGHT][place] == 0 and values.tolist() == [0.0]
    assert sorted(found) == list(range(n))


def test_a_response_that_is_cut_loses_the_labels_of_the_steps_behind_the_cut():
    example = Example("ab\n\ncd", None, "row 1", (2, 6), (1.0, 0.0))
    whole = encode(ENCODER, [5, 6], example, 20)
    assert whole.step_ends == (1, 6) and whole.step_labels == (1.0, 0.0) and len(whole.response) == 7
    cut = encode(ENCODER, [5, 6], example, 6)
    assert len(cut.response) == 4 and cut.step_labels == (1.0, None)


def test_prompts_without_room_for_a_response_are_dropped():
    groups = [Group(prompt, [Example("abcdefghij", 1.0, "row")]) for prompt in ("p0", "p" * 9, "p1")]
    usable = usable_groups(groups, ENCODER, 8)
    assert [(group.prompt, len(group.prompt_ids)) for group in usable] == [("p0", 2), ("p1", 2)]
    with pytest.raises(BadData, match="no prompt leaves room"):
        usable_groups(groups, ENCODER, 2)
