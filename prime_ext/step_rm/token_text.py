# SPDX-License-Identifier: Apache-2.0
"""The text of each token of a response, so that a place in the text can be mapped back onto tokens.

A generated response comes as token ids, without the offsets that a tokenizer gives when it encodes. Decoding a prefix
for every token would take quadratic time, and decoding tokens one by one breaks characters of several tokens and loses
the spaces of sentencepiece. Here a token is decoded once, behind an anchor, and remembered; only tokens that hold parts
of a character are decoded together with their neighbours.
"""

import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from prime_ext.step_rm.splitting import Span

_REPLACEMENT = "\ufffd"
# A character has at most 4 bytes; a run of broken bytes longer than this is not going to become one.
_LONGEST_RUN = 8


class TokenText:
    """Text of tokens, for any Hugging Face tokenizer. Special tokens have no text.

    The text of a response is defined as the concatenation of its tokens' texts, so offsets are exact. A character of
    several tokens belongs to the last of them, and the ones before it have the empty text.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._anchor, self._anchor_text = self._find_anchor()
        self._known: dict[int, str] = {}

    def _find_anchor(self) -> tuple[int, str]:
        """A token that always decodes to the same text, whatever follows."""
        encoded = [self._tokenizer.convert_tokens_to_ids(token) for token in ("a", "x", "0", "1")]
        unknown = self._tokenizer.unk_token_id
        for token in [*encoded, *range(len(self._tokenizer))]:
            if token is None or token in self._special or token == unknown:
                continue
            text = self._decode([token])
            if text.strip() and _REPLACEMENT not in text:
                return token, text
        raise ValueError("the tokenizer has no token that decodes to a text, so steps cannot be found in responses")

    def _decode(self, ids: list[int]) -> str:
        # Cleaning up would join and move characters of neighbouring tokens.
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _behind_anchor(self, ids: list[int]) -> str:
        text = self._decode([self._anchor, *ids])
        if text.startswith(self._anchor_text):
            return text[len(self._anchor_text) :]
        return self._decode(ids)

    def _single(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = "" if token in self._special else self._behind_anchor([token])
        return self._known[token]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        texts = [self._single(token) for token in ids]
        at = 0
        while at < len(texts):
            if _REPLACEMENT in texts[at]:
                end = self._complete(ids, texts, at)
                at = end
            else:
                at += 1
        return texts

    def _complete(self, ids: Sequence[int], texts: list[str], start: int) -> int:
        """Decode the parts of a character from ``start`` on together; returns where to go on."""
        limit = min(len(ids), start + _LONGEST_RUN)
        for end in range(start + 1, limit + 1):
            if end - start > 1 and _REPLACEMENT not in self._single(ids[end - 1]):
                break
            text = self._behind_anchor(list(ids[start:end]))
            if not text.endswith(_REPLACEMENT):
                texts[start:end] = [*[""] * (end - start - 1), text]
                return end
        # Never completed: the broken bytes stay where they are.
        return start + 1


def last_tokens(pieces: Sequence[str], spans: Sequence[Span]) -> list[int]:
    """Number of the last token of each step; the last step takes all that are left, special tokens included.

    A token belongs to the step in which its first character lies; one with the empty text to that of the next
    character. Steps that share their only token have the same number.
    """
    ends = list(accumulate(len(piece) for piece in pieces))
    found = [min(bisect.bisect_left(ends, end), len(ends) - 1) for _, end in spans[:-1]]
    return [*found, len(ends) - 1] if spans else []


def step_end_tokens(pieces: Sequence[str], spans: Sequence[Span]) -> list[int]:
    """Number of the last token of each step but the last, ascending: :func:`last_tokens`, where steps that share their
    only token become one."""
    return sorted(set(last_tokens(pieces, spans)[:-1]))
