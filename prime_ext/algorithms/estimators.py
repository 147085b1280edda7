# SPDX-License-Identifier: Apache-2.0
"""Advantage estimators of one reward source, by name.

An estimator is ``f(source, response_mask_BT, group_B) -> advantage_BT``: 0 outside the response
mask, before coefficient and whitening. Estimators that compare rollouts give 0 to one that is alone
in its group.

``rloo`` and ``grpo`` reduce a response to m_j, the mean of its rewards over the source mask (PRIME,
arXiv 2502.01456, Eqs. 5 and 7). They subtract a baseline from every reward; the return-to-go of the
rest is the advantage. With a reward at every token the baseline accumulates too, as in PRIME: early
tokens of long responses have (remaining length) times the baseline.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.returns import apply_mask, find_next, return_to_go
from prime_ext.algorithms.steps import StepSpans, place_at_ends, step_spans, sum_over_steps
from prime_ext.names import Baseline


@dataclass(frozen=True)
class RewardSource:
    """One source of reward: token rewards, their positions, and how they enter the advantage.

    Attributes:
        reward_BT: token rewards ``(B, T)``.
        mask_BT: tokens at which the source gives rewards.
        coefficient: weight in the sum of sources, applied before whitening.
        discount: of the return-to-go.
        form: of the leave-one-out baseline of ``rloo``.
        estimator: a name in :data:`ESTIMATORS`.
        gae_lambda: lambda of ``gae``.
        value_BT: value of the state before each token, for ``gae`` and ``prm_value``.
        turn_end_BT: tokens at which a turn ends, for ``turn_rloo``.
    """

    reward_BT: torch.Tensor
    mask_BT: torch.Tensor
    coefficient: float = 1.0
    discount: float = 1.0
    form: Baseline = "released"
    estimator: str = "rloo"
    gae_lambda: float = 1.0
    value_BT: torch.Tensor | None = None
    turn_end_BT: torch.Tensor | None = None

    def kept_reward(self) -> torch.Tensor:
        """Return the rewards, 0 outside the source mask."""
        return apply_mask(self.reward_BT, self.mask_BT)

    def mean_reward(self) -> torch.Tensor:
        """Return m_j, the mean reward of each response over the source mask, ``(B,)``."""
        return self.kept_reward().sum(-1) / self.mask_BT.bool().sum(
            -1, dtype=torch.int32
        ).clamp_min(1)


Estimator = Callable[[RewardSource, torch.Tensor, torch.Tensor], torch.Tensor]


def rloo(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return REINFORCE leave-one-out advantages (arXiv 2402.14740) in the two forms of PRIME.

    They are summed from t on. With n the size of the group, a reward becomes

    * ``paper`` (PRIME, arXiv 2502.01456, Eq. 5): r_it - sum_{j != i} m_j / (n - 1)
    * ``released`` (the code of the published numbers): r_it * n / (n - 1) - sum_j m_j / (n - 1)

    Both agree for a source with one reward per response, such as the outcome.
    """
    reward_BT = source.kept_reward()
    mean_B = source.mean_reward()
    groups = _groups(source, group_B)
    size_B = groups.size_B
    sum_B = groups.sum(mean_B)
    others_B = (size_B - 1).clamp_min(1).to(reward_BT.dtype)
    if source.form == "released":
        scale_B = size_B.to(reward_BT.dtype) / others_B
        centered_BT = reward_BT * scale_B[:, None] - (sum_B / others_B)[:, None]
    else:
        centered_BT = reward_BT - ((sum_B - mean_B) / others_B)[:, None]
    centered_BT = apply_mask(centered_BT, source.mask_BT.bool() & (size_B > 1)[:, None])
    return return_to_go(centered_BT, response_mask_BT, source.discount)


