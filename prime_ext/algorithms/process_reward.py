# SPDX-License-Identifier: Apache-2.0
"""From log-ratios to process rewards: per token, per step or whole, without the last one.

Every function takes ``log_ratio_BT`` (q) or rewards with anything outside the mask, and returns 0 there.
"""

import torch

from prime_ext.algorithms.returns import last_token_mask
from prime_ext.algorithms.steps import StepSpans, place_at_ends, sum_over_steps


def _kept(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    kept_BT = torch.where(mask_BT.bool(), value_BT, value_BT.new_zeros(()))
    return kept_BT.to(torch.promote_types(kept_BT.dtype, torch.float32))


def prefix_values(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """V_t = beta * (q_1 + ... + q_t) and V_t / t with t counting valid tokens (IPVRM, arXiv 2604.13197, Eq. 5).

    The value includes the token t itself, as in the released code; sigmoid(V_t / t) reads as the probability that the
    response will be correct. 0 outside the mask.
    """
    kept_BT = beta * _kept(log_ratio_BT, mask_BT)
    valid_BT = mask_BT.bool().to(kept_BT.dtype)
    value_BT = kept_BT.cumsum(-1) * valid_BT
    return value_BT, value_BT / valid_BT.cumsum(-1).clamp_min(1)


def implicit_values(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """v_t = sum of the process rewards before token t: the implicit PRM as a value function of the state (PRIME).

    Paired with the estimator ``prm_value`` and an outcome source.
    """
    kept_BT = _kept(reward_BT, mask_BT)
    return torch.where(mask_BT.bool(), kept_BT.cumsum(-1) - kept_BT, kept_BT.new_zeros(()))


def step_rewards(reward_BT: torch.Tensor, spans: StepSpans) -> torch.Tensor:
    """Token rewards summed over each step and placed at its last token, ``(B, T)``."""
    return place_at_ends(sum_over_steps(reward_BT, spans), spans)


def whole_response_rewards(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Token rewards of the whole response summed and placed at its last token, ``(B, T)``."""
    return _kept(reward_BT, mask_BT).sum(-1, keepdim=True) * last_token_mask(mask_BT).to(torch.float32)


def without_last_reward(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """The rewards, 0 at the last valid token (IPVRM, arXiv 2604.13197, section 4).

    A response of one token then has no reward. PRIME keeps it: the released code and the paper count every token, and
    only verl's recipe drops the last one unasked.
    """
    return torch.where(last_token_mask(mask_BT).bool(), reward_BT.new_zeros(()), _kept(reward_BT, mask_BT))


def redistribute(reward_BT: torch.Tensor, mask_BT: torch.Tensor, where: str = "uniform") -> torch.Tensor:
    """Shift the rewards so that those of a response sum to zero; ``mask_BT`` marks the tokens that carry rewards.

    * ``uniform``: subtract the response's mean reward from each of them.
    * ``last``: subtract the whole sum at the last of them. With V_t as potential this is shaping that leaves the
      optimal policy unchanged (Ng, Harada and Russell 1999): the potential ends at 0.

    The process rewards then move credit inside a response and never between responses. A response with a single reward
    receives 0.
    """
    if where not in ("uniform", "last"):
        raise ValueError(f"redistribution must be 'uniform' or 'last', got {where!r}")
    kept_BT = _kept(reward_BT, mask_BT)
    total_B1 = kept_BT.sum(-1, keepdim=True)
    if where == "last":
        return kept_BT - total_B1 * last_token_mask(mask_BT).to(kept_BT.dtype)
    valid_BT = mask_BT.bool()
    shift_B1 = total_B1 / valid_BT.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(valid_BT, kept_BT - shift_B1, kept_BT.new_zeros(()))
