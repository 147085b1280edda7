# SPDX-License-Identifier: Apache-2.0
"""Reward managers of verl's reward loop (``reward.reward_manager.name``) for single responses.

* ``naive_with_prompt``: verl's ``naive``, which also passes the prompt to the reward function.
* ``naive_with_step_scores``: also scores the steps of ``prime.steps``, for
  ``prime/process=step_scorer``. ``prime.verifier.on_failure`` decides about a response without
  scores.
* ``pspo_wrs``: the reward of the step scores (arXiv 2411.11681), for verl's own trainers. A
  response without scores has the reward 0.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from prime_ext.algorithms.steps import place_at_ends, spans_from_ends
from prime_ext.config.checks import SettingsError
from prime_ext.config.step_rule import StepSettings
from prime_ext.config.step_scorer_settings import ScorerSettings, require_scorer
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.step_scorer.settings import StepScorerSettings
from prime_ext.methods.step_scorer.source import build_shaping
from prime_ext.names import PAYING_MANAGER, PROMPT_MANAGER, STEP_SCORES_MANAGER
from prime_ext.reward import user_function
from prime_ext.reward.compute_score import reward_info
from prime_ext.reward.node_scorer import connect
from prime_ext.reward.step_scoring import (
    ChainScorer,
    ResponseStepScorer,
    StepScoringResult,
    failure_info,
)
from prime_ext.tasks.rl_rows import get_gold
from prime_ext.verifiers.verdict import Outcome, grader_failed

logger = logging.getLogger(__name__)

_LARGEST = torch.finfo(torch.float32).max


@register(PROMPT_MANAGER)
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


@register(STEP_SCORES_MANAGER)
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

    def read_sections(self, config: DictConfig) -> tuple[StepSettings, ScorerSettings]:
        prime = PrimeSettings.from_config(config)
        self._needs_verdict = prime.needs.labels
        return prime.steps, require_scorer(config)

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
        if get_gold(_column(data.non_tensor_batch, "reward_model")) is None:
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


@register(PAYING_MANAGER)
class PSPORewardManager(StepScoresRewardManager):
    """Reward manager whose reward is that of the step scores, as the trainer's step pays them.

    It is for verl's own trainers, with any of their estimators.
    """

    def read_sections(self, config: DictConfig) -> tuple[StepSettings, ScorerSettings]:
        process = PrimeSettings.from_config(config).process
        if not isinstance(process, StepScorerSettings):
            raise SettingsError(
                f"reward.reward_manager.name={PAYING_MANAGER} needs variant=pspo_wrs"
            )
        self._shaping = build_shaping(process)
        return super().read_sections(config)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        data = data[-1:]
        scored, judged = await asyncio.gather(self._scoring(data[0]), self.judge_if_possible(data))
        reward, reason = self._sum_rewards(scored)
        info = {
            **judged["reward_extra_info"],
            **scored.info(),
            **failure_info(reason),
            "score": reward,
        }
        return {"reward_score": reward, "reward_extra_info": info}

    def _sum_rewards(self, scored: StepScoringResult) -> tuple[float, str]:
        """Return the sum of a response's rewards, or 0 and the reason why there are none."""
        if scored.scores is None:
            return 0.0, scored.reason
        scores = scored.scores.scores
        if not scores:
            return 0.0, ""
        mask_BT = torch.ones(1, scored.n_tokens, dtype=torch.float64)
        end_BS = torch.tensor([scored.cut.ends])
        spans = spans_from_ends(end_BS, torch.ones_like(end_BS, dtype=torch.bool), mask_BT)
        score_BS = torch.tensor([scores], dtype=torch.float64)
        try:
            paid_BT, _ = self._shaping(place_at_ends(score_BS, spans), mask_BT, spans, score_BS)
        except ValueError as error:
            return 0.0, str(error)
        reward = float(paid_BT.double().sum())
        if not abs(reward) <= _LARGEST:
            return 0.0, f"a reward of {reward:g} for {len(scores)} steps, which float32 cannot hold"
        return reward, ""
