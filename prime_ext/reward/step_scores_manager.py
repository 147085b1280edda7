# SPDX-License-Identifier: Apache-2.0
"""The reward manager ``naive_with_step_scores``: the verifier's outcome, and the scores of a step scorer beside it.

For ``prime.process.scorer=step_scorer``: the scores of the steps of ``prime.steps`` travel in the reward's extra info
and become PRIME's process rewards. Of a response that cannot be scored it says so (``reward_failure``); what becomes of
it is ``prime.verifier.on_failure``.
"""

import asyncio
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register

from prime_ext.config.checks import read
from prime_ext.config.reward_settings import StepSettings
from prime_ext.config.step_scorer_settings import MANAGER, scorer_of
from prime_ext.reward.node_scorer import ResponseScorer, connect
from prime_ext.reward.prompt_manager import PromptRewardManager
from prime_ext.reward.pspo_info import failure_info, step_info
from prime_ext.reward.step_scoring import StepScoring, response_ids


@register(MANAGER)
class StepScoresRewardManager(PromptRewardManager):
    """``naive_with_prompt``, with step scores in the extra info; the reward stays that of the reward function.

    Args:
        config: the whole configuration.
        tokenizer: the policy's.
        compute_score: judges responses against gold answers.
        reward_router_address: of verl's reward-model pool, where it is on.
        reward_model_tokenizer: given by verl then; the step scorer has its own.
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
        super().__init__(config, tokenizer, compute_score, reward_router_address, reward_model_tokenizer)
        steps = read(StepSettings, OmegaConf.to_container(config.prime.steps, resolve=True), "prime.steps")
        scorer = scorer or connect(scorer_of(config), reward_router_address)
        self._scoring = StepScoring(steps, tokenizer, scorer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Reward and extra info of one response; of several outputs of an agent loop, of the last one."""
        row = data[-1:][0]
        scored, judged = await asyncio.gather(
            self._scoring(response_ids(row), row.non_tensor_batch), super().run_single(data)
        )
        reasons = [f"step scorer: {scored.reason}"] if scored.reason else []
        if reasons:
            self._scoring.warn(scored, reasons)
        info = {**judged["reward_extra_info"], **step_info(scored), **failure_info(reasons)}
        return {"reward_score": judged["reward_score"], "reward_extra_info": info}
