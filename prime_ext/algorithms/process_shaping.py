# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""From token rewards to what the process source pays and where: granularity, credit, redistribution, in this order."""

from dataclasses import dataclass, field

import torch

from prime_ext.algorithms.process_reward import lambda_rewards, redistribute, td_rewards, whole_response_rewards
from prime_ext.algorithms.returns import last_token_mask
from prime_ext.algorithms.step_credit import StepCredit
from prime_ext.algorithms.steps import StepSpans, end_mask, place_at_ends, sum_over_steps


@dataclass(frozen=True)
class ProcessShaping:
    """The choices, by name.

    Attributes:
        granularity: ``token``, ``prefix_value``, ``step`` or ``response``.
        reward_lambda: of tokens and prefix values, see :func:`lambda_rewards`; 0 leaves rewards alone.
        credit: of steps.
        redistribution: ``none``, ``uniform`` or ``last``, see :func:`redistribute`.
    """

    granularity: str = "token"
    reward_lambda: float = 0.0
    credit: StepCredit = field(default_factory=StepCredit)
    redistribution: str = "none"

    def __call__(
        self, reward_BT: torch.Tensor, mask_BT: torch.Tensor, spans: StepSpans | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is paid and the mask of where, ``(B, T)`` each.

        Args:
            reward_BT: r_t = beta * q_t of each token.
            mask_BT: response mask.
            spans: the steps, for the granularity ``step``.

        Raises:
            ValueError: unknown granularity, or steps without spans.
        """
        paid_BT, source_BT = self._paid(reward_BT, mask_BT, spans)
        if self.redistribution != "none":
            paid_BT = redistribute(paid_BT, source_BT, self.redistribution)
        return paid_BT, source_BT

    def _paid(
        self, reward_BT: torch.Tensor, mask_BT: torch.Tensor, spans: StepSpans | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.granularity == "response":
            return whole_response_rewards(reward_BT, mask_BT), last_token_mask(mask_BT)
        if self.granularity == "step":
            if spans is None:
                raise ValueError("the granularity 'step' needs the steps of the responses")
            paid_BS = self.credit.rewards(sum_over_steps(reward_BT, spans), spans.mask_BS)
            return place_at_ends(paid_BS, spans), end_mask(spans)
        if self.granularity == "prefix_value":
            reward_BT = td_rewards(reward_BT, mask_BT, beta=1.0, zero_last=True)
        elif self.granularity != "token":
            raise ValueError(f"granularity {self.granularity!r} is not one of token, prefix_value, step, response")
        if self.reward_lambda > 0.0:
            reward_BT = lambda_rewards(reward_BT, mask_BT, beta=1.0, trace=self.reward_lambda)
        return reward_BT, mask_BT
