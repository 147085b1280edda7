# SPDX-License-Identifier: Apache-2.0
"""PRIME's advantage: estimates for the outcome and for the process rewards, summed and whitened."""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from prime_ext import names
from prime_ext.algorithms.estimators import RewardSource, compute_advantage
from prime_ext.algorithms.returns import apply_mask, mark_last_token, whiten


def outcome_source(
    reward_BT: torch.Tensor, response_mask_BT: torch.Tensor, estimator: str, **options: Any
) -> RewardSource:
    """Build the outcome's source from verl's token rewards ``(B, T)``.

    Values outside of the mask are ignored. As in verl, an estimator that compares responses gets
    the sum of a response's rewards, KL penalties included, at its last token. Any other estimator
    gets the reward of each token. ``options`` are further fields of the source.
    """
    mask_BT = response_mask_BT
    if names.ESTIMATORS[estimator].sums_response:
        mask_BT = mark_last_token(response_mask_BT)
        reward_BT = apply_mask(reward_BT, response_mask_BT).sum(-1, keepdim=True) * mask_BT
    return RewardSource(reward_BT, mask_BT, estimator=estimator, **options)


@dataclass(frozen=True)
class Advantages:
    """Advantages of the sum of all sources, ``(B, T)`` each, 0 outside the mask.

    Attributes:
        advantage_BT: whitened, if that is asked for.
        return_BT: the critic's targets where there is a critic, else the sum before whitening.
        reward_BT: the sources' rewards times their coefficients, where they are paid.
        per_source: the summands by source.
    """

    advantage_BT: torch.Tensor
    return_BT: torch.Tensor
    reward_BT: torch.Tensor
    per_source: dict[str, torch.Tensor]

    def measure_spread(self, mask_BT: torch.Tensor) -> dict[str, float]:
        """Return the standard deviation over valid tokens of each source's summand."""
        valid_BT = mask_BT.bool()
        return {name: float(value_BT[valid_BT].std()) for name, value_BT in self.per_source.items()}

    def find_infinite(self, mask_BT: torch.Tensor) -> str:
        """Return the sources whose advantages are NaN or infinite, or "their sum"; else ""."""
        valid_BT = mask_BT.bool()
        if self.advantage_BT[valid_BT].isfinite().all():
            return ""
        names = [
            name
            for name, value_BT in self.per_source.items()
            if not value_BT[valid_BT].isfinite().all()
        ]
        return ", ".join(names) or "their sum"


def combine_sources(
    sources: dict[str, RewardSource],
    response_mask_BT: torch.Tensor,
    group_B: torch.Tensor,
    whitening: bool = True,
    value_BT: torch.Tensor | None = None,
) -> Advantages:
    """Sum the advantages of all sources and whiten them over the valid tokens.

    This is PRIME (arXiv 2502.01456), Eq. 5. A source with the coefficient 0 is left out, so the
    result equals that of the other sources bit for bit. Sources with the estimator ``gae`` are one:
    ``value_BT`` are a critic's values of the sum of their rewards.

    ``group_B`` are integer ids of prompts, in any order, with groups of any size.

    Raises:
        ValueError: every coefficient is 0; see also
            :func:`prime_ext.algorithms.estimators.compute_advantage`.
    """
    sources = join_valued(sources, response_mask_BT)
    entering = {name: source for name, source in sources.items() if source.coefficient != 0.0}
    if not entering:
        raise ValueError("every reward source has the coefficient 0; at least one must count")
    estimates = {
        name: compute_advantage(source, response_mask_BT, group_B)
        for name, source in (sources if value_BT is not None else entering).items()
    }
    per_source = {name: source.coefficient * estimates[name] for name, source in entering.items()}
    return_BT = reduce(torch.add, per_source.values())
    if whitening:
        advantage_BT = whiten(return_BT, response_mask_BT)
    else:
        advantage_BT = return_BT * response_mask_BT
    if value_BT is not None:
        # A_t + V_t of the source that the critic values, before its coefficient and whitening.
        (valued,) = [name for name, source in sources.items() if source.estimator == "gae"]
        inside_BT = torch.where(response_mask_BT.bool(), value_BT, value_BT.new_zeros(()))
        return_BT = estimates[valued] + inside_BT
    reward_BT = reduce(
        torch.add, (source.coefficient * source.kept_reward() for source in sources.values())
    )
    return Advantages(advantage_BT, return_BT, reward_BT, per_source)


def join_valued(sources: dict[str, RewardSource], mask_BT: torch.Tensor) -> dict[str, RewardSource]:
    """Sum the sources with the estimator ``gae``: one critic values the sum of their rewards.

    Their discount, lambda and value are equal. Those with the coefficient 0 are left out, unless
    all have it.
    """
    valued = {name: source for name, source in sources.items() if source.estimator == "gae"}
    counting = {name: source for name, source in valued.items() if source.coefficient != 0}
    if len(valued) < 2 or not counting:
        return sources
    others = {name: source for name, source in sources.items() if name not in valued}
    if len(counting) == 1:
        return {**counting, **others}
    reward_BT = reduce(
        torch.add, (source.coefficient * source.kept_reward() for source in counting.values())
    )
    first = next(iter(counting.values()))
    joined = replace(first, reward_BT=reward_BT, mask_BT=mask_BT, coefficient=1.0)
    return {"_and_".join(counting): joined, **others}
