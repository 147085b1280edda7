# SPDX-License-Identifier: Apache-2.0
"""Tiny random Llamas for the byte-level tokenizer."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

from recipes.tiny_model import CHAT, byte_tokenizer


def llama_config(vocabulary, size, **more):
    """Return a configuration with two layers and heads; token 0 is padding, token 1 the end."""
    sizes = {
        "intermediate_size": 2 * size,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    return LlamaConfig(vocab_size=vocabulary, hidden_size=size, **{**sizes, **special, **more})


def save_llama(
    path, seed=0, classes=0, max_positions=1024, spread=0.2, chat_template=CHAT, size=32
):
    """Save a random Llama, causal or (with ``classes``) a token classifier, and its tokenizer.

    ``spread`` is the standard deviation of the weights, ``size`` that of the hidden states; two
    heads share it.
    """
    tokenizer = byte_tokenizer(chat_template)
    torch.manual_seed(seed)
    more = {"max_position_embeddings": max_positions, "initializer_range": spread}
    more |= {"num_labels": classes} if classes else {}
    kind = LlamaForTokenClassification if classes else LlamaForCausalLM
    kind(llama_config(len(tokenizer), size, **more)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
