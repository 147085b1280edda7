# SPDX-License-Identifier: Apache-2.0
"""Steps of a response and their scores, for reward managers."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from prime_ext.config.step_rule import StepSettings
from prime_ext.methods.step_scorer.scorer import FAILURE
from prime_ext.reward.node_actor import NodeFailure
from prime_ext.step_rm.response_cut import Cut, ResponseCutter
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScores

if TYPE_CHECKING:
    from verl.protocol import DataProtoItem

# Returns the scores of a response, or the reason why there are none.
ChainScorer = Callable[[Chain], Awaitable[Outcome]]
_LONGEST = 200  # characters


@dataclass(frozen=True)
class StepScoringResult:
    """Steps and scores of a response, or a ``reason``; ``seconds`` of scoring include waiting."""

    cut: Cut
    n_tokens: int
    scores: StepScores | None
    reason: str
    seconds: float

    def info(self) -> dict[str, Any]:
        """Return the extra info, None for missing scores, lists as JSON (verl averages numbers)."""
        scores = self.scores
        values = () if scores is None else scores.scores
        return {
            "n_steps": len(self.cut.texts),
            "n_tokens": self.n_tokens,
            "steps_timed_out": float(self.cut.timed_out),
            "step_ends": json.dumps(self.cut.ends),
            "step_scores": json.dumps(values),
            "step_score": sum(values) / len(values) if values else None,
            "lowest_step_score": min(values, default=None),
            "contexts_cut": None if scores is None else float(scores.contexts_cut),
            "steps_cut": None if scores is None else float(scores.steps_cut),
            "scorer_seconds": self.seconds,
        }


class ResponseStepScorer:
    """Scorer that cuts responses, in policy tokens, into steps with content for ``score``."""

    def __init__(self, steps: StepSettings, tokenizer: PreTrainedTokenizerBase, score: ChainScorer):
        self._cutter = ResponseCutter(steps, tokenizer)
        self._score = score

    async def __call__(self, row: "DataProtoItem") -> StepScoringResult:
        ids = response_ids(row)
        loop = asyncio.get_running_loop()
        cut = await loop.run_in_executor(None, lambda: self._cutter.cut(ids).join_empty_steps())
        start = time.perf_counter()
        scores, reason = await self._scores(cut, question(row.non_tensor_batch))
        return StepScoringResult(cut, len(ids), scores, reason, time.perf_counter() - start)

    async def _scores(self, cut: Cut, problem: str) -> tuple[StepScores | None, str]:
        if not cut.texts:
            return StepScores(()), ""
        try:
            outcome = await self._score(Chain(cut.texts, problem))
        except NodeFailure as error:
            return None, str(error)
        return (None, outcome.reason) if isinstance(outcome, ScoringFailure) else (outcome, "")


def failure_info(reason: str) -> dict[str, Any]:
    """Return the columns that report whether a response has no reward, and why."""
    return {
        FAILURE: float(bool(reason)),
        "failure_detail": f"step scorer: {reason}"[:_LONGEST] if reason else "",
    }


def response_ids(row: "DataProtoItem") -> list[int]:
    response = row.batch["responses"]
    length = row.non_tensor_batch.get("response_len")
    if length is None:
        length = row.batch["attention_mask"][-len(response) :].sum() if len(response) else 0
    return response[: int(length)].tolist()


def question(extras: Mapping[str, Any]) -> str:
    """Return ``extra_info.question``, else the user's last message, for models trained with it."""
    extra = extras.get("extra_info")
    if isinstance(extra, Mapping) and isinstance(extra.get("question"), str):
        return extra["question"]
    messages = extras.get("raw_prompt")
    for message in reversed([] if messages is None else list(messages)):
        if message["role"] == "user":
            return message["content"] if isinstance(message["content"], str) else ""
    return ""
