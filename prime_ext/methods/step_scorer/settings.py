# SPDX-License-Identifier: Apache-2.0
"""Settings of rewards from a step scorer's scores. No torch.

The scorer itself is the section ``step_scorer``
(:mod:`prime_ext.config.step_scorer_settings`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT
from prime_ext.methods.chains import ChainSettings
from prime_ext.methods.source_settings import (
    GateSettings,
    Needs,
    ProcessEstimator,
    ProcessSourceSettings,
)
from prime_ext.names import Credit

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class StepScorerSettings(ChainSettings, ProcessSourceSettings):
    """A published PRM or a server (section step_scorer) scores the steps.

    It does so while rollouts are generated: variant=step_scorer. The accumulation and the shaping
    make one reward for all steps of a response, as in the group ``chain``; by default (plain) there
    is none. chain@prime.process=pspo_wrs, cn_ppo or pspo_released sets both as published.
    """

    form: Literal["step_scorer"] = "step_scorer"
    granularity: Literal["step", "response"] = "step"  # type: ignore[misc]
    """step: the last token of each step is paid its score; response: the last token is paid their
    sum."""
    credit: Credit = "min_form"
    """Reward of a step. sum: its score; min_form (default): its score times softmax(-score / .1)
    (PURE), so that the rewards of a response sum to a soft minimum of its scores, and more steps
    are not worth more. With an accumulation and reward_position: step_ends, the steps' shares of
    the one reward: equal (sum), or softmax(-score / .1) (min_form)."""
    normalization: Literal["batch_max", "none"] = "none"
    """none (default): keep the scores, which are probabilities and thus comparable to the outcome.
    batch_max: divide by the largest |return-to-go| of the global batch."""
    estimator: ProcessEstimator = "rloo_per_token"
    gate: GateSettings | None = GateSettings()
    """The reliability gate scales the process rewards by clip(2 * e - 1, 0, 1), where e is the
    running pair accuracy of the scorer. null: no gate."""

    @property
    def needs(self) -> Needs:
        return Needs(step_scores=True, labels=self.center_wrong)

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings."""
        return self.chain_problems()
