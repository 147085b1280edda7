# SPDX-License-Identifier: Apache-2.0
"""The 108,160-parameter model of the quickstart: the Llama layout, so that every tool that knows Llama can read it.

Not the Qwen2 layout: next to a ``qwen2`` configuration ``AutoTokenizer`` replaces a custom tokenizer by Qwen2's own.
"""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int, max_position_embeddings: int = 128) -> LlamaForCausalLM:
    """Build a randomly initialised model whose vocabulary is exactly the tokenizer's."""
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
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
    )
    return model
