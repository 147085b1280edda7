# SPDX-License-Identifier: Apache-2.0
r"""The tokenizer of the agent: a token per printable ASCII character, and one each for what is always written alike.

A call is what verl's parser ``hermes`` reads, ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``. Its two ends
around the expression are a token each, as is ``\boxed{``.
"""

import json

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from prime_ext.tasks.calculator_tool import SCHEMA
from recipes.quickstart import tokenizer as quickstart_tokenizer
from recipes.quickstart.tokenizer import BOS, EOS, PAD

UNKNOWN = "<unk>"
_CALL = json.dumps({"name": SCHEMA["function"]["name"], "arguments": {"expression": "|"}})
CALL_OPEN, CALL_CLOSE = f"<tool_call>{_CALL}</tool_call>".split("|")
ANSWER_OPEN, ANSWER_CLOSE = "<tool_response>", "</tool_response>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] in ('user', 'system') %}{{ bos_token + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    f"{{% else %}}{{{{ '{ANSWER_OPEN}' + message['content'] + '{ANSWER_CLOSE}' }}}}{{% endif %}}"
    "{% endfor %}"
)
MAX_LENGTH = 320


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer of the agent, with its chat template; it has 105 tokens."""
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = [PAD, BOS, EOS, UNKNOWN, *characters, "\\boxed{"]
    tokenizer = quickstart_tokenizer.build_tokenizer(vocabulary, CHAT_TEMPLATE, MAX_LENGTH, UNKNOWN)
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in (CALL_OPEN, CALL_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)]
    )
    return tokenizer
