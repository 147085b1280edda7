# SPDX-License-Identifier: Apache-2.0
"""Settings of the implicit PRM's rewards at the ends of steps. No torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive
from prime_ext.methods.chains import ChainSettings
from prime_ext.methods.source_settings import Needs, ProcessSourceSettings
from prime_ext.names import StepScoreName

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class StepRewardSettings(ChainSettings, ProcessSourceSettings):
    """The implicit PRM's token rewards, paid at the ends of steps, turns or responses.

    Token rewards are beta * (log pi_prm - log pi_ref). The accumulation and the shaping make one
    reward for all steps of a response, as in the group ``chain``; by default (plain) there is none.
    chain@prime.process=pspo_wrs, cn_ppo or pspo_released sets both as published.
    """

    form: Literal["steps"] = "steps"
    granularity: Literal["step", "turn", "response"] = "step"  # type: ignore[misc]
    """step: the last token of each step of prime.steps gets the sum of the step's token rewards.
    turn: the same with turns as steps; prime.steps is not read. response: the last token gets the
    sum of all; no key of steps is read."""
    step_score: StepScoreName = "none"
    """Score of a step. none: the sum of its rewards, of any sign; sigmoid: sigmoid of the sum, the
    probability of success after the step if it was 1/2 before. Geometric means, powers and shaping
    need the sigmoid."""
    step_score_scale: Positive = 1.0
    """Factor on the sum before the sigmoid. Sums of beta * log-ratio are small: with 1 all scores
    are near 1/2."""

    @property
    def needs(self) -> Needs:
        return Needs(
            prm=True,
            labels=True,
            steps=self.granularity == "step",
            turns=self.granularity == "turn",
        )

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings; sums of log-ratios have any sign."""
        yield from self.chain_problems()
        if self.step_score != "none" or self.granularity == "response":
            return
        key = "prime.process"
        remedy = f"set {key}.step_score to sigmoid (it is none: sums of any sign)"
        if self.accumulation is not None and self.accumulation.mode == "geometric":
            yield f"{key}.accumulation.mode=geometric takes logarithms of scores; {remedy}"
        if self.accumulation is not None and self.accumulation.power != 1:
            yield (
                f"{key}.accumulation.power={self.accumulation.power} takes powers of scores;"
                f" {remedy}"
            )
        if self.shaping is not None:
            yield (
                f"{key}.shaping.name={self.shaping.name}: negative scores would gain by a bad"
                f" length; {remedy}"
            )
