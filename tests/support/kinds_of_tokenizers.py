# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of every kind, trained on a few lines."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.quickstart.small_model import build_tokenizer

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
        CORPUS,
        trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    return tokenizer


def sentencepiece_like():
    """Build a tokenizer like Llama 2's: metaspaces, byte fall-back, no leading space decoded."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.train_from_iterator(
        CORPUS[:1], trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL)
    )
    # No merge across a word, as sentencepiece learns none.
    merges = [
        tuple(pair)
        for pair in json.loads(trained.to_str())["model"]["merges"]
        if "▁" not in pair[1]
    ]
    merged = {piece for pair in merges for piece in (*pair, "".join(pair))}
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += sorted(merged | set("▁abcdefghijklmnopqrstuvwxyz0123"))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=[*SPECIAL, "[UNK]"])
    )
    return tokenizer


def wrapped(tokenizer, **options):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **options
    )


TOKENIZERS = {
    "byte-level BPE": lambda: wrapped(byte_level_bpe()),
    "sentencepiece": lambda: wrapped(sentencepiece_like()),
    "cleans up by default": lambda: wrapped(byte_level_bpe(), clean_up_tokenization_spaces=True),
    "WordPiece": lambda: wrapped(word_piece(), unk_token="[UNK]"),
    "quickstart": build_tokenizer,
}
