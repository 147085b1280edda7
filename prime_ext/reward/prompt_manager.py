# SPDX-License-Identifier: Apache-2.0
"""The reward manager ``naive_with_prompt``: verl's ``naive``, which tells the reward function the prompt too."""

from typing import Any

import numpy as np
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

NAME = "naive_with_prompt"


@register(NAME)
class PromptRewardManager(NaiveRewardManager):
    """Tells the reward function the messages of the prompt, as ``extra_info["raw_prompt"]``."""

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Reward and extra info of one response; of several outputs of an agent loop, of the last one."""
        data = data[-1:]
        extras = data.non_tensor_batch
        info = np.empty(1, dtype=object)
        given = extras["extra_info"][0] if "extra_info" in extras else {}
        info[0] = {**given, "raw_prompt": extras["raw_prompt"][0]}
        return await super().run_single(DataProto(batch=data.batch, non_tensor_batch={**extras, "extra_info": info}))
