# SPDX-License-Identifier: Apache-2.0
"""One source of reward: what it pays, where, and how it is turned into an advantage."""

from dataclasses import dataclass, replace

import torch

from prime_ext.algorithms.returns import kept, last_token


@dataclass(frozen=True)
class RewardSource:
    """One source of reward and how it enters the advantage.

    Attributes:
        reward_BT: token rewards ``(B, T)``.
        mask_BT: tokens at which the source gives rewards.
        coefficient: weight in the sum; applied before whitening, so that it counts.
        discount: discount of the source's return-to-go.
        form: form of the leave-one-out baseline, ``released`` or ``paper``; read by ``rloo`` only.
        estimator: name in ``prime_ext.algorithms.estimators.ESTIMATORS``.
        gae_lambda: lambda of generalised advantage estimation; read by ``gae`` only.
        value_BT: value of the state before each token; needed by ``gae``, ``prm_value`` and ``segment``.
        cut_BT: tokens at which a segment begins; needed by ``segment``.
        baseline_B: reward of the greedy response to the same prompt; needed by ``remax``.
        singleton_group: what a rollout alone in its group receives from a group baseline: ``zero`` advantage, or
            ``keep`` its reward with a baseline of 0. None leaves it to the estimator (``zero`` for ``rloo``; ``keep``,
            as verl does, for the others).
        clip: largest absolute advantage before the coefficient.
        turn_end_BT: tokens at which a turn ends; needed by estimators over turns.
        state_BT: number of the state in which each token's turn begins; needed by ``gigpo`` and ``gigpo_mean``.
        step_weight: w of these two.
        absent_B: rows that the source says nothing about: they have no advantage, and no other is compared with them.
    """

    reward_BT: torch.Tensor
    mask_BT: torch.Tensor
    coefficient: float = 1.0
    discount: float = 1.0
    form: str = "released"
    estimator: str = "rloo"
    gae_lambda: float = 1.0
    value_BT: torch.Tensor | None = None
    cut_BT: torch.Tensor | None = None
    baseline_B: torch.Tensor | None = None
    singleton_group: str | None = None
    clip: float | None = None
    absent_B: torch.Tensor | None = None
    turn_end_BT: torch.Tensor | None = None
    state_BT: torch.Tensor | None = None
    step_weight: float = 1.0

    def kept_reward(self) -> torch.Tensor:
        """The rewards, 0 outside the source mask whatever stands there."""
        return kept(self.reward_BT, self.mask_BT)

    def as_column(self, response_mask_BT: torch.Tensor) -> "RewardSource | None":
        """The same source on responses of one token, if it pays once per response, at the last valid token; else None.

        Undiscounted, such a reward is the same at every token of the response, and one column is enough to work on.
        """
        keep_BT = self.mask_BT.bool()
        count_B = keep_BT.sum(-1, dtype=torch.int32)
        if bool((count_B > 1).any()):
            return None
        last_B1 = last_token(response_mask_BT)[:, None]
        keep_B1 = keep_BT.gather(1, last_B1)
        if bool((keep_B1[:, 0] != (count_B > 0)).any()):
            return None
        return replace(self, reward_BT=self.reward_BT.gather(1, last_B1), mask_BT=keep_B1)

    def keeps_singleton(self, default: str) -> bool:
        """Whether a rollout alone in its group keeps its reward."""
        singleton_group = default if self.singleton_group is None else self.singleton_group
        if singleton_group not in ("keep", "zero"):
            raise ValueError(f"singleton_group must be 'keep', 'zero' or None, got {singleton_group!r}")
        return singleton_group == "keep"
