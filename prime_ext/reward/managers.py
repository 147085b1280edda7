# SPDX-License-Identifier: Apache-2.0
"""Reward managers of verl's reward loop (``reward.reward_manager.name``) for single responses.

* ``naive_with_prompt``: verl's ``naive``, which also passes the prompt to the reward function.
* ``naive_with_step_scores``: also scores the steps of ``prime.steps``, for
  ``prime/process=step_scorer``. ``prime.verifier.on_failure`` decides about a response without
  scores.
* ``pspo_wrs``: step scores, accumulated and shaped (arXiv 2411.11681), with the sections ``pspo``
  and ``step_scorer``. A response without scores has the reward 0; ``pspo.on_failure`` decides about
  it.
"""

import asyncio
import functools
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from prime_ext.algorithms.chain_reward import ChainReward
from prime_ext.algorithms.process_shaping import compute_step_rewards
from prime_ext.config import pspo_settings, step_scorer_settings
from prime_ext.config.step_rule import StepSettings
from prime_ext.methods.settings import PrimeSettings
from prime_ext.reward import user_function
from prime_ext.reward.compute_score import reward_info
from prime_ext.reward.node_scorer import connect
from prime_ext.reward.step_scoring import (
    ChainScorer,
    ResponseStepScorer,
    StepScoringResult,
    failure_info,
)
from prime_ext.verifiers.verdict import Outcome, grader_failed

logger = logging.getLogger(__name__)

NAME = "naive_with_prompt"
_LARGEST = torch.finfo(torch.float32).max


@register(NAME)
class PromptRewardManager(NaiveRewardManager):
    """Reward manager that passes the prompt to the reward function.

    The prompt's messages are ``extra_info["raw_prompt"]``. A user's own function is guarded
    (:mod:`prime_ext.reward.user_function`).
    """

    def __init__(
        self,
        config: DictConfig,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: Callable[..., Any],
        **others: Any,
    ):
        path = config.reward.custom_reward_function.path
        if path not in (None, user_function.PRIME_EXT_FUNCTION):
            compute_score = user_function.guard(compute_score, config)
        super().__init__(config, tokenizer, compute_score, **others)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Return the reward and extra info of a response, the last of an agent loop's outputs."""
        data = data[-1:]
        extras = data.non_tensor_batch
        info = np.empty(1, dtype=object)
        extra_info = _column(extras, "extra_info") or {}
        info[0] = {**extra_info, "raw_prompt": _column(extras, "raw_prompt")}
        return await super().run_single(
            DataProto(batch=data.batch, non_tensor_batch={**extras, "extra_info": info})
        )


def _column(extras: Mapping[str, Any], name: str) -> Any:
    return extras[name][0] if name in extras else None


@register(step_scorer_settings.MANAGER)
class StepScoresRewardManager(PromptRewardManager):
    """Reward manager ``naive_with_prompt`` with step scores in the extra info.

    The reward is the reward function's. ``score`` is None for the scorer of this node; all other
    arguments are verl's. Raises SettingsError: a section is missing or wrong; StepRMError: without
    Ray, a model that cannot work.
    """

    def __init__(
        self,
        config: DictConfig,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: Callable[..., Any],
        score: ChainScorer | None = None,
        **others: Any,
    ):
        super().__init__(config, tokenizer, compute_score, **others)
        self._needs_verdict = True
        steps, of_scorer = self.read_sections(config)
        if score is None:
            score = functools.partial(
                connect(of_scorer, others.get("reward_router_address")).ask, "score"
            )
        self._scoring = ResponseStepScorer(steps, tokenizer, score)

    def read_sections(
        self, config: DictConfig
    ) -> tuple[StepSettings, step_scorer_settings.ScorerSettings]:
        prime = PrimeSettings.from_config(config)
        self._needs_verdict = prime.needs.labels
        return prime.steps, step_scorer_settings.require_scorer(config)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        data = data[-1:]
        judge = super().run_single if self._needs_verdict else self.judge_if_possible
        scored, judged = await asyncio.gather(self._scoring(data[0]), judge(data))
        info = {**judged["reward_extra_info"], **scored.info(), **failure_info(scored.reason)}
        return {**judged, "reward_extra_info": info}

    async def judge_if_possible(self, data: DataProto) -> dict[str, Any]:
        """Return the verdict on a response that has a gold answer, where no reward depends on it.

        A reward function that breaks is a grader failure. Without a gold answer the extra info is
        empty.
        """
        section = _column(data.non_tensor_batch, "reward_model")
        gold = section.get("ground_truth") if isinstance(section, Mapping) else None
        if gold is None or (isinstance(gold, str) and not gold):
            return {"reward_score": 0.0, "reward_extra_info": {}}
        start = time.perf_counter()
        try:
            judged = await PromptRewardManager.run_single(self, data)
        except Exception as error:
            logger.exception("the reward function broke")
            detail = f"{type(error).__name__}: {error}"
            seconds = time.perf_counter() - start
            info = reward_info(grader_failed(Outcome.ERROR, None, seconds, detail))
            return {"reward_score": 0.0, "reward_extra_info": info}
        reward = float(judged["reward_score"])
        known = {"acc": reward, "grader_failure": 0.0, "verifier_detail": ""}
        return {"reward_score": reward, "reward_extra_info": known | judged["reward_extra_info"]}


