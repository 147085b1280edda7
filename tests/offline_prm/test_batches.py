# SPDX-License-Identifier: Apache-2.0
"""Optimiser steps: every prompt once, whole groups, and the same rows whatever the number of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import byte_tokenizer

from prime_ext.offline_prm.batches import TokenRow, build_batch, encode, epoch_batches, usable_groups
from prime_ext.offline_prm.data import BadData, Example, LabelledData
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


@given(st.integers(1, 9), st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_ranks_share_the_rows_and_padding_weighs_nothing(n, ranks, multiple):
    rows = [TokenRow(torch.arange(3), torch.arange(2 + row)) for row in range(n)]
    fields = {WEIGHT: list(torch.ones(n)), "by_token": [torch.full((2 + row,), float(row)) for row in range(n)]}
    found = []
    for rank in range(ranks):
        batch = build_batch(rows, fields, rank, ranks, multiple)
        assert batch.size % (ranks * multiple) == 0 and batch.size - n < ranks * multiple
        assert len(batch.rows) == batch.size // ranks
        for place, row in enumerate(batch.tensors[ROW].tolist()):
            mask = batch.tensors["response_mask"].unbind()[place]
            values = batch.tensors["by_token"].unbind()[place]
            if row < n:
                found.append(row)
                assert mask.tolist() == [1] * (2 + row) and values.tolist() == [float(row)] * (2 + row)
            else:
                assert mask.tolist() == [0] and batch.tensors[WEIGHT][place] == 0 and values.tolist() == [0.0]
    assert sorted(found) == list(range(n))


def labelled(*texts):
    data = LabelledData()
    for number, text in enumerate(texts):
        data.add(f"p{number}", "", [Example(0, text, 1.0, f"row {number}")])
    return data


def test_a_response_that_is_cut_loses_the_labels_of_the_steps_behind_the_cut():
    example = Example(0, "ab\n\ncd", None, "row 1", (2, 6), (1.0, 0.0))
    whole = encode(ENCODER, [5, 6], example, 20)
    assert whole.step_ends == (1, 6) and whole.step_labels == (1.0, 0.0) and len(whole.response) == 7
    cut = encode(ENCODER, [5, 6], example, 6)
    assert len(cut.response) == 4 and cut.step_labels == (1.0, None)


def test_responses_that_do_not_fit():
    data = labelled("abc", "abcdefghij", "x")
    prompts = [[1, 2], [1, 2], [1] * 9]
    kept, _, counts = usable_groups(data, prompts, 8, "truncate", ENCODER)
    assert kept.prompts == ["p0", "p1"] and counts == {"prompts dropped": 1, "responses dropped": 0}
    kept, kept_prompts, counts = usable_groups(data, prompts, 8, "drop", ENCODER)
    assert kept.prompts == ["p0"] and len(kept_prompts) == 1
    assert counts == {"prompts dropped": 1, "responses dropped": 1}
    with pytest.raises(BadData, match="row 1: a response does not fit into data.max_length=8"):
        usable_groups(labelled("abc", "abcdefghij"), prompts[:2], 8, "error", ENCODER)
    with pytest.raises(BadData, match="no prompt leaves room"):
        usable_groups(labelled("abc"), [[1] * 9], 8, "truncate", ENCODER)
