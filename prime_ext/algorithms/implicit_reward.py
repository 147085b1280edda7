# SPDX-License-Identifier: Apache-2.0
"""Implicit process rewards (PRIME, arXiv 2502.01456, Eq. 3; ImplicitPRM, arXiv 2412.01981)."""

import torch


def log_ratio(log_prob_BT: torch.Tensor, reference_log_prob_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """q_t = log pi_prm(y_t | x, y_<t) - log pi_ref(y_t | x, y_<t), float32, exactly 0 outside the mask.

    Args:
        log_prob_BT: log-probabilities of the response tokens under the PRM.
        reference_log_prob_BT: the same tokens under the reference, at the same temperature.
        mask_BT: 1 for response tokens (the last one included), 0 for padding. Whatever stands outside, NaN and
            infinities included, is discarded.

    Returns:
        ``(B, T)`` float32 log-ratios.
    """
    ratio_BT = log_prob_BT.float() - reference_log_prob_BT.float()
    return torch.where(mask_BT.bool(), ratio_BT, ratio_BT.new_zeros(()))


def process_rewards(log_ratio_BT: torch.Tensor, beta: float) -> torch.Tensor:
    """r_t = beta * q_t (Eq. 3). The rewards of a response, the last token included, sum to beta * sum_t q_t."""
    return beta * log_ratio_BT
