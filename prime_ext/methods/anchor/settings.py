# SPDX-License-Identifier: Apache-2.0
"""Settings of the pull toward the policy's average. No torch.

The average is kept by :class:`prime_ext.verl_adapter.side_models.PolicyAverage`, and the divergence
is computed in :mod:`prime_ext.verl_adapter.policy_loss`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive, Share, Switch
from prime_ext.methods.pull import check_pull
from prime_ext.methods.source_settings import MethodSettings, Needs

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class AnchorSettings(MethodSettings):
    """A pull of the policy toward a running average of its own weights.

    It adds coefficient * KL(policy || average) to the policy's loss. Alone (variant=rloo
    prime/anchor=ema) it is the baseline that process rewards have to beat.
    """

    coefficient: Positive = 1.0
    """Weight of the divergence in the policy's loss, above 0."""
    decay: Share = 0.5
    """average <- decay * average + (1 - decay) * policy, once per step before the update; 0 is the
    policy before the step."""
    fallback: Switch = False
    """true: the coefficient is scaled by 1 - gate, so the average takes the weight that the
    reliability gate leaves."""

    @property
    def needs(self) -> Needs:
        return Needs(target_logits=True)

    def kl_coefficient(self, weight: float) -> float:
        """Return the coefficient of the divergence; ``weight`` is the gate's, 1 without a gate."""
        return self.coefficient * (1.0 - weight if self.fallback else 1.0)

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings."""
        if self.fallback and prime.gate is None:
            yield "prime.anchor.fallback=true needs prime.process.gate; choose prime/anchor=ema"

    def run_problems(self, config: DictConfig, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts with policy and trainer."""
        if not prime.distils:
            # prime/process=kl has the same needs and names them.
            yield from check_pull(config, "prime/anchor=ema")
