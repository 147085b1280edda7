# SPDX-License-Identifier: Apache-2.0
"""A tiny llama model and a tokenizer of characters, for tests of generation and rollouts."""

import torch
from tiny_llama import llama_config
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

ALPHABET = "0123456789+-*/=(). abcdefghijklmnopqrstuvwxyz?\n"


def build_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {
        token: index for index, token in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}="
    return fast


def build_model(seed: int, n_tokens: int, tie: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"intermediate_size": 96, "num_key_value_heads": 1, "max_position_embeddings": 128}
    # 32 per head is the smallest that vLLM's CPU attention takes.
    config = llama_config(n_tokens, 64, tie_word_embeddings=tie, **sizes)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(2.5)  # away from the uniform distribution of a fresh model
    return model
