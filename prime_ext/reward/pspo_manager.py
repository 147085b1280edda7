# SPDX-License-Identifier: Apache-2.0
"""The reward manager ``pspo_wrs`` of verl's reward loop: step scores, accumulated and shaped (arXiv 2411.11681).

reward.reward_manager.name=pspo_wrs, with the sections ``pspo`` and ``step_scorer`` (``config/pspo``,
``config/step_scorer``). Of a response that cannot be scored it says so (``reward_failure``), with the reward 0 in place
of one; what becomes of it is the trainer's choice (``pspo.on_failure``).
"""

import asyncio
import inspect
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from prime_ext.config.pspo_settings import MANAGER, sections_of
from prime_ext.reward.chain_pricing import ChainPricing, PricedChain
from prime_ext.reward.compute_score import reward_info
from prime_ext.reward.node_scorer import ResponseScorer, connect
from prime_ext.reward.pspo_info import failure_info, price_info, step_info
from prime_ext.reward.step_scoring import ScoredSteps, StepScoring, response_ids
from prime_ext.verifiers.verdict import Outcome, grader_failed

logger = logging.getLogger(__name__)


@register(MANAGER)
class PSPORewardManager(RewardManagerBase):
    """Rewards one response at a time, as verl's reward loop asks for them.

    Args:
        config: the whole configuration.
        tokenizer: the policy's.
        compute_score: judges responses against gold answers.
        reward_router_address: of verl's reward-model pool, where it is on.
        reward_model_tokenizer: given by verl then; the step reward model has its own.
        scorer: scores responses; None for the scorer of this node, as the settings say.

    Raises:
        SettingsError: a section is missing or wrong.
        StepRMError: without Ray, a model that cannot work.
    """

    def __init__(
        self,
        config: DictConfig,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
        scorer: ResponseScorer | None = None,
    ):
        super().__init__(config, tokenizer, compute_score)
        self.settings, scorer_settings = sections_of(config)
        scorer = scorer or connect(scorer_settings, reward_router_address)
        self._scoring = StepScoring(self.settings.steps, tokenizer, scorer)
        self._price = ChainPricing(self.settings)
        self._log = _log_file(self.settings.log_path) if self.settings.log_path else None
        self._router = (
            {"reward_router_address": reward_router_address, "reward_model_tokenizer": reward_model_tokenizer}
            if reward_router_address is not None
            else {}
        )

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Reward and extra info of one response; of several outputs of an agent loop, of the last one."""
        row = data[-1:][0]
        extras = row.non_tensor_batch
        ids = response_ids(row)
        scored, verdict = await asyncio.gather(self._scoring(ids, extras), self._judged(ids, extras))
        priced, reason = self._priced(scored)
        reasons = [f"step scorer: {reason}"] if reason else []
        bonus = 0.0
        if self.settings.outcome_coefficient > 0:
            if verdict is None:
                reasons.append("verifier: the row has no gold answer, and pspo.outcome_coefficient is above 0")
            elif verdict["grader_failure"]:
                reasons.append(f"verifier: {verdict['verifier_detail'] or verdict.get('verdict', 'no verdict')}")
            else:
                bonus = self.settings.outcome_coefficient * float(verdict["acc"])
        reward = 0.0 if reasons or priced is None else priced.reward + bonus
        if reasons:
            self._scoring.warn(scored, reasons)
        info = {
            **(verdict or {}),
            **step_info(scored),
            **price_info(priced),
            "outcome_reward": bonus,
            **failure_info(reasons),
            "score": reward,
        }
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(_record(extras, scored, priced, info), ensure_ascii=False) + "\n")
        return {"reward_score": reward, "reward_extra_info": info}

    def _priced(self, scored: ScoredSteps) -> tuple[PricedChain | None, str]:
        """What the scores are worth, or why there is no such number."""
        if scored.scores is None:
            return None, scored.reason
        try:
            return self._price(scored.scores.scores), ""
        except ValueError as error:
            return None, str(error)

    async def _judged(self, ids: list[int], extras: Mapping[str, Any]) -> dict[str, Any] | None:
        """The verdict on the response; None if it is not asked for or there is no gold answer."""
        gold = _gold(extras)
        if not self.settings.judge or gold is None:
            return None
        start = time.perf_counter()
        loop = asyncio.get_running_loop()
        arguments = {
            "data_source": str(extras.get("data_source", "unknown")),
            "ground_truth": gold,
            "extra_info": {**(extras.get("extra_info") or {}), "raw_prompt": extras.get("raw_prompt")},
            **self._router,
        }
        try:
            text = await loop.run_in_executor(None, lambda: self.tokenizer.decode(ids, skip_special_tokens=True))
            if inspect.iscoroutinefunction(self.compute_score):
                result = await self.compute_score(solution_str=text, **arguments)
            else:
                result = await loop.run_in_executor(None, lambda: self.compute_score(solution_str=text, **arguments))
            return _verdict(result)
        except Exception as error:
            logger.exception("the reward function broke")
            detail = f"{type(error).__name__}: {error}"
            return reward_info(grader_failed(Outcome.ERROR, None, time.perf_counter() - start, detail))


def _log_file(folder: str) -> Path:
    """The file of this process: lines of several nodes in one file of a shared disk could mix."""
    node = f"{ray.get_runtime_context().get_node_id()[:8]}_" if ray.is_initialized() else ""
    path = Path(folder).expanduser() / f"responses_{node}{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _gold(extras: Mapping[str, Any]) -> Any:
    """The gold answer of a row; None if it has none."""
    section = extras.get("reward_model")
    gold = section.get("ground_truth") if isinstance(section, Mapping) else None
    return None if isinstance(gold, str) and not gold else gold


def _verdict(result: Any) -> dict[str, Any]:
    """What a reward function returns, as prime_ext's own one does: with ``acc`` and ``grader_failure``."""
    values = dict(result) if isinstance(result, Mapping) else {"score": float(result)}
    values.setdefault("acc", float(values["score"]))
    values.setdefault("grader_failure", 0.0)
    values.setdefault("verifier_detail", "")
    return values


def _record(
    extras: Mapping[str, Any], scored: ScoredSteps, priced: PricedChain | None, info: Mapping[str, Any]
) -> dict[str, Any]:
    """A line of the log."""
    names = ("n_tokens", "chain_score", "chain_factor", "chain_reward", "outcome_reward", "acc", "pred", "score")
    texts, scores = scored.cut.texts, scored.scores
    values = scores.scores if scores is not None else [None] * len(texts)
    paid = priced.paid if priced is not None and priced.paid else [None] * len(texts)
    return {
        "global_step": int(extras["global_steps"]) if extras.get("global_steps") is not None else None,
        "uid": str(extras.get("uid", "")),
        "rollout": int(extras["session_id"]) if extras.get("session_id") is not None else None,
        "data_source": str(extras.get("data_source", "")),
        "n_steps": len(texts),
        "steps": [
            {"text": text, "score": value, "paid": amount}
            for text, value, amount in zip(texts, values, paid, strict=True)
        ],
        **{name: info.get(name) for name in names},
        "failure": info["failure_detail"],
    }
