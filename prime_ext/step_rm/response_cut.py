# SPDX-License-Identifier: Apache-2.0
"""The steps of a generated response: their texts, and the tokens at which they end.

One cut for both kinds of step rewards: the implicit PRM sums its token rewards between the ends, and a step reward
model reads the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.splitting import has_content, split_steps
from prime_ext.step_rm.token_text import TokenText, last_tokens


@dataclass(frozen=True)
class Cut:
    """A response in steps.

    Attributes:
        texts: of the steps; together they are the response.
        ends: number of the last token of each step, ascending.
        timed_out: the pattern took too long, so that the response is one step.
    """

    texts: tuple[str, ...]
    ends: tuple[int, ...]
    timed_out: bool = False

    def with_content(self) -> "Cut":
        """Only steps in which a letter or a digit stands beside markers; others belong to the step before, or, at the
        beginning, to the one behind. A response without content has no step."""
        texts: list[str] = []
        ends: list[int] = []
        for text, end in zip(self.texts, self.ends, strict=True):
            if texts and (not has_content(texts[-1], 0, len(texts[-1])) or not has_content(text, 0, len(text))):
                texts[-1] += text
                ends[-1] = end
            else:
                texts.append(text)
                ends.append(end)
        if len(texts) == 1 and not has_content(texts[0], 0, len(texts[0])):
            return Cut((), (), self.timed_out)
        return Cut(tuple(texts), tuple(ends), self.timed_out)


class ResponseCutter:
    """Cuts responses as a section of steps says: in their text, or behind delimiter tokens."""

    def __init__(self, settings: StepSettings, tokenizer: Any):
        self._settings = settings
        self._text = TokenText(tokenizer)
        delimiters = settings.delimiters or ()
        self._ids = frozenset(delimiter for delimiter in delimiters if isinstance(delimiter, int))

    def cut(self, ids: Sequence[int]) -> Cut:
        """The steps of a response; none if it has no tokens."""
        pieces = self._text.pieces(ids)
        if self._ids:
            ends = _ends_at(ids, self._ids)
            starts = [0, *(end + 1 for end in ends)]
            return Cut(tuple("".join(pieces[at : end + 1]) for at, end in zip(starts, ends, strict=False)), tuple(ends))
        text, settings = "".join(pieces), self._settings
        timed_out = False
        try:
            spans = split_steps(text, settings.splitter, settings.pattern or settings.delimiters)  # type: ignore[arg-type]
        except TimeoutError:
            spans, timed_out = [(0, len(text))], True
        return Cut(tuple(text[at:end] for at, end in spans), tuple(last_tokens(pieces, spans)), timed_out)


def _ends_at(ids: Sequence[int], delimiters: frozenset[int]) -> list[int]:
    """The last of delimiters in a row ends a step, and so does the end of the response."""
    last = len(ids) - 1
    return [at for at, token in enumerate(ids) if at == last or (token in delimiters and ids[at + 1] not in delimiters)]
