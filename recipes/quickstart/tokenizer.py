# SPDX-License-Identifier: Apache-2.0
r"""Tokenizers of the small tasks; the quickstart's has 21 tokens: one per character, and one for ``\boxed{``.

There is no unknown token: a character outside the alphabet is an error, not a silent replacement. The chat template
adds only what the model was trained on: ``<bos>`` before a question and ``<eos>`` after an answer. ``<bos>`` belongs to
the user turn (not to the start of the conversation), because verl's SFT data set renders every turn on its own.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
VOCABULARY = (PAD, BOS, EOS, *"0123456789+-*=;?", "\\boxed{", "}")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ bos_token + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('roles are user and assistant, got ' + message['role']) }}{% endif %}"
    "{% endfor %}"
)


def character_tokenizer(
    vocabulary: Sequence[str], post_processor: Any = None, unknown: str | None = None, **options: Any
) -> PreTrainedTokenizerFast:
    """One token per character. Decoding joins the tokens without spaces, so text round-trips exactly.

    Args:
        vocabulary: tokens in the order of their ids.
        post_processor: of the library.
        unknown: token of characters outside the vocabulary; None: they are an error.
        options: of the tokenizer's class.
    """
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token=unknown))
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
    """Build the tokenizer of a policy, with its chat template; by default that of the quickstart."""
    return character_tokenizer(
        vocabulary,
        unknown=unknown,
        padding_side="left",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )
