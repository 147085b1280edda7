# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response, as texts and as tokens, for tokenizers of every kind."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds_of_tokenizers import CORPUS, TOKENIZERS
from tiny_step_rm import bert_tokenizer, byte_tokenizer

from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.response_cut import Cut, ResponseCutter, TokenText, last_tokens
from prime_ext.step_rm.splitting import SPLITTERS, split_steps
from prime_ext.trainer.prime_step import ResponseSteps


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request):
    return TOKENIZERS[request.param]()


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 12))
def test_random_tokens_have_the_text_that_decoding_gives(tokenizer, seed, length):
    """Also sequences that no encoder would make. Decoders differ in what broken characters do to their neighbours."""
    plain = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    # The first token only, because decoders strip a leading space.
    ids = [tokenizer.convert_tokens_to_ids("1"), *random.Random(seed).choices(plain, k=length)]
    pieces = TokenText(tokenizer).pieces(ids)
    expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert len(pieces) == len(ids)
    if "\ufffd" not in expected:
        assert "".join(pieces) in (expected, " " + expected)


def test_special_tokens_have_no_text(tokenizer):
    one = tokenizer.convert_tokens_to_ids("1")
    pieces = TokenText(tokenizer).pieces([tokenizer.bos_token_id, one, tokenizer.eos_token_id, one])
    assert pieces[0] == pieces[2] == "" and pieces[1].strip() == pieces[3].strip() == "1"


@pytest.mark.parametrize("name", ["byte-level BPE", "sentencepiece", "cleans up by default"])
def test_encoded_text_comes_back_and_a_character_of_several_tokens_belongs_to_the_last(name):
    tokenizer = TOKENIZERS[name]()
    for text in [*CORPUS[:3], "a🙂"]:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        pieces = TokenText(tokenizer).pieces(ids)
        assert "".join(pieces).strip(" ") == text.strip(" ") and pieces[-1] == ""
    assert len(ids) > 3 and pieces[-3:-1] == ["", "🙂"]


@pytest.mark.parametrize("splitter", sorted(SPLITTERS))
@pytest.mark.parametrize("text", CORPUS[:3])
def test_the_tokens_of_a_step_hold_its_text_up_to_a_token_across_the_border(splitter, text):
    tokenizer = TOKENIZERS["byte-level BPE"]()
    pieces = TokenText(tokenizer).pieces(tokenizer.encode(text, add_special_tokens=False))
    spans = split_steps("".join(pieces), splitter)
    ends = last_tokens(pieces, spans)
    assert len(ends) == len(spans) and ends == sorted(set(ends))
    for (start, end), first, last in zip(spans, [0, *(end + 1 for end in ends)], ends, strict=False):
        assert text[start:end].rstrip() in "".join(pieces[max(0, first - 1) : last + 1])


def test_a_token_across_the_border_belongs_to_the_earlier_step():
    assert last_tokens(["a;b", "c;d;e", "f"], [(0, 2), (2, 5), (5, 7), (7, 9)]) == [0, 1, 1, 2]
    # The part of a character before the border goes to the step of the character.
    assert last_tokens(["a;", "", "\u00e9"], [(0, 2), (2, 3)]) == [0, 2]


# ---- cuts --------------------------------------------------------------------------------------------------------

TOKENIZER = byte_tokenizer()
SEMICOLON = TOKENIZER(";")["input_ids"]


def cut(text, splitter="auto", delimiters=None):
    tokens = [*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id]
    return ResponseCutter(StepSettings(splitter, None, delimiters), TOKENIZER).cut(tokens if text else [])


def test_texts_and_ends_of_steps():
    assert cut("1. We add.\n2. So 7.") == Cut(("1. We add.\n", "2. So 7."), (10, 19))
    # Of delimiter tokens in a row the last one ends the step.
    assert cut("a;b;;c", "delimiters", SEMICOLON) == Cut(("a;", "b;;", "c"), (1, 4, 6))
    assert cut("") == Cut((), ()) == cut("", "delimiters", SEMICOLON)


def test_steps_without_content_belong_to_their_neighbours():
    found = cut("...;a;?;b;", "delimiters", SEMICOLON)
    assert found.texts == ("...;", "a;", "?;", "b;", "")
    assert found.with_content() == Cut(("...;a;?;", "b;"), (7, 10))
    assert Cut(("...", "?"), (2, 3)).with_content() == Cut((), ())


@given(st.text(alphabet="ab1. \n[]Step:é€", max_size=60), st.sampled_from(["auto", "sentences", "pspo"]))
def test_the_texts_are_the_response_and_the_trainer_finds_the_same_ends(text, splitter):
    found = cut(text, splitter)
    assert "".join(found.texts) == text and list(found.ends) == sorted(found.ends)
    content = found.with_content()
    assert "".join(content.texts) in (text, "") and len(content.texts) <= len(found.texts)
    if text:
        tokens = torch.tensor([[*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id]])
        steps = ResponseSteps(StepSettings(splitter, None, None), TOKENIZER)
        boundary_BT = steps.boundaries(tokens, torch.ones_like(tokens))
        assert boundary_BT[0].nonzero()[:, 0].tolist() == sorted(set(found.ends[:-1]))
        assert found.ends[-1] == tokens.shape[1] - 1


def test_a_tokenizer_whose_end_is_a_separator_keeps_it_out_of_the_text():
    bert = bert_tokenizer()
    tokens = bert("Step 1: we add 3.\nStep 2: so 7.")["input_ids"]
    found = ResponseCutter(StepSettings("sentences", None, None), bert).cut(tokens)
    assert found.ends[-1] == len(tokens) - 1 and "SEP" not in found.texts[-1]
