# SPDX-License-Identifier: Apache-2.0
"""Verdicts that even an untrained model gets both of, so that every part of a run has something to do.

For ``SHRINK=1`` only, as ``reward.custom_reward_function.reward_kwargs.modules=[recipes.shrink.verifier]``.
"""

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong

DATA_SOURCE = "prime_ext/shrunk"


class DigitParity:
    """Right when the number of digits in the response is even."""

    async def averify(self, response: str, gold: str) -> Verdict:
        digits = sum(character.isdigit() for character in response)
        return correct(response, 0.0) if digits % 2 == 0 else wrong(response, 0.0)


register_task("digit_parity", DigitParity)
register_source(DATA_SOURCE, "digit_parity")
