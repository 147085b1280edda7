# SPDX-License-Identifier: Apache-2.0
"""Losses that train the implicit PRM from outcome labels only."""

import math

import torch
import torch.nn.functional as F


def cross_entropy(
    log_ratio_sum_B: torch.Tensor,
    label_B: torch.Tensor,
    weight_B: torch.Tensor,
    beta: float,
    bias: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of the outcome label (PRIME, arXiv 2502.01456, Eq. 4), summed with the given weights.

    L = sum_i w_i * BCE(sigmoid(beta * Q_i + b), y_i) with Q_i = sum_t q_it, computed from the logits, so that a
    saturated PRM still receives a gradient. With w_i = 1 / (rollouts in the mini-batch) this is the mean, and its value
    does not depend on how the mini-batch is cut into micro-batches or spread over ranks.

    Args:
        log_ratio_sum_B: Q, summed log-ratios of each rollout.
        label_B: outcome in [0, 1]; fractions (code pass rates) are legal soft labels.
        weight_B: weight of each rollout; 0 for padding rows.
        beta: scale of the reward.
        bias: b. 0 in the paper; trained, it takes over what all responses have in common, so that the log-ratios need
            only tell responses apart.

    Returns:
        Scalar loss; ln 2 at initialisation (Q = b = 0) when the weights sum to one.
    """
    loss_B = F.binary_cross_entropy_with_logits(beta * log_ratio_sum_B + bias, label_B, reduction="none")
    return (loss_B * weight_B).sum()


# Of the starting value of the bias: a first batch with one outcome only says no more than that.
LIMIT = 4.0


def logit_of_mean(mean_outcome: float) -> float:
    """log(m / (1 - m)) of a mean outcome m in [0, 1], within [-4, 4]: where a trained bias starts."""
    if not 0.0 < mean_outcome < 1.0:
        return math.copysign(LIMIT, mean_outcome - 0.5)
    return min(max(math.log(mean_outcome / (1.0 - mean_outcome)), -LIMIT), LIMIT)
