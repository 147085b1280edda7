# SPDX-License-Identifier: Apache-2.0
"""Optimiser steps: every prompt once, whole groups, and the same rows whatever the number of ranks."""

import itertools

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


def test_a_response_that_is_cut_loses_the_labels_of_the_steps_behind_the_cut():
    example = Example(0, "ab\n\ncd", None, "row 1", (2, 6), (1.0, 0.0))
    whole = encode(ENCODER, [5, 6], example, 20)
    assert whole.step_ends == (1, 6) and whole.step_labels == (1.0, 0.0) and len(whole.response) == 7
    cut = encode(ENCODER, [5, 6], example, 6)
    assert len(cut.response) == 4 and cut.step_labels == (1.0, None)


LONG, TOO_LONG = "p" * 9, "abcdefghij"


@pytest.mark.parametrize(
    ("rows", "overlong", "expected"),
    [
        ({"p0": ["abc"], "p1": [TOO_LONG], LONG: ["x"]}, "truncate", ["p0", "p1"]),
        ({"p0": ["abc", TOO_LONG], "p1": [TOO_LONG], LONG: ["x"]}, "drop", ["p0"]),
        ({"p0": ["abc"], "p1": ["abc", TOO_LONG]}, "error", "row 2: a response does not fit into data.max_length=8"),
        ({"p0": ["abc"], LONG: ["x"]}, "error", "row 1: the prompt has 9 tokens, data.max_length=8"),
        ({LONG: ["x"]}, "truncate", "no prompt leaves room"),
    ],
)
def test_what_does_not_fit_is_cut_dropped_or_refused(rows, overlong, expected):
    data, number = LabelledData(), itertools.count()
    for prompt, texts in rows.items():
        data.add(prompt, "", [Example(0, text, 1.0, f"row {next(number)}") for text in texts])
    if isinstance(expected, str):
        with pytest.raises(BadData, match=expected):
            usable_groups(data, ENCODER, 8, overlong)
        return
    kept, counts = usable_groups(data, ENCODER, 8, overlong)
    assert kept.prompts == expected and list(map(len, kept.prompt_ids)) == [2] * len(expected)
    assert counts == {"prompts dropped": 1, "responses dropped": 2 if overlong == "drop" else 0}
    assert [e.text for group in kept.examples for e in group] == (["abc"] if overlong == "drop" else ["abc", TOO_LONG])