@dataclass(frozen=True)
class ShapedReward:
    """The reward of a response; None where its scores are missing."""

    reward: float | None = None
    factor: float | None = None  # h(n), the rule for single steps included
    score: float | None = None  # the accumulated score F; None where every step is paid for itself
    # at the end of each step, with the reward as sum; empty if nothing is paid there
    paid: tuple[float, ...] = ()


class PSPOShaping:
    """Accumulation, shaping and credit of the section ``pspo``, in float64.

    Rewards travel in float32; those that it cannot hold are rejected, since the shape ``released``
    grows without bound.
    """

    def __init__(self, settings: pspo_settings.PSPOSettings):
        self._chain = ChainReward(**settings.chain_arguments())
        self._credit = settings.credit
        self._accumulates = settings.accumulation is not None
        self._at_steps = (
            settings.accumulation is None or settings.accumulation.reward_position == "step_ends"
        )

    def __call__(self, scores: Sequence[float]) -> ShapedReward:
        """Return the reward for the scores of steps, 0 without a step.

        Raises ValueError: float32 cannot hold the reward.
        """
        if not scores:
            return ShapedReward(0.0, 0.0, 0.0 if self._accumulates else None)
        score_BS = torch.tensor([list(scores)], dtype=torch.float64)
        mask_BS = torch.ones_like(score_BS, dtype=torch.bool)
        paid: tuple[float, ...] = ()
        if self._at_steps:
            reward_BS = compute_step_rewards(score_BS, mask_BS, self._chain, self._credit)
            paid = tuple(reward_BS[0].tolist())
        if self._accumulates:
            value = self._chain(score_BS, mask_BS)
            reward = float(value.reward_B)
            factor = float(value.factor_B)
            score = float(value.score_B)
        else:
            shaped = self._chain.shape != "none"
            factor = float(self._chain.length_factor(mask_BS.sum(-1))) if shaped else 1.0
            reward = math.fsum(paid)
            score = None
        if not all(abs(amount) <= _LARGEST for amount in (reward, *paid)):
            raise ValueError(
                f"a reward of {reward:g} for {len(scores)} steps, which float32 cannot hold"
            )
        return ShapedReward(reward, factor, score, paid)


@register(pspo_settings.MANAGER)
class PSPORewardManager(StepScoresRewardManager):
    """Reward manager that pays step scores.

    With ``pspo.judge`` it also judges responses that have a gold answer.
    """

    def read_sections(
        self, config: DictConfig
    ) -> tuple[StepSettings, step_scorer_settings.ScorerSettings]:
        self.settings, of_scorer = pspo_settings.read_pspo_sections(config)
        self._shape = PSPOShaping(self.settings)
        return self.settings.steps, of_scorer

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        data = data[-1:]
        scored, judged = await asyncio.gather(self._scoring(data[0]), self._judge(data))
        shaped, reason = self._shape_scores(scored)
        reward = 0.0 if shaped.reward is None else shaped.reward
        info = {
            **judged["reward_extra_info"],
            **scored.info(),
            "step_rewards": json.dumps(shaped.paid),
            "chain_score": shaped.score,
            "chain_factor": shaped.factor,
            **failure_info(reason),
            "score": reward,
        }
        return {"reward_score": reward, "reward_extra_info": info}

    def _shape_scores(self, scored: StepScoringResult) -> tuple[ShapedReward, str]:
        if scored.scores is None:
            return ShapedReward(), scored.reason
        try:
            return self._shape(scored.scores.scores), ""
        except ValueError as error:
            return ShapedReward(), str(error)

    async def _judge(self, data: DataProto) -> dict[str, Any]:
        """Return the verdict, if it is asked for."""
        if not self.settings.judge:
            return {"reward_extra_info": {}}
        return await self.judge_if_possible(data)
