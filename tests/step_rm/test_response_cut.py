# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response, as texts and as tokens, for tokenizers of every kind."""

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_step_rm import bert_tokenizer, byte_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.response_cut import Cut, ResponseCutter, TokenText, last_tokens
from prime_ext.step_rm.splitting import SPLITTERS, split_steps
from prime_ext.trainer.response_steps import ResponseSteps
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
    if "\ufffd" not in expected:
        assert "".join(pieces) in (expected, " " + expected)


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
    ends = last_tokens(pieces, spans)
    assert len(ends) == len(spans) and ends == sorted(set(ends))
    for (start, end), first, last in zip(spans, [0, *(end + 1 for end in ends)], ends, strict=False):
        assert text[start:end].rstrip() in "".join(pieces[max(0, first - 1) : last + 1])


def test_a_token_across_the_border_belongs_to_the_earlier_step():
    assert last_tokens(["a;b", "c;d;e", "f"], [(0, 2), (2, 5), (5, 7), (7, 9)]) == [0, 1, 1, 2]
    # The part of a character before the border goes to the step of the character.
    assert last_tokens(["a;", "", "\u00e9"], [(0, 2), (2, 3)]) == [0, 2]
    assert last_tokens([], []) == []


# ---- cuts --------------------------------------------------------------------------------------------------------

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
