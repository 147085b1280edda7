# SPDX-License-Identifier: Apache-2.0
"""Advantage estimators of one reward source, by name. Outcome and process rewards may use different ones.

An estimator is ``f(source, response_mask_BT, group_B) -> advantage_BT``: 0 outside the response mask, not yet
multiplied by the coefficient and not yet whitened. Given an outcome source alone
(:func:`prime_ext.algorithms.advantage.outcome_source`), each equals verl's estimator of the same name
(``verl.trainer.ppo.core_algos``) after the whitening that ``whitens`` announces, a KL penalty at every token included;
``rloo`` alone treats a rollout without companions differently, see :class:`RewardSource`. verl's estimators that
compare rollouts have no discount; here it reaches back from the last token, as in PRIME's Eq. 5.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.estimators.group_baselines import dr_grpo, gpg, grpo, grpo_pooled, opo, rloo
from prime_ext.algorithms.estimators.single_rollout import gae, position_mean, prm_value, reinforce, remax
from prime_ext.algorithms.estimators.step_based import masked_step, rloo_per_token, segment
from prime_ext.algorithms.estimators.turn_based import gigpo, gigpo_mean, turn_pooled, turn_rloo
from prime_ext.algorithms.reward_source import RewardSource

Advantage = Callable[[RewardSource, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Estimator:
    """One entry of the registry.

    Attributes:
        advantage: the function.
        whitens: the method's own definition whitens over the tokens of the batch. Sources are summed before that.
        needs: optional fields of :class:`RewardSource` without which it cannot work.
        uses_groups: whether other rollouts of the same prompt matter.
        one_column: an undiscounted reward at the end of the response can be treated as that of a response of one token.
    """

    advantage: Advantage
    whitens: bool = False
    needs: tuple[str, ...] = ()
    uses_groups: bool = True
    one_column: bool = True


ESTIMATORS: dict[str, Estimator] = {
    "rloo": Estimator(rloo),
    "grpo": Estimator(grpo),
    "grpo_pooled": Estimator(grpo_pooled),
    "dr_grpo": Estimator(dr_grpo),
    "opo": Estimator(opo, one_column=False),
    "gpg": Estimator(gpg),
    "reinforce_plus_plus_baseline": Estimator(dr_grpo, whitens=True),
    "reinforce_plus_plus": Estimator(reinforce, whitens=True, uses_groups=False),
    "reinforce": Estimator(reinforce, uses_groups=False),
    "remax": Estimator(remax, needs=("baseline_B",), uses_groups=False),
    "gae": Estimator(gae, whitens=True, needs=("value_BT",), uses_groups=False, one_column=False),
    "prm_value": Estimator(prm_value, needs=("value_BT",), uses_groups=False, one_column=False),
    "segment": Estimator(segment, needs=("value_BT", "cut_BT"), uses_groups=False, one_column=False),
    "rloo_per_token": Estimator(rloo_per_token, one_column=False),
    "masked_step": Estimator(masked_step, one_column=False),
    "position_mean": Estimator(position_mean, uses_groups=False, one_column=False),
    "turn_rloo": Estimator(turn_rloo, needs=("turn_end_BT",), one_column=False),
    "turn_pooled": Estimator(turn_pooled, needs=("turn_end_BT",), one_column=False),
    "gigpo": Estimator(gigpo, needs=("turn_end_BT", "state_BT"), one_column=False),
    "gigpo_mean": Estimator(gigpo_mean, needs=("turn_end_BT", "state_BT"), one_column=False),
}


def estimator_of(source: RewardSource) -> Estimator:
    """The registry entry of a source.

    Raises:
        ValueError: the name is unknown, or a field that the estimator needs is missing.
    """
    if source.estimator not in ESTIMATORS:
        raise ValueError(f"unknown advantage estimator {source.estimator!r}; known: {', '.join(sorted(ESTIMATORS))}")
    estimator = ESTIMATORS[source.estimator]
    for name in estimator.needs:
        if getattr(source, name) is None:
            raise ValueError(f"the advantage estimator {source.estimator!r} needs {name}, which was not given")
    return estimator
