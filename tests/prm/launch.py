# SPDX-License-Identifier: Apache-2.0
"""The model that the ranks of an engine test share."""

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write_model(path):
    """A small Llama with a vocabulary of 40 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(2.5)  # away from the uniform distribution of a fresh model
    model.save_pretrained(path)
    vocabulary = {"<pad>": 0, "<eos>": 1, **{str(number): number for number in range(2, 40)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(path)
