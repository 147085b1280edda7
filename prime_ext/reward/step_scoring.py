# SPDX-License-Identifier: Apache-2.0
"""The steps of a response and their scores, for reward managers: of verl's reward loop, one response at a time."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prime_ext.config.reward_settings import StepSettings
from prime_ext.reward.node_scorer import ResponseScorer
from prime_ext.step_rm.response_cut import Cut, ResponseCutter
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores

logger = logging.getLogger(__name__)

# Responses without scores that each reward worker writes a line about.
WARNINGS = 20


@dataclass(frozen=True)
class ScoredSteps:
    """A response, cut and scored.

    Attributes:
        cut: its steps.
        n_tokens: its length.
        scores: one for each step; None for a response that could not be scored.
        reason: why it could not; empty otherwise.
        seconds: from the cut to the scores, waiting included.
    """

    cut: Cut
    n_tokens: int
    scores: StepScores | None
    reason: str
    seconds: float


class StepScoring:
    """Cuts responses into steps with content and asks for their scores.

    Args:
        steps: where steps are.
        tokenizer: the policy's.
        scorer: scores responses.
    """

    def __init__(self, steps: StepSettings, tokenizer: Any, scorer: ResponseScorer):
        self._cutter = ResponseCutter(steps, tokenizer)
        self._scorer = scorer
        self._failures = 0

    async def __call__(self, ids: list[int], extras: Mapping[str, Any]) -> ScoredSteps:
        """The steps of a response and their scores.

        Args:
            ids: tokens of the response.
            extras: columns of its row.
        """
        loop = asyncio.get_running_loop()
        cut = await loop.run_in_executor(None, lambda: self._cutter.cut(ids).with_content())
        start = time.perf_counter()
        scores, reason = await self._scores(cut, question(extras), len(ids))
        return ScoredSteps(cut, len(ids), scores, reason, time.perf_counter() - start)

    async def _scores(self, cut: Cut, asked: str, n_tokens: int) -> tuple[StepScores | None, str]:
        if not cut.texts:
            return StepScores(()), ""
        outcome = await self._scorer.score(Chain(cut.texts, asked), n_tokens)
        if isinstance(outcome, ScoringFailure):
            return None, outcome.reason
        if len(outcome.probabilities) != len(cut.texts):
            return None, f"{len(outcome.probabilities)} scores for {len(cut.texts)} steps"
        if not all(map(math.isfinite, outcome.scores)):
            return None, f"scores that are not finite numbers: {[str(score) for score in outcome.scores][:10]}"
        return outcome, ""

    def warn(self, scored: ScoredSteps, reasons: Sequence[str]) -> None:
        """Write a line about a response without a reward; only the first ones, as all of them are in the metrics."""
        self._failures += 1
        level = logging.WARNING if self._failures <= WARNINGS else logging.DEBUG
        logger.log(level, "a response of %d steps has no reward: %s", len(scored.cut.texts), "; ".join(reasons))


def response_ids(row: Any) -> list[int]:
    """Tokens of the response of a row of the reward loop, without padding."""
    response = row.batch["responses"]
    length = row.non_tensor_batch.get("response_len")
    if length is None:
        length = row.batch["attention_mask"][-len(response) :].sum() if len(response) else 0
    return response[: int(length)].tolist()


def question(extras: Mapping[str, Any]) -> str:
    """What is asked, for models that were trained with it: ``extra_info.question``, else the user's last message."""
    extra = extras.get("extra_info")
    if isinstance(extra, Mapping) and isinstance(extra.get("question"), str):
        return extra["question"]
    messages = extras.get("raw_prompt")
    for message in reversed([] if messages is None else list(messages)):
        if message["role"] == "user":
            return message["content"] if isinstance(message["content"], str) else ""
    return ""
