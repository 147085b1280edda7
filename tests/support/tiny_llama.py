# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer and tiny random Llamas for it."""

import torch

CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "


def byte_tokenizer(chat_template=CHAT, **special):
    """One token per byte, so that every text can be told apart, and characters of several tokens exist."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<eos>": 1, **{symbol: number + 2 for number, symbol in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", **special)
    fast.chat_template = chat_template
    return fast


def save_llama(path, seed=0, classes=0, max_positions=1024, spread=0.2, chat_template=CHAT, size=32):
    """A random causal Llama, or a token classifier, with its tokenizer.

    Args:
        classes: of a token classifier; 0 for a causal model.
        spread: standard deviation of the weights.
        size: of the hidden states; two heads share it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

    tokenizer = byte_tokenizer(chat_template)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        **({"num_labels": classes} if classes else {}),
    )
    (LlamaForTokenClassification if classes else LlamaForCausalLM)(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
