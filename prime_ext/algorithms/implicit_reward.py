# SPDX-License-Identifier: Apache-2.0
"""Implicit process rewards (PRIME, arXiv 2502.01456, Eq. 3; ImplicitPRM, arXiv 2412.01981)."""

import torch

from prime_ext.algorithms.returns import apply_mask, upcast


def log_ratio(
    log_prob_BT: torch.Tensor, reference_log_prob_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Return q_t = log pi_prm(y_t | x, y_<t) - log pi_ref(y_t | x, y_<t), ``(B, T)`` float32.

    q_t is exactly 0 outside the mask, where both sides may hold anything, NaN included. Both are
    taken at the same temperature.
    """
    return apply_mask(log_prob_BT.float() - reference_log_prob_BT.float(), mask_BT)


def process_rewards(log_ratio_BT: torch.Tensor, beta: float) -> torch.Tensor:
    """Return r_t = beta * q_t (Eq. 3).

    The rewards of a response, the last token included, sum to beta * sum_t q_t.
    """
    return beta * log_ratio_BT


def prefix_values(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, beta: float) -> torch.Tensor:
    """Compute V_t = beta * (q_1 + ... + q_t), ``(B, T)``, 0 outside the mask."""
    return apply_mask((beta * upcast(apply_mask(log_ratio_BT, mask_BT))).cumsum(-1), mask_BT)


def compute_implicit_values(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return v_t, the sum of the process rewards before token t, 0 outside the mask.

    These are the values of the estimator ``prm_value``.
    """
    kept_BT = upcast(apply_mask(reward_BT, mask_BT))
    return apply_mask(kept_BT.cumsum(-1) - kept_BT, mask_BT)
