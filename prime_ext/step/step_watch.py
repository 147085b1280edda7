# SPDX-License-Identifier: Apache-2.0
"""Watch for responses of one step, which a chain with ``single_step=zero`` gives no reward."""

import logging
from collections.abc import Callable, Sequence

from prime_ext.step_rm.splitting import SPLITTERS, split_steps

logger = logging.getLogger(__name__)

# Batches in a row without a response of two steps that end a run, and the share of these below
# which the first warns.
BATCHES_WITHOUT_STEPS = 5
FEW = 0.5


class ScoringFailed(RuntimeError):
    """Responses without scores or steps end the run, by their number or ``on_failure``."""


class StepWatch:
    """Counter of batches in a row without a response of two steps.

    ``splitter`` is the name of the splitter, ``prime.steps``.
    """

    def __init__(self, splitter: str):
        self._splitter = splitter
        # Batches in a row; None before the first.
        self._without_steps: int | None = None

    def look(self, counts: Sequence[int], get_texts: Callable[[], Sequence[str]]) -> None:
        """Warn if few responses of the first batch have two steps.

        ``counts`` are the numbers of steps. Raises ScoringFailed: none has, in
        ``BATCHES_WITHOUT_STEPS`` batches in a row.
        """
        several = sum(count > 1 for count in counts)
        is_first = self._without_steps is None
        self._without_steps = 0 if several else (self._without_steps or 0) + 1
        ends = self._without_steps >= BATCHES_WITHOUT_STEPS
        if not ends and not (is_first and several < FEW * len(counts)):
            return
        advice = self._advise(counts, get_texts())
        if ends:
            raise ScoringFailed(f"in {BATCHES_WITHOUT_STEPS} batches in a row {advice}")
        logger.warning("%s", advice)

    def _advise(self, counts: Sequence[int], texts: Sequence[str]) -> str:
        """Return how few responses have two steps, and what other splitters find, best first."""
        several = sum(count > 1 for count in counts)
        with_two = {
            name: sum(len(split_steps(text, name)) > 1 for text in texts) for name in SPLITTERS
        }
        better = sorted(
            (name for name in with_two if with_two[name] > several),
            key=with_two.__getitem__,
            reverse=True,
        )
        others = ", ".join(f"prime.steps={name} in {with_two[name]}" for name in better)
        more = f"there are two with {others}" if others else "no splitter by name finds more"
        return (
            f"{several} of {len(counts)} responses have two steps with"
            f" prime.steps={self._splitter}, and one step alone is paid nothing; {more}; or set a"
            " pattern, delimiters, or"
            " prime.process.accumulation.single_step=keep"
        )
