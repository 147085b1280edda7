# SPDX-License-Identifier: Apache-2.0
"""One step of PRIME, from verified rollouts to the policy's loss (arXiv 2502.01456, Algorithm 1).

``PrimeTrainerMixin._compute_advantage`` calls it. Before it verl samples, and ``prompt_judge.py``
filters the prompts; after it verl updates the policy with PPO's loss. PRIME as published has
neither the gate nor the KL coefficients.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from prime_ext.algorithms.advantage import combine_sources
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.methods.kl.settings import KLSettings
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts
from prime_ext.methods.settings import PrimeSettings
from prime_ext.step.reward_sources import reward_sources
from prime_ext.utils.timing import add_seconds

# Names under which the policy's loss finds the models that it is pulled toward.
PRM_ROLE = "prm"
AVERAGE_ROLE = "average"


class NotFinite(RuntimeError):
    """An advantage of the policy is NaN or infinite; the message is one line."""


class Scorer(Protocol):
    """Source of scores: a step reward model, or the PRMs of ``prm/implicit_prm.py``."""

    def score_and_update(self, rollouts: Rollouts) -> ScoredRollouts:
        """Score rollouts; a trained scorer also learns from them."""


@dataclass(frozen=True)
class StepResult:
    """Input of the policy's update, and metrics of the step.

    Attributes:
        advantage_BT, return_BT: 0 outside the mask; returns are the critic's targets where there is
            a critic, else the advantages before whitening.
        reward_BT: the sum of all rewards, at the tokens at which they are paid.
        kl_coefficients: coefficients of the divergences in the policy's loss, by role of the model.
        scored: the scorer's result.
        metrics, seconds: by name.
    """

    advantage_BT: torch.Tensor
    return_BT: torch.Tensor
    reward_BT: torch.Tensor
    kl_coefficients: dict[str, float]
    scored: ScoredRollouts
    metrics: dict[str, float]
    seconds: dict[str, float]


def prime_step(
    rollouts: Rollouts,
    scorer: Scorer | None,
    gate: ReliabilityGate | None,
    settings: PrimeSettings,
    gamma: float = 1.0,
    gae_lambda: float = 1.0,
) -> StepResult:
    """Score the rollouts, learn from them, and turn outcome and process rewards into one advantage.

    Raises NotFinite.
    """
    # PRIME: r_t = beta * (log pi_prm - log pi_ref). A trained PRM is updated here too, in the order
    # of prm.update_mode.
    scored = ScoredRollouts(steps=rollouts.steps)
    if scorer is not None:
        scored = scorer.score_and_update(rollouts)
    seconds = dict(scored.seconds)
    with add_seconds("prime_advantage", seconds):
        # Every method pays at its tokens: outcome, process rewards, turns.
        sources = reward_sources(rollouts, scored, settings, gamma, gae_lambda)
        # The gate weights the PRM by its accuracy on pairs that it has not been trained on.
        weight = gate.update(scored.pairs) if gate is not None else 1.0
        # For each source: rewards minus the leave-one-out baseline, summed from t on, times the
        # coefficient. A = sum of the sources, whitened.
        advantages = combine_sources(
            {
                name: replace(source, coefficient=source.coefficient * weight)
                if name == "process"
                else source
                for name, source in sources.by_name.items()
            },
            rollouts.mask_BT,
            rollouts.group_B,
            settings.whitening,
            rollouts.value_BT,
        )
        if infinite := advantages.find_infinite(rollouts.mask_BT):
            # verl would skip this update of the policy, and most likely all later ones.
            raise NotFinite(
                f"the advantages of this step are not finite because of {infinite} (prm/loss:"
                f" {scored.metrics.get('prm/loss')}); nothing of this step was saved. Look at"
                " prm/grad_norm of the steps before, lower prm.optim.lr, check the weights of"
                " prm.model.path"
            )
        spread = advantages.measure_spread(rollouts.mask_BT)
        coefficients = kl_coefficients(weight, settings)
    metrics = {**scored.metrics, **sources.metrics}
    metrics |= {f"prime/{name}/return_std": value for name, value in spread.items()}
    if spread.get("outcome", 0.0) > 0 and "process" in spread:
        metrics["prime/process/return_std_over_outcome"] = spread["process"] / spread["outcome"]
    metrics |= {f"prime/kl/{role}_coefficient": value for role, value in coefficients.items()}
    if gate is not None:
        metrics |= {"prime/gate/value": weight, "prime/gate/pair_accuracy_average": gate.average}
    return StepResult(
        advantages.advantage_BT,
        advantages.return_BT,
        advantages.reward_BT,
        coefficients,
        scored,
        metrics,
        seconds,
    )


def kl_coefficients(weight: float, settings: PrimeSettings) -> dict[str, float]:
    """Return the policy's KL coefficients by role of the model; ``weight`` is 1 without a gate."""
    coefficients = {}
    if isinstance(settings.process, KLSettings):
        coefficients[PRM_ROLE] = settings.process.kl_coefficient(weight)
    if settings.anchor is not None:
        coefficients[AVERAGE_ROLE] = settings.anchor.kl_coefficient(weight)
    return coefficients
