# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response: their texts, and the tokens at which they end.

Decoding a prefix for every token would take quadratic time, and decoding tokens one by one breaks
characters of several tokens and loses the spaces of sentencepiece. So a token is decoded once,
after an anchor, and remembered; only tokens that hold parts of a character are decoded together
with their neighbors.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prime_ext.config.step_rule import StepSettings
from prime_ext.step_rm.splitting import Span, has_content, split_steps

_REPLACEMENT = "\ufffd"
# A character has at most 4 bytes; a run of broken bytes longer than this never becomes one.
_LONGEST_RUN = 8


class TokenText:
    """Text of tokens, for any Hugging Face tokenizer. Special tokens have no text.

    The text of a response is the concatenation of its tokens' texts, so offsets are exact. A
    character of several tokens belongs to the last of them; the ones before it have the empty text.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._anchor, self._anchor_text = self._find_anchor()
        self._known: dict[int, str] = {}

    def _find_anchor(self) -> tuple[int, str]:
        """Return a token that always decodes to the same text, whatever follows, and this text."""
        encoded = [self._tokenizer.convert_tokens_to_ids(token) for token in ("a", "x", "0", "1")]
        unknown = self._tokenizer.unk_token_id
        for token in [*encoded, *range(len(self._tokenizer))]:
            if token is None or token in self._special or token == unknown:
                continue
            text = self._decode([token])
            if text.strip() and _REPLACEMENT not in text:
                return token, text
        raise ValueError(
            "the tokenizer has no token that decodes to a text, so steps cannot be found in"
            " responses"
        )

    def _decode(self, ids: list[int]) -> str:
        # Cleaning up would join and move characters of neighboring tokens.
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _decode_behind_anchor(self, ids: list[int]) -> str:
        text = self._decode([self._anchor, *ids])
        if text.startswith(self._anchor_text):
            return text[len(self._anchor_text) :]
        return self._decode(ids)

    def _decode_single(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = (
                "" if token in self._special else self._decode_behind_anchor([token])
            )
        return self._known[token]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        texts = [self._decode_single(token) for token in ids]
        at = 0
        while at < len(texts):
            at = self._complete(ids, texts, at) if _REPLACEMENT in texts[at] else at + 1
        return texts

    def _complete(self, ids: Sequence[int], texts: list[str], start: int) -> int:
        """Decode the parts of a character from ``start`` on together; return where to continue."""
        limit = min(len(ids), start + _LONGEST_RUN)
        for end in range(start + 1, limit + 1):
            if end - start > 1 and _REPLACEMENT not in self._decode_single(ids[end - 1]):
                break
            text = self._decode_behind_anchor(list(ids[start:end]))
            if not text.endswith(_REPLACEMENT):
                texts[start:end] = [*[""] * (end - start - 1), text]
                return end
        # Never completed: the broken bytes stay where they are.
        return start + 1


def find_last_tokens(pieces: Sequence[str], spans: Sequence[Span]) -> list[int]:
    """Return the number of each step's last token, which steps of a single token may share.

    A token belongs to the step of its first character; one with the empty text to that of the next
    character.
    """
    ends = list(accumulate(len(piece) for piece in pieces))
    inner = [min(bisect.bisect_left(ends, end), len(ends) - 1) for _, end in spans[:-1]]
    return [*inner, len(ends) - 1] if spans else []


@dataclass(frozen=True)
class Cut:
    """A response's steps: texts and indices of last tokens; one step if the pattern timed out."""

    texts: tuple[str, ...]
    ends: tuple[int, ...]
    timed_out: bool = False

    def join_empty_steps(self) -> "Cut":
        """Join steps without content to the one before, the first to the next; drop a lone one."""
        texts: list[str] = []
        ends: list[int] = []
        for text, end in zip(self.texts, self.ends, strict=True):
            if texts and not (has_content(texts[-1]) and has_content(text)):
                texts[-1] += text
                ends[-1] = end
            else:
                texts.append(text)
                ends.append(end)
        if len(texts) == 1 and not has_content(texts[0]):
            return Cut((), (), self.timed_out)
        return Cut(tuple(texts), tuple(ends), self.timed_out)


class ResponseCutter:
    """Cutter of responses by the settings: in their text, or after delimiter tokens."""

    def __init__(self, settings: StepSettings, tokenizer: Any):
        self._settings = settings
        self._text = TokenText(tokenizer)
        delimiters = settings.delimiters or ()
        self._ids = frozenset(delimiter for delimiter in delimiters if isinstance(delimiter, int))

    def cut(self, ids: Sequence[int]) -> Cut:
        """Return the steps of a response; none if it has no tokens."""
        pieces = self._text.pieces(ids)
        if self._ids:
            # Of delimiters in a row the last one ends a step.
            breaks = [
                at
                for at in range(len(ids) - 1)
                if ids[at] in self._ids and ids[at + 1] not in self._ids
            ]
            ends = [*breaks, len(ids) - 1] if ids else []
            starts = [0, *(end + 1 for end in ends)]
            return Cut(
                tuple("".join(pieces[at : end + 1]) for at, end in zip(starts, ends, strict=False)),
                tuple(ends),
            )
        text = "".join(pieces)
        settings = self._settings
        timed_out = False
        try:
            spans = split_steps(text, settings.name, settings.pattern or settings.delimiters)
        except TimeoutError:
            spans = [(0, len(text))]
            timed_out = True
        return Cut(
            tuple(text[at:end] for at, end in spans),
            tuple(find_last_tokens(pieces, spans)),
            timed_out,
        )
