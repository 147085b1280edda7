# SPDX-License-Identifier: Apache-2.0
"""Where a response ends because of a text in it."""

from collections.abc import Collection, Sequence
from typing import Any


class ResponseText:
    """Tokens of a response as text, up to the first of the texts at which it ends.

    Args:
        tokenizer: of the model.
        end_tokens: tokens that end a response and are no part of its text.
        stop: texts that end it and are no part of it.
        min_new_tokens: a stop text counts only if it ends after so many tokens.
    """

    def __init__(
        self, tokenizer: Any, end_tokens: Collection[int], stop: Sequence[str] = (), min_new_tokens: int = 0
    ) -> None:
        self._tokenizer, self._end_tokens = tokenizer, frozenset(end_tokens)
        self._stop, self._min_new_tokens = tuple(stop), min_new_tokens
        # A token adds at least one byte, so these hold every stop text that ends with the last token.
        self._window = max((len(text.encode()) for text in stop), default=0) + 8

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, without special ones and, as in vLLM, without a character that the end cut in half."""
        if ids and ids[-1] in self._end_tokens:
            ids = ids[:-1]
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text).rstrip("\ufffd")

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether the response ends with its last token because of a stop text."""
        if len(ids) < self._min_new_tokens:
            return False
        if self._min_new_tokens > 1:
            return self.cut(ids)[1]
        tail = self.decode(ids[-self._window :])
        return any(text in tail for text in self._stop)

    def cut(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The text before the first stop text, and whether there is one."""
        text = self.decode(ids)
        early = len(self.decode(ids[: self._min_new_tokens - 1])) if self._min_new_tokens > 1 else 0
        found = [text.find(stop, max(0, early - len(stop) + 1)) for stop in self._stop]
        places = [place for place in found if place >= 0]
        return (text[: min(places)], True) if places else (text, False)
