# SPDX-License-Identifier: Apache-2.0
r"""Tokenizers and models of the small tasks.

The quickstart's have 21 tokens and 108,160 parameters. Characters are tokens, and ``\boxed{`` is
one. Without an unknown token, a character outside the alphabet is an error, not a silent
replacement. The chat template adds only what the model was trained on: ``<bos>`` before a question
and ``<eos>`` after an answer. ``<bos>`` belongs to the user turn (not to the start of the
conversation), because verl's SFT data set renders every turn on its own.

The model has the Llama layout, so that every tool that supports Llama can read it. With a ``qwen2``
configuration, ``AutoTokenizer`` would replace a custom tokenizer by Qwen2's own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
VOCABULARY = (PAD, BOS, EOS, *"0123456789+-*=;?", "\\boxed{", "}")
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token +"
    " message['content'] }}{% elif message['role'] == 'assistant' %}{{ message['content'] +"
    " eos_token }}{% else %}{{ raise_exception('roles are user and assistant, got ' +"
    " message['role']) }}{% endif %}{% endfor %}"
)


def character_tokenizer(
    vocabulary: Sequence[str],
    post_processor: Any = None,
    unknown: str | None = None,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer of characters, from its tokens in the order of their ids.

    Decoding joins the tokens without spaces, so text round-trips exactly. Without a token for
    ``unknown`` ones, characters outside the vocabulary are an error.
    """
    tokenizer = Tokenizer(
        models.WordLevel(
            {token: index for index, token in enumerate(vocabulary)}, unk_token=unknown
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    special = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": unknown}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


def build_tokenizer(
    vocabulary: Sequence[str] = VOCABULARY,
    chat_template: str = CHAT_TEMPLATE,
    max_length: int = 128,
    unknown: str | None = None,
) -> PreTrainedTokenizerFast:
    """Build a policy's tokenizer with its chat template, by default the quickstart's."""
    options = {
        "padding_side": "left",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    return character_tokenizer(vocabulary, unknown=unknown, chat_template=chat_template, **options)


def build_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, max_position_embeddings: int = 128
) -> LlamaForCausalLM:
    """Build a randomly initialized model whose vocabulary is exactly the tokenizer's."""
    special = {
        name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        # Heads of 32 dimensions: the smallest that vLLM's CPU attention supports.
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=1e-6,
        initializer_range=0.08,
        tie_word_embeddings=True,
        dtype="float32",
        **special,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **special
    )
    return model
