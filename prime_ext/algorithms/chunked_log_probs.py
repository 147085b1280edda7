# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of given tokens from hidden states, with one chunk's logits in memory."""

from typing import Any

import torch


def _logits(hidden_NH: torch.Tensor, weight_VH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the logits of a chunk in float32 (float64 stays), divided by the temperature.

    16-bit factors are multiplied as they are, but the product is not rounded to 16 bits, in which
    logits of size 20 are 0.125 apart.
    """
    if hidden_NH.element_size() > 2:
        logits_NV = hidden_NH @ weight_VH.T
    elif hidden_NH.is_cuda:
        logits_NV = torch.mm(hidden_NH, weight_VH.T, out_dtype=torch.float32)
    else:
        logits_NV = hidden_NH.float() @ weight_VH.float().T
    return logits_NV if temperature == 1.0 else logits_NV.div_(temperature)


def _add_product(sum_VH: torch.Tensor, slope_VC: torch.Tensor, hidden_CH: torch.Tensor) -> None:
    """Compute sum += slope @ hidden in place, with a float32 sum (float64 stays).

    On CUDA the slopes are rounded to 16-bit hidden states' dtype, as autograd would have them: a
    product of float32 factors is an order of magnitude slower there.
    """
    if hidden_CH.element_size() == 2 and hidden_CH.is_cuda:
        torch.addmm(
            sum_VH, slope_VC.to(hidden_CH.dtype), hidden_CH, out_dtype=torch.float32, out=sum_VH
        )
    else:
        sum_VH.addmm_(slope_VC, hidden_CH.to(slope_VC.dtype))


class _ChunkedLogProbs(torch.autograd.Function):
    """Function that keeps 2 or 3 numbers per token; the backward pass recomputes the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Any,
        weight_VH: Any,
        target_N: Any,
        chunk: Any,
        temperature: Any,
        with_entropy: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        log_probs = []
        highest = []
        log_sums = []
        entropies = []
        for hidden_CH, target_C in zip(hidden_NH.split(chunk), target_N.split(chunk), strict=True):
            logits_CV = _logits(hidden_CH, weight_VH, temperature)
            # The highest logit and the rest of log Z are kept apart: a sum with a large logit
            # would round the rest away.
            highest.append(logits_CV.amax(-1))
            logits_CV.sub_(highest[-1][:, None])
            target_logit_C = logits_CV.gather(1, target_C[:, None])[:, 0]
            odds_CV = logits_CV.exp() if with_entropy else logits_CV.exp_()
            sum_C = odds_CV.sum(-1)
            log_sums.append(sum_C.log())
            log_probs.append(target_logit_C - log_sums[-1])
            if with_entropy:
                # log Z - E[logit]
                entropies.append(log_sums[-1] - odds_CV.mul_(logits_CV).sum(-1) / sum_C)
            del logits_CV, odds_CV
        entropy_N = torch.cat(entropies) if with_entropy else None
        ctx.save_for_backward(
            hidden_NH, weight_VH, target_N, torch.cat(highest), torch.cat(log_sums), entropy_N
        )
        ctx.chunk = chunk
        ctx.temperature = temperature
        return torch.cat(log_probs), entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_N: Any, entropy_grad_N: Any) -> Any:
        if grad_N is None and entropy_grad_N is None:
            return (None,) * 6
        hidden_NH, weight_VH, target_N, highest_N, log_sum_N, entropy_N = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden_NH = torch.zeros_like(hidden_NH) if need_hidden else None
        # Summed over chunks in float32 for any dtype of the weights.
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=log_sum_N.dtype) if need_weight else None
        for start in range(0, len(target_N), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p_CV = _logits(hidden_NH[rows], weight_VH, ctx.temperature)
            log_p_CV.sub_(highest_N[rows, None]).sub_(log_sum_N[rows, None])
            if entropy_grad_N is None:
                slope_CV = log_p_CV.exp_().mul_(-grad_N[rows, None])
            else:
                # d entropy / d logits = -p (log p + entropy)
                factor_CV = (log_p_CV + entropy_N[rows, None]).mul_(-entropy_grad_N[rows, None])
                if grad_N is not None:
                    factor_CV.sub_(grad_N[rows, None])
                slope_CV = log_p_CV.exp_().mul_(factor_CV)
                del factor_CV
            if grad_N is not None:
                # d log p(target) / d logits = onehot(target) - p
                slope_CV.scatter_add_(
                    1, target_N[rows, None], grad_N[rows, None].to(slope_CV.dtype)
                )
            if ctx.temperature != 1.0:
                slope_CV.div_(ctx.temperature)
            if grad_hidden_NH is not None:
                grad_hidden_NH[rows] = slope_CV.to(weight_VH.dtype) @ weight_VH
            if grad_weight_VH is not None:
                _add_product(grad_weight_VH, slope_CV.T, hidden_NH[rows])
            del slope_CV, log_p_CV
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def compute_log_probs_and_entropy(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    target_N: torch.Tensor,
    chunk: int = 256,
    temperature: float = 1.0,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability and each distribution's entropy, ``(N,)`` each.

    The former is log softmax(hidden @ weight^T / temperature) at the target. Value and gradients
    are those of the plain computation, in float32 (or float64). The backward pass recomputes each
    chunk's logits. The function cannot be differentiated twice; call it outside of autocast, which
    would not cover the backward pass.

    Args:
        hidden_NH: last hidden states of the tokens, any floating dtype.
        weight_VH: output embedding.
        target_N: token ids, ``0 <= id < V``.
        chunk: tokens whose logits are held at once; ``chunk * V * 4`` bytes, twice that with the
            entropy.
        temperature: positive divisor of the logits.
        with_entropy: False returns None instead of the entropy.
    """
    log_prob_N, entropy_N = _ChunkedLogProbs.apply(
        hidden_NH, weight_VH, target_N, chunk, temperature, with_entropy
    )
    return log_prob_N, entropy_N
