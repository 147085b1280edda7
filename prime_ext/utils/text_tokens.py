# SPDX-License-Identifier: Apache-2.0
"""Prompts and responses as tokens, where steps of a response end, and texts without tokens.

Training and evaluation share these functions, so that a PRM is scored on the tokens it was trained
on: the prompt through the chat template, the response tokenized on its own, then the
end-of-sequence token.
"""

import inspect
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from prime_ext.utils.run_store import RunError

Prompt = str | list[dict[str, Any]]
STEP_PREFIX = "Step {n}: "
STEP_SEPARATOR = "\n\n"

# Marks of turns in the usual chat templates, for models whose tokenizer is not at hand.
USUAL_TOKENS = re.compile(
    r"<\|[\w-]{1,40}\|>|<｜[^\s｜<>]{1,40}｜>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>"
)
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@cache
def build_token_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    """Build the pattern of the tokenizer's special and added tokens; None if it has none."""
    tokens = {
        token.strip() for token in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab())
    }
    words = sorted((re.escape(token) for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(words)) if words else None


def clean(text: str, tokens: re.Pattern[str] | None) -> str:
    """Replace control characters and lone surrogates by U+FFFD, and break up tokens.

    Newlines and tabs stay. In whatever looks like a token, such as ``<|im_end|>``, a space follows
    the first character.
    """
    text = _NO_TEXT.sub("\ufffd", text)
    # Repeated, because pieces left and right of a token may make another one.
    while tokens is not None and tokens.search(text):
        text = tokens.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


class TextError(RunError):
    """A text that cannot be tokenized; the message is one line."""


def wrap_prompt(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as chat messages; a string is one message of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def find_unread_option(tokenizer: Any, names: Iterable[str]) -> str | None:
    """Return the first of the names that the chat template does not read, None if it reads all.

    A template ignores unknown variables, so that a typo would leave a model in its other mode.
    """
    known = inspect.signature(tokenizer.apply_chat_template).parameters
    template = str(tokenizer.chat_template)
    return next(
        (name for name in names if name not in known and not re.search(rf"\b{name}\b", template)),
        None,
    )


def join_steps(
    steps: Sequence[str], prefix: str = STEP_PREFIX, separator: str = STEP_SEPARATOR
) -> tuple[str, tuple[int, ...]]:
    """Return one response from its steps, and the position after the last character of each step.

    ``{n}`` in the prefix is the step's number from 1 (ImplicitPRM: ``"Step {n}: "``). The separator
    belongs to the step that follows, except where a token straddles.
    """
    text = ""
    ends = []
    for number, step in enumerate(steps, start=1):
        text += (separator if number > 1 else "") + prefix.replace("{n}", str(number)) + step
        ends.append(len(text))
    return text, tuple(ends)


@dataclass(frozen=True)
class TokenizedSteps:
    """A prompt and a response of steps, ready for a model."""

    ids: list[int]  # of prompt and response
    n_prompt: int
    # Index in ids of the last token of each step, or of the token that carries its score.
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


class TextEncoder:
    """Encoder of prompts and responses with a fast tokenizer, which maps tokens to characters.

    Responses end with the end-of-sequence token if ``append_eos``. Raises TextError: the tokenizer
    is not fast, or has none.
    """

    def __init__(self, tokenizer: Any, append_eos: bool = True):
        if not tokenizer.is_fast:
            raise TextError(
                "the tokenizer has no fast version, so steps cannot be mapped to tokens"
            )
        if append_eos and tokenizer.eos_token_id is None:
            raise TextError("the tokenizer has no end-of-sequence token; set append_eos to false")
        self.tokenizer = tokenizer
        self.append_eos = append_eos

    def plain(self, text: str) -> list[int]:
        """Return the tokens of a text, no special ones added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def literal(self, text: str) -> list[int]:
        """Return the tokens of untrusted text: special tokens that it spells out are text."""
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens: through the chat template, with the generation prompt.

        Without a template the text stands alone, after the beginning-of-sequence token if the
        tokenizer adds it. Raises TextError: chat messages without a chat template, or a prompt
        without tokens.
        """
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                wrap_prompt(prompt), tokenize=False, add_generation_prompt=True
            )
            ids = self.plain(text)
        elif isinstance(prompt, str):
            ids = self.begin() + self.plain(prompt)
        else:
            raise TextError(
                "the prompt is a list of chat messages, and the tokenizer has no chat template"
            )
        if not ids:
            raise TextError("the prompt has no tokens")
        return ids

    def begin(self) -> list[int]:
        """Return the beginning-of-sequence token, if the tokenizer puts it before a text."""
        begin = self.tokenizer.bos_token_id
        puts_begin = begin is not None and self.tokenizer("")["input_ids"][:1] == [begin]
        return [begin] if puts_begin else []

    def response(self, text: str, char_ends: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Return the tokens of a response, and the index of the last token of each step.

        That is the last token that holds a character before the step's ``char_ends``. The end of
        sequence belongs to the last step. TextError: no token starts within a step or before it.
        """
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = list(encoded["input_ids"])
        starts = [start for start, _ in encoded["offset_mapping"]]
        # Byte-level tokens of one character share its start, and the last of them counts.
        ends = [bisect_left(starts, position) - 1 for position in char_ends]
        if min(ends, default=0) < 0:
            raise TextError(f"no token starts before character {min(char_ends)}")
        if self.append_eos:
            ids.append(self.tokenizer.eos_token_id)
            if ends:
                ends[-1] = len(ids) - 1
        return ids, ends
