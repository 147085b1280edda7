# SPDX-License-Identifier: Apache-2.0
"""Settings of the outcome's share of the advantage. No torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, PositiveOrZero, Text
from prime_ext.methods.source_settings import MethodSettings, Needs
from prime_ext.names import find_value_model, list_estimators

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class OutcomeSettings(MethodSettings):
    """The outcome reward, as the reward manager returns it.

    With algorithm.use_kl_in_reward the KL penalty of each token is subtracted. Discount and lambda
    are algorithm.gamma and algorithm.lam.
    """

    coefficient: PositiveOrZero = 1.0
    """Weight of the outcome in the sum of sources; applied before whitening."""
    estimator: Text = "rloo"
    """How rewards become an advantage. Of prime_ext: rloo (PRIME), grpo, maxrl (MaxRL, for rewards
    from 0 on: weighs the successes of hard prompts up), reinforce, gae (PPO with a critic; needs
    algorithm.adv_estimator=gae), prm_value (the PRM's rewards so far are the value of a state),
    turn_rloo (compares turns: docs/explanation/turns.md). Any other name in verl's registry works
    too, including those that you register (reinforce_plus_plus, opo, gpg, ...); verl computes it as
    in its own trainers."""

    @property
    def of_verl(self) -> bool:
        """Return whether verl computes this advantage, by its own registered estimator."""
        return self.estimator not in list_estimators("outcome")

    @property
    def reads_prm(self) -> bool:
        """Return whether the estimator takes values from the PRM."""
        return self.coefficient > 0 and find_value_model(self.estimator) == "prm"

    @property
    def needs(self) -> Needs:
        return Needs(prm=self.reads_prm, labels=self.coefficient > 0)

    def run_problems(self, config: DictConfig, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflict of maxrl with verl's KL penalty, which makes rewards negative."""
        if self.estimator == "maxrl" and config.algorithm.use_kl_in_reward:
            yield (
                "prime.outcome.estimator=maxrl divides by a mean of rewards from 0 on, and"
                " algorithm.use_kl_in_reward=true makes them negative; set one of them to another"
                " value"
            )
