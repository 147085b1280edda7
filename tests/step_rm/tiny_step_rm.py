# SPDX-License-Identifier: Apache-2.0
"""Tiny step reward models with random weights, and tokenizers made on the spot."""

import random

import torch

from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS

CORPUS = [
    "step 1 : good bad so so we add 0 1 2 3 4 5 6 7 8 9 . [ ] < / s >",
    "what is the sum ? the answer is option",
] * 4


def bert_tokenizer():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    # A trainer breaks ties differently in every process.
    words = sorted({word for line in CORPUS for word in line.split()})
    letters = sorted({letter for word in words for letter in word})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *(set(letters) - set(words)), *(f"##{x}" for x in letters)]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys([*names[:4], *sorted(names[4:])]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=512,
    )


def byte_tokenizer(single=None, pair=None):
    """One token per byte; with the templates of a model for one text and for two, or none."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE({text: at for at, text in enumerate([*names, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if single is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def llama_tokenizer():
    return byte_tokenizer("<s> $A", "<s> $A <s>:1 $B:1")


def roberta_tokenizer():
    return byte_tokenizer("<s> $A </s>", "<s> $A </s> </s> $B </s>")


def save_bert(path, seed=0, labels=ID2LABEL, size=32, positions=128, scale=0.2, layers=2, head=True):
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    tokenizer = bert_tokenizer()
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=positions,
        initializer_range=scale,
        num_labels=len(labels),
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.id2label = dict(labels)
    config.label2id = {name: number for number, name in labels.items()} if labels != ID2LABEL else dict(LABEL2ID)
    (BertForSequenceClassification if head else BertModel)(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save_llama(path, seed=0, head=True):
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    tokenizer = llama_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        num_labels=3,
    )
    config.id2label, config.label2id = dict(ID2LABEL), dict(LABEL2ID)
    (LlamaForSequenceClassification if head else LlamaForCausalLM)(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def described(path, temperature=1.0, pair_format=None, order=LABELS):
    """The model's folder, with a description."""
    description = Description(pair_format or PairFormat(max_length=64), temperature, order)
    (path / FILE).write_text(description.to_json())
    return path


def scorer_settings(**changes):
    """The section ``step_scorer``, on the CPU."""
    values = {
        "kind": "local", "model_path": None, "pair_format": None, "cache_size": 1000, "device": None, "dtype": None,
        "batch_tokens": None, "trust_remote_code": False, "address": None, "inputs": "ids", "labels": None,
        "served_model": None, "batch_size": 8, "concurrency": 2, "timeout_seconds": 5.0, "attempts": 1,
        "backoff_seconds": 0.0, "api_key_variable": None,
    }  # fmt: skip
    return ScorerSettings.from_mapping({**values, **changes})


WORDS = {1: "good", 0: "so so", -1: "bad"}


def chain_rows(n, seed=0):
    """Chains whose steps say what they are: good, so so or bad."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        labels = [rng.choice((1, 1, 0, -1)) for _ in range(rng.randint(1, 4))]
        steps = [f"Step {at}: we add {rng.randint(0, 9)} {WORDS[label]}." for at, label in enumerate(labels, start=1)]
        rows.append({"question": f"What is {number}?", "steps": steps, "labels": labels})
    return rows
