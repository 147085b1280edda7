# SPDX-License-Identifier: Apache-2.0
"""Verdicts for runs without a model that knows anything, as
``modules=[recipes.smoke.smoke_verifier]``."""

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong

DATA_SOURCE = "prime_ext/smoke"


class DigitParity:
    """Right when the number of digits is even: an untrained model gets both verdicts, so every part
    has work to do."""

    async def averify(self, response: str, gold: str) -> Verdict:
        digits = sum(character.isdigit() for character in response)
        return correct(response, 0.0) if digits % 2 == 0 else wrong(response, 0.0)


register_task("digit_parity", DigitParity)
register_source(DATA_SOURCE, "digit_parity")
