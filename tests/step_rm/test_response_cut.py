# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response, as texts and as tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_step_rm import bert_tokenizer, byte_tokenizer

from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.response_cut import Cut, ResponseCutter
from prime_ext.trainer.response_steps import ResponseSteps

TOKENIZER = byte_tokenizer()


def cutter(splitter="auto", pattern=None, delimiters=None, tokenizer=TOKENIZER):
    return ResponseCutter(StepSettings(splitter, pattern, delimiters), tokenizer)


def ids(text):
    return TOKENIZER(text)["input_ids"]


def test_texts_and_ends_of_numbered_steps():
    cut = cutter().cut([*ids("1. We add.\n2. So 7."), TOKENIZER.eos_token_id])
    assert cut == Cut(("1. We add.\n", "2. So 7."), (10, 19))


def test_no_tokens_no_steps():
    assert cutter().cut([]) == Cut((), ()) == cutter(delimiters=[5], splitter="delimiters").cut([])


def test_delimiter_tokens_end_steps_and_of_several_in_a_row_the_last_one_does():
    semicolon = ids(";")[0]
    cut = cutter("delimiters", delimiters=[semicolon]).cut(ids("a;b;;c"))
    assert cut == Cut(("a;", "b;;", "c"), (1, 4, 5))


def test_steps_without_content_belong_to_their_neighbours():
    semicolon = ids(";")[0]
    tokens = [*ids("...;a;?;b;"), TOKENIZER.eos_token_id]
    cut = cutter("delimiters", delimiters=[semicolon]).cut(tokens)
    assert cut.texts == ("...;", "a;", "?;", "b;", "")
    assert cut.with_content() == Cut(("...;a;?;", "b;"), (7, 10))
    assert Cut(("...", "?"), (2, 3)).with_content() == Cut((), ())


def test_steps_that_share_their_only_token_are_two_texts_with_one_end():
    """A token of a vocabulary may hold the end of one step and the whole of the next."""
    from prime_ext.step_rm.token_text import last_tokens, step_end_tokens

    pieces, spans = ["a;b;", "c"], [(0, 2), (2, 4), (4, 5)]
    assert last_tokens(pieces, spans) == [0, 0, 1] and step_end_tokens(pieces, spans) == [0]


@given(st.text(alphabet="ab1. \n[]Step:é€", max_size=60), st.sampled_from(["auto", "lines", "sentences", "pspo"]))
def test_the_texts_are_the_response_and_the_trainer_finds_the_same_ends(text, splitter):
    tokens = ids(text)
    cut = cutter(splitter).cut(tokens)
    assert "".join(cut.texts) == text and list(cut.ends) == sorted(cut.ends)
    content = cut.with_content()
    assert "".join(content.texts) in (text, "") and len(content.texts) <= len(cut.texts)
    if tokens:
        steps = ResponseSteps(StepSettings(splitter, None, None), TOKENIZER)
        boundary_BT = steps.boundaries(torch.tensor([tokens]), torch.ones(1, len(tokens)))
        assert boundary_BT[0].nonzero()[:, 0].tolist() == sorted(set(cut.ends[:-1]))
        assert not cut.ends or cut.ends[-1] == len(tokens) - 1


@pytest.mark.parametrize("tokenizer", [TOKENIZER, bert_tokenizer()])
def test_special_tokens_have_no_text_and_belong_to_the_last_step(tokenizer):
    special = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    tokens = tokenizer("Step 1: we add 3.\nStep 2: so 7.", add_special_tokens=False)["input_ids"]
    cut = cutter("sentences", tokenizer=tokenizer).cut([*tokens, special, special])
    assert cut.ends[-1] == len(tokens) + 1 and "SEP" not in cut.texts[-1]