def grpo(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return (r_t - mean_j m_j) / (std_j m_j + 1e-6), summed from t on.

    This is GRPO (arXiv 2402.03300; PRIME, Eq. 7). The standard deviation has Bessel's correction,
    as in verl. A group whose m_j are all equal receives 0.
    """
    mean_B = source.mean_reward()
    groups = _groups(source, group_B)
    std_B = groups.std(mean_B)
    scale_B = torch.where(std_B > 0, 1.0 / (std_B + 1e-6), 0.0)
    centered_BT = (source.kept_reward() - groups.mean(mean_B)[:, None]) * scale_B[:, None]
    return return_to_go(apply_mask(centered_BT, source.mask_BT), response_mask_BT, source.discount)


def maxrl(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return (r_t - mean_j m_j) / mean_j m_j, summed from t on; 0 where the mean is not above 0.

    This is MaxRL (arXiv 2602.02710), for outcomes of 0 and 1. Let p be the probability of a
    success, and K of N rollouts successes. The log-likelihood truncated at order N, J_N =
    -sum_(k=1..N) (1 - p)^k / k, has the gradient grad p * sum_(k=0..N-1) (1 - p)^k = (1 - (1 -
    p)^N) * grad p / p: that of pass@k, weighted by 1 / k. It is the expectation of the mean of grad
    log pi over the successes, 0 if K = 0, because a success has the mean grad p / p. So each
    success weighs 1 / K. Subtracting 1 / N for all rollouts, a term of mean 0, gives (r - K / N) /
    K, or these advantages with a loss that averages over the rollouts.

    Groups without a success give 0, without that term. Leaving it out there costs (1 - p)^(N - 1) *
    grad p, the last summand: the result is unbiased for order N - 1, and order 1 is the accuracy.
    """
    mean_B = source.mean_reward()
    groups = _groups(source, group_B)
    group_mean_B = groups.mean(mean_B)
    counts_B = (group_mean_B > 0) & (groups.size_B > 1)
    scale_B = torch.where(counts_B, 1.0 / group_mean_B, 0.0)
    centered_BT = (source.kept_reward() - group_mean_B[:, None]) * scale_B[:, None]
    return return_to_go(apply_mask(centered_BT, source.mask_BT), response_mask_BT, source.discount)


def rloo_per_token(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return r_ik - N_ik * (sum of the others' rewards) / (sum of the others' lengths).

    This is PURE (arXiv 2504.15275), summed from step k on. N_ik is the number of tokens of the
    step, which lasts from one reward of the source to the next. A baseline per step would favor few
    long steps. PURE does not count the separators that it appends; here nothing is appended.
    """
    spans = step_spans(source.mask_BT, response_mask_BT)
    reward_BS = sum_over_steps(source.kept_reward(), spans)
    total_B = reward_BS.sum(-1)
    length_B = response_mask_BT.bool().sum(-1).to(reward_BS.dtype)
    groups = PromptGroups.build(group_B, spans.mask_BS.any(-1))
    per_token_B = (groups.sum(total_B) - total_B) / (groups.sum(length_B) - length_B).clamp_min(1)
    centered_BS = reward_BS - per_token_B[:, None] * spans.length_BS.to(reward_BS.dtype)
    centered_BS = apply_mask(centered_BS, (groups.size_B > 1)[:, None])
    return return_to_go(place_at_ends(centered_BS, spans), response_mask_BT, source.discount)


def turn_rloo(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return G_ik minus the mean of G_jk over the other rollouts that have a k-th turn.

    G_k = r_k + discount * G_(k+1) is the return of turn k, with r_k the sum of the source's rewards
    in it; all tokens of a turn have its advantage. Where no other rollout has a k-th turn, the
    baseline is the mean of the others' G_j1. The baseline looks at other rollouts only, so the
    policy gradient is unbiased even where the policy decides when to stop. Centering turn rewards
    before the sum would charge "one more turn" with its mean reward (verl-project/verl#7244).
    """
    assert source.turn_end_BT is not None
    spans = step_spans(source.turn_end_BT, response_mask_BT)
    return_BS = return_to_go(
        sum_over_steps(source.kept_reward(), spans), spans.mask_BS, source.discount
    )
    groups = PromptGroups.build(group_B, spans.mask_BS.any(-1))
    present_BS = spans.mask_BS.to(return_BS.dtype)
    others_BS = groups.sum(present_BS) - present_BS
    mean_BS = (groups.sum(return_BS) - return_BS) / others_BS.clamp_min(1)
    baseline_BS = torch.where(others_BS > 0, mean_BS, mean_BS[:, :1])
    return _spread_over_steps(
        torch.where((groups.size_B > 1)[:, None], return_BS - baseline_BS, 0.0), spans
    )


def reinforce(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return R_t = sum_{s >= t} discount^(s - t) r_s, without baseline (PRIME, Eq. 8)."""
    return return_to_go(source.kept_reward(), response_mask_BT, source.discount)


def gae(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return PPO's generalized advantage estimates (arXiv 1506.02438).

    delta_t = r_t + discount * V_{t+1} - V_t and A_t = delta_t + discount * gae_lambda * A_{t+1},
    where t + 1 is the next valid token; after the last one V is 0. The critic's target is A_t +
    V_t.
    """
    assert source.value_BT is not None
    reward_BT = source.kept_reward()
    value_BT = apply_mask(source.value_BT.to(reward_BT.dtype), response_mask_BT)
    next_BT = torch.nn.functional.pad(value_BT, (0, 1)).gather(1, find_next(response_mask_BT))
    delta_BT = (reward_BT - value_BT).add_(next_BT, alpha=source.discount)
    return return_to_go(delta_BT, response_mask_BT, source.discount * source.gae_lambda)


def prm_value(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Return R_t - v_t, with the implicit PRM as the value function (PRIME, arXiv 2502.01456).

    See the paper's section on value models; in its ablation this is weaker than process rewards as
    returns. v_t is ``source.value_BT``, see
    :func:`prime_ext.algorithms.implicit_reward.compute_implicit_values`.
    """
    assert source.value_BT is not None
    return_BT = reinforce(source, response_mask_BT, group_B)
    return apply_mask(return_BT - source.value_BT.to(return_BT.dtype), response_mask_BT)


def _groups(source: RewardSource, group_B: torch.Tensor) -> PromptGroups:
    """Return the groups of the responses in which the source gives rewards."""
    return PromptGroups.build(group_B, source.mask_BT.bool().any(-1))


def _spread_over_steps(value_BS: torch.Tensor, spans: StepSpans) -> torch.Tensor:
    """Return each step's value at all of its valid tokens, 0 elsewhere, ``(B, T)``."""
    return torch.where(spans.step_BT >= 0, value_BS.gather(1, spans.step_BT.clamp_min(0)), 0.0)


ESTIMATORS: dict[str, Estimator] = {
    "rloo": rloo,
    "grpo": grpo,
    "maxrl": maxrl,
    "rloo_per_token": rloo_per_token,
    "turn_rloo": turn_rloo,
    "reinforce": reinforce,
    "gae": gae,
    "prm_value": prm_value,
}


def compute_advantage(
    source: RewardSource, response_mask_BT: torch.Tensor, group_B: torch.Tensor
) -> torch.Tensor:
    """Apply the source's estimator, ``(B, T)``; its coefficient and whitening come later."""
    return ESTIMATORS[source.estimator](source, response_mask_BT, group_B)
