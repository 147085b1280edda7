# SPDX-License-Identifier: Apache-2.0
"""Settings of PRIME-D's divergence in the policy's loss. No torch.

The divergence is computed in :mod:`prime_ext.verl_adapter.policy_loss`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive
from prime_ext.config.engines import sequence_parallel_ranks
from prime_ext.methods.pull import check_pull
from prime_ext.methods.source_settings import GateSettings, MethodSettings, Needs

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings

_NAME = "prime/process=kl"


@dataclass(frozen=True, config=STRICT)
class KLSettings(MethodSettings):
    """PRIME-D: the PRM as a distribution.

    KL(policy || PRM) over the vocabulary, at every token of the response, joins the policy's loss.
    Its gradient is that of the expected reward log pi_prm - log pi_policy over all tokens.
    """

    form: Literal["kl"] = "kl"
    coefficient: Positive = 1.0
    """Weight of the divergence in the policy's loss, above 0."""
    gate: GateSettings | None = GateSettings()
    """The reliability gate scales the divergence by clip(2 * e - 1, 0, 1), where e is the running
    pair accuracy of the PRM on responses before it trains on them. null: no gate."""

    @property
    def needs(self) -> Needs:
        return Needs(prm=True, labels=True, target_logits=True)

    def kl_coefficient(self, weight: float) -> float:
        """Return the coefficient of the divergence; ``weight`` is the gate's, 1 without a gate."""
        return self.coefficient * weight

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings."""
        if prime.outcome.reads_prm:
            yield (
                "prime.outcome.estimator=prm_value reads rewards of tokens; choose"
                " prime/process=tokens"
            )

    def run_problems(self, config: DictConfig, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts with policy, PRM and trainer."""
        yield from check_pull(config, _NAME)
        if config.prm.update_mode not in ("before", "none"):
            yield (
                f"{_NAME} reads the PRM after its update; set prm.update_mode=before (it is"
                f" {config.prm.update_mode})"
            )
        ours = sequence_parallel_ranks(config.actor_rollout_ref.actor)
        theirs = sequence_parallel_ranks(config.prm)
        if ours != theirs:
            size = "prm.engine.ulysses_sequence_parallel_size"
            yield f"{_NAME} needs {size}={ours} as the policy has, it is {theirs}"
