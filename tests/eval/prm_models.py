# SPDX-License-Identifier: Apache-2.0
"""Tiny models for the evaluation of PRMs, one token per byte."""

import torch
from tiny_llama import byte_tokenizer


def save_gemma2(path):
    """A causal model that caps its logits, so that hidden states times the output embedding are not its logits."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        final_logit_softcapping=1.0,
        initializer_range=0.3,
    )
    Gemma2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
