# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response, as texts and as tokens, for tokenizers of every kind."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds_of_tokenizers import CORPUS, TOKENIZERS
from tiny_step_rm import byte_tokenizer

from prime_ext.config.step_rule import StepSettings
from prime_ext.step_rm.response_cut import Cut, ResponseCutter, TokenText, find_last_tokens


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request):
    return TOKENIZERS[request.param]()


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 12))
def test_random_tokens_have_the_text_that_decoding_gives(tokenizer, seed, length):
    """Include sequences that no encoder makes; decoders differ next to broken characters."""
    plain = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    # The first token only, because decoders strip a leading space.
    ids = [tokenizer.convert_tokens_to_ids("1"), *random.Random(seed).choices(plain, k=length)]
    pieces = TokenText(tokenizer).pieces(ids)
    expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert len(pieces) == len(ids) and TokenText(tokenizer).pieces([tokenizer.eos_token_id]) == [""]
    if "\ufffd" not in expected:
        assert "".join(pieces) in (expected, " " + expected)


@pytest.mark.parametrize("name", ["byte-level BPE", "sentencepiece", "cleans up by default"])
def test_encoded_text_comes_back_with_characters_at_their_last_token(name):
    tokenizer = TOKENIZERS[name]()
    for text in [*CORPUS[:3], "a🙂"]:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        pieces = TokenText(tokenizer).pieces(ids)
        assert "".join(pieces).strip(" ") == text.strip(" ") and pieces[-1] == ""
    assert len(ids) > 3 and pieces[-3:-1] == ["", "🙂"]


def test_a_token_across_the_border_belongs_to_the_earlier_step():
    assert find_last_tokens(["a;b", "c;d;e", "f"], [(0, 2), (2, 5), (5, 7), (7, 9)]) == [0, 1, 1, 2]
    # The part of a character before the border goes to the step of the character.
    assert find_last_tokens(["a;", "", "\u00e9"], [(0, 2), (2, 3)]) == [0, 2]


TOKENIZER = byte_tokenizer()
SEMICOLON = TOKENIZER(";")["input_ids"]


def cut(text, splitter="auto", delimiters=None):
    tokens = [*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id]
    settings = StepSettings(delimiters=delimiters) if delimiters else StepSettings(splitter)
    return ResponseCutter(settings, TOKENIZER).cut(tokens if text else [])


def test_texts_and_ends_of_steps():
    assert cut("1. We add.\n2. So 7.") == Cut(("1. We add.\n", "2. So 7."), (10, 19))
    # The last of several delimiter tokens in a row ends the step.
    assert cut("a;b;;c", "delimiters", SEMICOLON) == Cut(("a;", "b;;", "c"), (1, 4, 6))
    assert cut("") == Cut((), ()) == cut("", "delimiters", SEMICOLON)


def test_delimiters_of_a_shell_are_line_breaks():
    assert cut("a\n\nb\n\nc", "delimiters", [r"\n\n"]).texts == ("a\n\n", "b\n\n", "c")
    # A backslash itself is written twice.
    assert cut(r"a\nb", "delimiters", [r"\\n"]).texts == (r"a\n", "b")


def test_steps_without_content_belong_to_their_neighbours():
    steps = cut("...;a;?;b;", "delimiters", SEMICOLON)
    assert steps.texts == ("...;", "a;", "?;", "b;", "")
    assert steps.join_empty_steps() == Cut(("...;a;?;", "b;"), (7, 10))
    assert Cut(("...", "?"), (2, 3)).join_empty_steps() == Cut((), ())


@given(st.text(alphabet="ab1. \n[]Step:é€", max_size=60), st.sampled_from(["auto", "sentences"]))
def test_steps_join_to_the_response_and_the_last_ends_it(text, splitter):
    steps = cut(text, splitter)
    assert "".join(steps.texts) == text and list(steps.ends) == sorted(steps.ends)
    assert not text or steps.ends[-1] == len(TOKENIZER(text)["input_ids"])
    content = steps.join_empty_steps()
    assert "".join(content.texts) in (text, "") and len(content.texts) <= len(steps.texts)
