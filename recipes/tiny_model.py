# SPDX-License-Identifier: Apache-2.0
"""Write an untrained tiny model that reads any text, to try commands with.

    python -m recipes.tiny_model --output-dir outputs/tiny
    python -m recipes.tiny_model --family qwen3 --output-dir outputs/tiny_qwen3

It has one token a byte; the default, a Llama, has 123,328 parameters. The other families have what
distinguishes their published models: attention biases (qwen2), norms of queries and keys and heads
wider than hidden_size / heads (qwen3), experts (qwen3_moe), and ChatML, whose marks are tokens.
The quickstart's models are smaller still, but read only the characters of their task.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from prime_ext.utils.files import write_atomically
from recipes.command_line import read_options
from recipes.quickstart.small_model import build_model

CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
POSITIONS = 4096
# As in Qwen's models: padding, and the end of a turn, which ends a response.
PAD = "<|endoftext|>"
END = "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Without thoughts, the prompt has empty ones; the default is with them.
THINKING = (
    "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
WIDE_HEADS = {"head_dim": 64}
# By family: what differs from the sizes in build_qwen.
QWEN: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": WIDE_HEADS,
    "qwen3_moe": {
        **WIDE_HEADS,
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
}


def byte_tokenizer(
    chat_template: str | None = CHAT, pad: str = "<pad>", end: str = "<eos>"
) -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes: it reads every text, and a character may have several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        pad: 0,
        end: 1,
        **{symbol: number + 2 for number, symbol in enumerate(alphabet)},
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token=end)
    fast.chat_template = chat_template
    return fast


def qwen_tokenizer(family: str, more: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes with ChatML, for a model of Qwen's; ``more`` are tokens too.

    Of the models that can think, the marks of thoughts are tokens that decoding keeps.
    """
    thinks = family != "qwen2"
    tokenizer = byte_tokenizer(CHATML + THINKING * thinks, PAD, END)
    kept = [*(("<think>", "</think>") if thinks else ()), *more]
    start = AddedToken("<|im_start|>", special=True, normalized=False)
    tokenizer.add_tokens([start, *(AddedToken(text, normalized=False) for text in kept)])
    return tokenizer


def build_qwen(family: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Build a randomly initialized model of one of Qwen's families, biases and norms included."""
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.08,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **QWEN[family],
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **sizes, **special)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        # transformers begins with biases of 0 and norms of 1, which would hide that one is missing.
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **special
    )
    return model


def write_model(output_dir: Path, family: str = "llama", seed: int = 0) -> None:
    """Write model and tokenizer for ``from_pretrained``."""
    if family == "llama":
        tokenizer = byte_tokenizer()
        model: PreTrainedModel = build_model(tokenizer, seed, POSITIONS)
    else:
        tokenizer = qwen_tokenizer(family)
        model = build_qwen(family, tokenizer, seed)
    with write_atomically(output_dir) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


if __name__ == "__main__":
    write_model(**read_options(__doc__, "output-dir", "family", "seed"))
