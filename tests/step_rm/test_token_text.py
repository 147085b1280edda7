# SPDX-License-Identifier: Apache-2.0
"""Texts of tokens, for tokenizers of every kind, and steps of the text mapped onto them."""

import json
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from prime_ext.step_rm.splitting import SPLITTERS, split_steps
from prime_ext.step_rm.token_text import TokenText, step_end_tokens
from recipes.quickstart.tokenizer import build_tokenizer

CORPUS = [
    "Step 1: We add three and four, which is 7.\n\nStep 2: So the answer is \\boxed{7}.",
    "1. Let x = √2 ≤ 3.\n2. Then π·x ≈ 4.44; 然后相加。所以答案是五。\n#### 5",
    "[1] . There are 11. So [2] . 🙂 fine.\n\n\n",
] * 4
SPECIAL = ["<s>", "</s>"]


def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return tokenizer


def sentencepiece_like():
    """The layout of Llama 2: metaspaces, bytes as a fall-back, a leading space stripped when decoding."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(CORPUS[:1], trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL))
    # No merge across a word, as sentencepiece learns none.
    merges = [pair for pair in _merges(trained) if "▁" not in pair[1]]
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += sorted(
        {piece for pair in merges for piece in (*pair, "".join(pair))} | set("▁abcdefghijklmnopqrstuvwxyz0123")
    )
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _merges(tokenizer):
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=[*SPECIAL, "[UNK]"]))
    return tokenizer


def wrapped(tokenizer, **options):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **options)


TOKENIZERS = {
    "byte-level BPE": lambda: wrapped(byte_level_bpe()),
    "sentencepiece": lambda: wrapped(sentencepiece_like()),
    "cleans up by default": lambda: wrapped(byte_level_bpe(), clean_up_tokenization_spaces=True),
    "WordPiece": lambda: wrapped(word_piece(), unk_token="[UNK]"),
    "quickstart": build_tokenizer,
}


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request):
    return TOKENIZERS[request.param]()


def decoded(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 12))
def test_random_tokens_have_the_text_that_decoding_gives(tokenizer, seed, length):
    """Also sequences that no encoder would make. Decoders differ in what broken characters do to their neighbours."""
    plain = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    # The first token only, because decoders strip a leading space.
    ids = [tokenizer.convert_tokens_to_ids("1"), *random.Random(seed).choices(plain, k=length)]
    pieces, expected = TokenText(tokenizer).pieces(ids), decoded(tokenizer, ids)
    assert len(pieces) == len(ids)
    assume("\ufffd" not in expected)
    assert "".join(pieces) == expected or "".join(pieces) == " " + expected


def test_special_tokens_have_no_text(tokenizer):
    one = tokenizer.convert_tokens_to_ids("1")
    pieces = TokenText(tokenizer).pieces([tokenizer.bos_token_id, one, tokenizer.eos_token_id, one])
    assert pieces[0] == pieces[2] == "" and pieces[1].strip() == pieces[3].strip() == "1"


@pytest.mark.parametrize("text", CORPUS[:3])
@pytest.mark.parametrize("name", ["byte-level BPE", "sentencepiece", "cleans up by default"])
def test_encoded_text_comes_back_character_by_character(name, text):
    tokenizer = TOKENIZERS[name]()
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    pieces = TokenText(tokenizer).pieces(ids)
    assert "".join(pieces).strip(" ") == text.strip(" ") and pieces[-1] == ""


@pytest.mark.parametrize("name", ["byte-level BPE", "sentencepiece"])
def test_a_character_of_several_tokens_belongs_to_the_last_of_them(name):
    tokenizer = TOKENIZERS[name]()
    text = "a🙂"
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TokenText(tokenizer).pieces(ids)
    assert len(ids) > 2 and pieces[-1] == "🙂" and pieces[-2] == ""


@pytest.mark.parametrize("splitter", sorted(SPLITTERS))
@pytest.mark.parametrize("text", CORPUS[:3])
def test_the_tokens_of_a_step_hold_its_text_up_to_a_token_across_the_border(splitter, text):
    tokenizer = TOKENIZERS["byte-level BPE"]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TokenText(tokenizer).pieces(ids)
    spans = split_steps("".join(pieces), splitter)
    ends = step_end_tokens(pieces, spans)
    assert len(ends) == len(spans) - 1
    bounds = [0, *(end + 1 for end in ends), len(ids)]
    for (start, end), first, last in zip(spans, bounds, bounds[1:], strict=False):
        assert text[start:end].rstrip() in "".join(pieces[max(0, first - 1) : last])


def test_the_border_of_steps_is_exact_with_one_token_per_character():
    tokenizer = build_tokenizer()
    ids = tokenizer.encode("3*9=7;7+6=3;\\boxed{3}", add_special_tokens=False) + [tokenizer.eos_token_id]
    pieces = TokenText(tokenizer).pieces(ids)
    assert step_end_tokens(pieces, split_steps("".join(pieces), "delimiters", [";"])) == [5, 11]


def test_a_token_across_the_border_belongs_to_the_earlier_step_and_steps_inside_one_token_become_one():
    assert step_end_tokens(["a;b", "c;d;e", "f"], [(0, 2), (2, 5), (5, 7), (7, 9)]) == [0, 1]
    # The part of a character before the border goes to the step of the character.
    assert step_end_tokens(["a;", "", "é"], [(0, 2), (2, 3)]) == [0]
    assert step_end_tokens([], []) == []
