# SPDX-License-Identifier: Apache-2.0
"""Tiny step reward models with random weights, and tokenizers made on the spot."""

import random
from pathlib import Path

import tiny_llama
import torch
import yaml
from qwen_prm import Qwen2ForProcessRewardModel
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

import prime_ext.config
from prime_ext.config.step_scorer_settings import read_scorer
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABELS

WORDS = (
    "step 1 : good bad so we add 0 2 3 4 5 6 7 8 9 . [ ] < / s > what is the sum ? answer option"
).split()


async def scored(scorer, chains, times=1):
    """Return outcomes of a scorer that is asked this often, and closed."""
    try:
        for _ in range(times):
            outcomes = await scorer.score(chains)
        return outcomes
    finally:
        await scorer.close()


def bert_tokenizer():
    letters = sorted({letter for word in WORDS for letter in word})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = sorted({*WORDS, *letters, *(f"##{letter}" for letter in letters)})
    vocabulary = {name: number for number, name in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


def byte_tokenizer(single=None, pair=None):
    """Build a tokenizer of one token per byte, with templates for one text and a pair, or none."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(
        models.BPE({text: at for at, text in enumerate([*names, *alphabet])}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if single is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def llama_tokenizer():
    return byte_tokenizer("<s> $A", "<s> $A <s>:1 $B:1")


def roberta_tokenizer():
    return byte_tokenizer("<s> $A </s>", "<s> $A </s> </s> $B </s>")


def _save(path, kind, config_kind, tokenizer, labels, **options):
    torch.manual_seed(0)
    names = {
        "id2label": dict(labels),
        "label2id": {name: number for number, name in labels.items()},
    }
    sizes = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_labels": len(labels),
    }
    kind(config_kind(**sizes, **names, **options)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save_bert(path, labels=ID2LABEL, size=32, scale=0.2, head=True):
    options = {
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    options |= {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": scale,
    }
    kind = BertForSequenceClassification if head else BertModel
    return _save(path, kind, BertConfig, bert_tokenizer(), labels, **options)


def save_llama(path, head=True):
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    options |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    kind = LlamaForSequenceClassification if head else LlamaForCausalLM
    return _save(path, kind, LlamaConfig, llama_tokenizer(), ID2LABEL, **options)


def save_qwen_prm(path):
    """Save a random model of the form of Qwen2.5-Math-PRM, with its code."""
    tokenizer = tiny_llama.byte_tokenizer(tiny_llama.CHAT)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    Qwen2ForProcessRewardModel.register_for_auto_class("AutoModel")
    # transformers' tokenizer of Qwen2 has one more token.
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 1, max_position_embeddings=1024, initializer_range=0.2,
        **sizes, **heads, **special,
    )  # fmt: skip
    Qwen2ForProcessRewardModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def described(path, temperature=1.0, pair_format=None, order=LABELS):
    """Write a description into the model's folder, and return the folder."""
    description = Description(pair_format or PairFormat(max_length=64), temperature, order)
    (path / FILE).write_text(description.to_json())
    return path


def scorer_settings(**changes):
    """Return the settings of the section ``step_scorer``, on the CPU."""
    folder = Path(prime_ext.config.__file__).parent / "step_scorer"
    kind = changes.get("kind", "local")
    values = yaml.safe_load((folder / f"{kind}.yaml").read_text())
    quick = {"attempts": 1, "timeout_seconds": 5.0} if kind in ("server", "judge") else {}
    return read_scorer({**values, **quick, **changes})


def chain_rows(n):
    """Return chains whose steps say what they are: good, so so or bad."""
    rng = random.Random(0)
    said = {1: "good", 0: "so so", -1: "bad"}
    rows = []
    for number in range(n):
        labels = [rng.choice((1, 1, 0, -1)) for _ in range(rng.randint(1, 4))]
        steps = [
            f"Step {at}: we add {rng.randint(0, 9)} {said[label]}."
            for at, label in enumerate(labels, start=1)
        ]
        rows.append({"question": f"What is {number}?", "steps": steps, "labels": labels})
    return rows
