# SPDX-License-Identifier: Apache-2.0
"""Verdicts for runs of untrained models: ``modules=[recipes.smoke.smoke_verifier]``."""

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong

DATA_SOURCE = "prime_ext/smoke"


class DigitParity:
    """Right if the number of digits is even, so that an untrained model gets both verdicts."""

    async def averify(self, response: str, gold: str) -> Verdict:
        digits = sum(character.isdigit() for character in response)
        return correct(response, 0.0) if digits % 2 == 0 else wrong(response, 0.0)


register_task("digit_parity", DigitParity)
register_source(DATA_SOURCE, "digit_parity")
