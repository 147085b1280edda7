# SPDX-License-Identifier: Apache-2.0
"""Interface of all scorers of steps. Each distinct input is scored once, and remembered.

A model or a server that cannot work at all (other classes, scores that are not finite, a request
that is refused) raises ``StepRMError``. A server that does not answer in time is a
:class:`ScoringFailure`. Neither becomes a score.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError

# Inputs whose scores a scorer remembers.
CACHE_SIZE = 100_000


@dataclass(frozen=True)
class Chain:
    """A response: its steps, in order, and the question, for models that were trained with it."""

    steps: tuple[str, ...]
    question: str = ""


@dataclass(frozen=True)
class StepScores:
    """Scores of a response's steps, and how many lost tokens of their context, or of their own.

    A score is the probability of the label 1, as in PSPO (arXiv 2411.11681).
    """

    scores: tuple[float, ...]
    contexts_cut: int = 0
    steps_cut: int = 0


@dataclass(frozen=True)
class ScoringFailure:
    """Reason for which a response could not be scored."""

    reason: str


Outcome = StepScores | ScoringFailure
# The inputs of a response, each of a step or of all steps; or why it cannot be read.
Reading = list[Input] | ScoringFailure
# Scores of the steps of an input, or why there are none.
Known = dict[Input, list[float] | ScoringFailure]


class StepScorer(ABC):
    """Scorer of responses; calls may overlap. It caches the scores of :data:`CACHE_SIZE` inputs."""

    def __init__(self) -> None:
        self._cache: LRUCache[Input, list[float]] = LRUCache(CACHE_SIZE)

    @abstractmethod
    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Return one outcome per response, in order. Raises ``StepRMError``."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections and threads."""

    def split_known(self, read: Sequence[Reading]) -> tuple[Known, list[Input]]:
        """Return the cached scores of responses' inputs, and the distinct inputs without scores."""
        distinct = dict.fromkeys(
            item for inputs in read if isinstance(inputs, list) for item in inputs
        )
        # Copied now, because an entry may leave the cache while the other inputs are scored.
        known: Known = {item: self._cache[item] for item in distinct if item in self._cache}
        return known, [item for item in distinct if item not in known]

    def remember(self, known: Known) -> None:
        """Cache the scores of inputs, but no failures."""
        self._cache.update(
            {item: scores for item, scores in known.items() if isinstance(scores, list)}
        )


def join_outcome(inputs: Reading, known: Known) -> Outcome:
    """Return the outcome of a response from its inputs' scores; it fails with any of them."""
    if isinstance(inputs, ScoringFailure):
        return inputs
    scores: list[float] = []
    for item in inputs:
        scored = known[item]
        if isinstance(scored, ScoringFailure):
            return scored
        scores += scored
    return StepScores(
        tuple(scores),
        sum(item.context_cut for item in inputs),
        sum(item.step_cut for item in inputs),
    )


def calibrate(
    values: Sequence[float], order: Sequence[int], temperature: float, where: str
) -> float:
    """Check a model's probabilities, apply its temperature, and return that of the label 1.

    Logits over T have the softmax p^(1/T), normalized. ``order`` has the label of each class.
    Raises ``StepRMError``, which names model or server by ``where``, unless these are three finite
    probabilities.
    """
    if len(values) != len(order):
        raise StepRMError(
            f"{where} gave {len(values)} scores for a step, the model has {len(order)} classes:"
            " another?"
        )
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise StepRMError(
            f"{where} gave scores that are not finite numbers: {[str(value) for value in values]}"
        )
    if min(values) < 0 or abs(sum(values) - 1) > 0.02:
        raise StepRMError(
            f"{where} gave {[round(v, 4) for v in values]}, which are not probabilities (logits?)"
        )
    if temperature != 1:
        largest = max(values)
        values = [(value / largest) ** (1 / temperature) for value in values]
    return values[order.index(1)] / sum(values)
