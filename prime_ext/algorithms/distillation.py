# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM phi as a distribution, measured against the current policy pi instead of its reference.

The reward log phi - log pi of a token vanishes once the policy has learned what the PRM knows. Because

    - grad KL(pi || phi) = E_{a ~ pi}[ grad log pi(a) * (log phi - log pi)(a) ],

the policy may be pulled toward phi directly, without sampled rewards.
"""

from collections.abc import Sequence
from typing import Any

import torch

from prime_ext.algorithms.returns import apply_mask, upcast


def policy_relative_rewards(
    prm_log_prob_BT: torch.Tensor, old_log_prob_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """r_t = log phi(y_t) - log pi_old(y_t), ``(B, T)`` float32 or better: an advantage, detached, 0 outside the mask.

    Wants the discount 0 and no return-to-go.
    """
    return upcast(apply_mask((prm_log_prob_BT - old_log_prob_BT).detach(), mask_BT))


def reverse_kl(log_prob_NV: torch.Tensor, target_log_prob_NV: torch.Tensor) -> torch.Tensor:
    """KL(pi || target) of each token, ``(N,)``, from normalized log-probabilities; -inf of pi contributes nothing."""
    probability_NV = log_prob_NV.exp()
    return (probability_NV * apply_mask(log_prob_NV - target_log_prob_NV, probability_NV > 0)).sum(-1)


class _LogProbsAndReverseKL(torch.autograd.Function):
    """Function that keeps its logits and a few numbers per token; the backward pass computes each chunk again."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Any, token_N1: Any, chunk: Any, *target_logits: Any) -> Any:
        ctx.set_materialize_grads(False)
        log_probs, divergences, log_sums = [], [], []
        parts = [value.split(chunk) for value in (logits_NV, token_N1, *target_logits)]
        for logits_CV, token_C1, *targets in zip(*parts, strict=True):
            log_p_CV, log_sum_C = _log_softmax(logits_CV)
            log_sums.append(log_sum_C)
            log_probs.append(log_p_CV.gather(1, token_C1))
            divergences.append(torch.stack([reverse_kl(log_p_CV, _log_softmax(t)[0]) for t in targets], -1))
            del log_p_CV
        divergence_NJ = torch.cat(divergences)
        ctx.save_for_backward(logits_NV, token_N1, torch.cat(log_sums), divergence_NJ, *target_logits)
        ctx.chunk = chunk
        return torch.cat(log_probs), divergence_NJ

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N1: Any, grad_NJ: Any) -> Any:
        logits_NV, token_N1, log_sum_N, divergence_NJ, *target_logits = ctx.saved_tensors
        nothing = (None,) * (3 + len(target_logits))
        if grad_N1 is None and grad_NJ is None:
            return nothing
        grad_NV = torch.empty_like(logits_NV)
        for start in range(0, len(logits_NV), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_p_CV = upcast(logits_NV[part]) - log_sum_N[part, None]
            probability_CV = log_p_CV.exp()
            slope_CV = torch.zeros_like(log_p_CV)
            if grad_NJ is not None:
                # d KL / d logits = p * (log p - log target - KL)
                for j, target_logits_NV in enumerate(target_logits):
                    difference_CV = log_p_CV - _log_softmax(target_logits_NV[part])[0] - divergence_NJ[part, j, None]
                    difference_CV.masked_fill_(probability_CV == 0, 0.0)
                    slope_CV.addcmul_(difference_CV, grad_NJ[part, j, None])
            if grad_N1 is not None:
                # d log p(a) / d logits = onehot(a) - p
                slope_CV.sub_(grad_N1[part])
            slope_CV.mul_(probability_CV)
            if grad_N1 is not None:
                slope_CV.scatter_add_(1, token_N1[part], grad_N1[part])
            grad_NV[part] = slope_CV
        return (grad_NV, *nothing[1:])


def _log_softmax(logits_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide_CV = upcast(logits_CV)
    log_sum_C = wide_CV.logsumexp(-1)
    return wide_CV - log_sum_C[:, None], log_sum_C


def log_probs_and_reverse_kl(
    logits_NV: torch.Tensor, token_N: torch.Tensor, target_logits: Sequence[torch.Tensor], chunk: int = 256
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of given tokens, and KL(pi || target) over the whole vocabulary for each target.

    Beyond what is given, and the gradient of the logits, no tensor has more than ``chunk`` rows of the vocabulary.
    Float32 or better. Cannot be differentiated twice; call it outside of autocast.

    Args:
        logits_NV: the policy's logits, divided by the temperature.
        token_N: the sampled tokens, ``0 <= id < V``.
        target_logits: logits ``(N, V)`` of each target, divided by the temperature; constants.
        chunk: tokens whose distributions are held at once.

    Returns:
        log-probabilities ``(N,)`` and divergences ``(N, J)``, one column per target. Shapes that do not fit are a
        ValueError.
    """
    for target_logits_NV in target_logits:
        if target_logits_NV.shape != logits_NV.shape or token_N.shape != logits_NV.shape[:1]:
            raise ValueError(
                f"logits {tuple(logits_NV.shape)}, tokens {tuple(token_N.shape)} and target "
                f"{tuple(target_logits_NV.shape)} do not fit: a target needs the policy's vocabulary"
            )
    constants = [target.detach() for target in target_logits]
    log_prob_N1, kl_NJ = _LogProbsAndReverseKL.apply(logits_NV, token_N[:, None], chunk, *constants)
    return log_prob_N1[:, 0], kl_NJ


@torch.no_grad()
def update_average(average: Sequence[torch.Tensor], current: Sequence[torch.Tensor], decay: float) -> None:
    """average <- decay * average + (1 - decay) * current, in place, for the weights of two models."""
    for old, new in zip(average, current, strict=True):
        old.lerp_(new.to(device=old.device, dtype=old.dtype), 1.0 - decay)
