# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM phi as a distribution, compared with the current policy pi, not its reference.

The reward log phi - log pi of a token vanishes once the policy equals the PRM. Because

    - grad KL(pi || phi) = E_{a ~ pi}[ grad log pi(a) * (log phi - log pi)(a) ],

the policy may be pulled toward phi directly, without sampled rewards.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from prime_ext.algorithms.returns import apply_mask, upcast


def policy_relative_rewards(
    prm_log_prob_BT: torch.Tensor, old_log_prob_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Return r_t = log phi(y_t) - log pi_old(y_t), ``(B, T)``, 0 outside the mask.

    The rewards are detached, float32 or better, and serve as an advantage: use them with the
    discount 0 and without a return-to-go.
    """
    return upcast(apply_mask((prm_log_prob_BT - old_log_prob_BT).detach(), mask_BT))


def reverse_kl(log_prob_NV: torch.Tensor, target_log_prob_NV: torch.Tensor) -> torch.Tensor:
    """Return KL(pi || target) of each token, ``(N,)``, from normalized log-probabilities.

    Entries where the log-probability of pi is -inf contribute nothing.
    """
    probability_NV = log_prob_NV.exp()
    return (probability_NV * apply_mask(log_prob_NV - target_log_prob_NV, probability_NV > 0)).sum(
        -1
    )


def _measure(
    logits_CV: torch.Tensor, token_C1: torch.Tensor, *targets: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the tokens' log-probabilities, KL to each target, log-sums of policy and targets."""
    (log_p_CV, *log_targets), log_sums = zip(*map(_log_softmax, (logits_CV, *targets)), strict=True)
    kl_CJ = log_p_CV.new_empty((len(log_p_CV), len(log_targets)))
    for j, log_target_CV in enumerate(log_targets):
        kl_CJ[:, j] = reverse_kl(log_p_CV, log_target_CV)
    return log_p_CV.gather(1, token_C1), kl_CJ, torch.stack(log_sums, -1)


def _slope(
    logits_CV: Any,
    token_C1: Any,
    log_sum_CK: Any,
    kl_CJ: Any,
    grad_C1: Any,
    grad_CJ: Any,
    *targets: Any,
) -> torch.Tensor:
    """Return the gradient of the logits from :func:`_measure`'s results and their gradients."""
    log_p_CV = upcast(logits_CV) - log_sum_CK[:, :1]
    probability_CV = log_p_CV.exp()
    slope_CV = torch.zeros_like(log_p_CV)
    # d KL / d logits = p * (log p - log target - KL)
    for j, target_CV in enumerate(targets):
        difference_CV = (
            log_p_CV - (upcast(target_CV) - log_sum_CK[:, j + 1, None]) - kl_CJ[:, j, None]
        )
        slope_CV.addcmul_(difference_CV.masked_fill_(probability_CV == 0, 0.0), grad_CJ[:, j, None])
    # d log p(a) / d logits = onehot(a) - p
    return slope_CV.sub_(grad_C1).mul_(probability_CV).scatter_add_(1, token_C1, grad_C1)


# Compiled, each direction reads a chunk once; eager operations move 22 times the bytes
# (tests/benchmarks/prm_phase.py).
_compile = functools.cache(torch.compile)


class _LogProbsAndReverseKL(torch.autograd.Function):
    """Function that keeps its logits and a few numbers per token; backward recomputes chunks."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Any, token_N1: Any, chunk: Any, fused: Any, *target_logits: Any
    ) -> Any:
        ctx.chunk = chunk
        ctx.slope = _compile(_slope) if fused else _slope
        measure = _compile(_measure) if fused else _measure
        chunks = zip(
            *(value.split(chunk) for value in (logits_NV, token_N1, *target_logits)), strict=True
        )
        log_prob_N1, kl_NJ, log_sum_NK = map(
            torch.cat, zip(*(measure(*tensors) for tensors in chunks), strict=True)
        )
        ctx.save_for_backward(logits_NV, token_N1, log_sum_NK, kl_NJ, *target_logits)
        return log_prob_N1, kl_NJ

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N1: Any, grad_NJ: Any) -> Any:
        logits_NV, token_N1, log_sum_NK, kl_NJ, *target_logits = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        values = (grad_NV, logits_NV, token_N1, log_sum_NK, kl_NJ, grad_N1, grad_NJ, *target_logits)
        for grad_CV, *tensors in zip(*(value.split(ctx.chunk) for value in values), strict=True):
            grad_CV.copy_(ctx.slope(*tensors))
        return grad_NV, *(None,) * (3 + len(target_logits))


def _log_softmax(logits_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide_CV = upcast(logits_CV)
    log_sum_C = wide_CV.logsumexp(-1)
    return wide_CV - log_sum_C[:, None], log_sum_C


def log_probs_and_reverse_kl(
    logits_NV: torch.Tensor,
    token_N: torch.Tensor,
    target_logits: Sequence[torch.Tensor],
    chunk: int = 256,
    fused: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each given token, and KL(pi || target) for each target.

    KL is taken over the full vocabulary. Beyond the inputs and the gradient of the logits, no
    tensor has more than ``chunk`` rows of the vocabulary. Results are float32 or better. The
    function cannot be differentiated twice; call it outside of autocast.

    Args:
        logits_NV: the policy's logits, divided by the temperature.
        token_N: the sampled tokens, ``0 <= id < V``.
        target_logits: logits ``(N, V)`` of each target, divided by the temperature; constants.
            May be empty.
        chunk: tokens whose distributions are held at once.
        fused: compile the computation of a chunk (torch.compile).

    Returns:
        log-probabilities ``(N,)`` and divergences ``(N, J)``, one column per target.

    Raises:
        ValueError: the shapes do not fit.
    """
    for target_logits_NV in target_logits:
        if target_logits_NV.shape != logits_NV.shape or token_N.shape != logits_NV.shape[:1]:
            raise ValueError(
                f"logits {tuple(logits_NV.shape)}, tokens {tuple(token_N.shape)} and target"
                f" {tuple(target_logits_NV.shape)} do not fit: a target needs the policy's"
                " vocabulary"
            )
    constants = [target.detach() for target in target_logits]
    log_prob_N1, kl_NJ = _LogProbsAndReverseKL.apply(
        logits_NV, token_N[:, None], chunk, fused, *constants
    )
    return log_prob_N1[:, 0], kl_NJ


@torch.no_grad()
def update_average(
    average: Sequence[torch.Tensor], current: Sequence[torch.Tensor], decay: float
) -> None:
    """Set average = decay * average + (1 - decay) * current in place, for two models' weights."""
    for old, new in zip(average, current, strict=True):
        old.lerp_(new.to(device=old.device, dtype=old.dtype), 1.0 - decay)
