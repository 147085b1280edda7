# SPDX-License-Identifier: Apache-2.0
"""Arguments and result of a method's function: rollouts, their scores, rewards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.algorithms.steps import StepSpans
from prime_ext.methods.store import RolloutStore


@dataclass(frozen=True)
class Steps:
    """Steps of responses, and the number of responses whose search for steps took too long."""

    spans: StepSpans
    timed_out: int = 0


@dataclass(frozen=True)
class Turns:
    """Last tokens of turns, ``(B, T)``, and the rewards of turns at them, if there are any."""

    end_BT: torch.Tensor
    reward_BT: torch.Tensor | None = None


@dataclass(frozen=True)
class Rollouts:
    """Rollouts of a training step, in the rows of the store.

    Padding rows are included, with an empty mask. Fields with a default are present only if the
    settings need them.

    Attributes:
        extras: extra fields that the agent loop returned for each row; meaningless for padding.
        mask_BT: tokens of the policy that are trained on.
        reward_BT: verl's token rewards: the outcome at the last valid token and, with the KL
            penalty in the reward, the penalty of each token; 0 outside the mask.
        label_B: the verifier's verdict in [0, 1]; NaN where there is none and the settings read
            none.
        group_B: number of the prompt; padding rows have other numbers.
        number: number of the training step, from 1.
        value_BT: the critic's value of the state before each token.
        old_log_prob_BT: log-probabilities under the policy that wrote the responses.
        advantage_BT: the outcome's advantage, where verl has computed it.
        penalty_BT: verl's KL penalty of each token, as a reward, where the outcome does not count.
    """

    store: RolloutStore
    extras: list[Any]
    mask_BT: torch.Tensor
    reward_BT: torch.Tensor
    label_B: torch.Tensor
    group_B: torch.Tensor
    number: int = 1
    steps: Steps | None = None
    turns: Turns | None = None
    value_BT: torch.Tensor | None = None
    old_log_prob_BT: torch.Tensor | None = None
    advantage_BT: torch.Tensor | None = None
    penalty_BT: torch.Tensor | None = None

    @cached_property
    def valid_B(self) -> torch.Tensor:
        """Return the rows with a trained token; padding and completely rejected rows have none."""
        return self.mask_BT.bool().any(-1)


@dataclass(frozen=True)
class ScoredRollouts:
    """Scores of rollouts; without a scorer only the positions of their steps.

    Attributes:
        reward_BT: r_t = beta * q_t, or log pi_prm - log pi_old (``prime.process.target=policy``),
            or the scores of the steps that end at a token; not normalized, 0 outside the mask.
        score_BS: the scores of ``steps``, where they are not sums of these rewards.
        noise: standard deviation of the rounding noise of a reward.
        pairs: how the scorer ordered pairs of these rollouts before it was trained on them.
        steps: the steps that get rewards.
        metrics, seconds: by name.
    """

    reward_BT: torch.Tensor | None = None
    score_BS: torch.Tensor | None = None
    noise: float = 0.0
    pairs: PairCount = PairCount(0.0, 0.0)
    steps: Steps | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewards:
    """Rewards of one source, ``(B, T)``.

    Attributes:
        reward_BT: rewards of tokens.
        mask_BT: tokens at which the source gives rewards.
        metrics: by name.
        value_BT: values of the states that replace the critic's.
        is_advantage: they are advantages already: no sum over later tokens, no baseline.
    """

    reward_BT: torch.Tensor
    mask_BT: torch.Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)
    value_BT: torch.Tensor | None = None
    is_advantage: bool = False


# A method's function of rewards, from the rollouts of a step, their scores and its settings; None
# where there is nothing to pay.
RewardFunction = Callable[[Rollouts, ScoredRollouts, Any], Rewards | None]
