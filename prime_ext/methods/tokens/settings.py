# SPDX-License-Identifier: Apache-2.0
"""Settings of PRIME's token rewards. No torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT
from prime_ext.methods.source_settings import Granularity, Needs, ProcessSourceSettings

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings


@dataclass(frozen=True, config=STRICT)
class TokenSettings(ProcessSourceSettings):
    """PRIME: a reward for every token of the response."""

    form: Literal["tokens"] = "tokens"
    target: Literal["reference", "policy"] = "reference"
    """What the PRM is compared with. reference: beta * (log pi_prm - log pi_ref), as in PRIME.
    policy: log pi_prm minus the log-probability under the policy that wrote the response. The
    latter vanishes once the policy matches the PRM. It is an advantage already, so use discount: 0
    and normalization: none with it."""

    granularity: ClassVar[Granularity] = "token"

    @property
    def needs(self) -> Needs:
        return Needs(prm=True, labels=True, old_log_probs=self.target == "policy")

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings."""
        if self.target == "policy" and self.discount != 0:
            key = "prime.process"
            yield (
                f"{key}.discount={self.discount} sums up advantages of {key}.target=policy; set it"
                " to 0.0"
            )
