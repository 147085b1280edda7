# SPDX-License-Identifier: Apache-2.0
"""A verifier registered as a user's, which gives even an untrained model mixed verdicts."""

from prime_ext.verifiers import Outcome, Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, grader_failed, wrong

SECONDS = 0.001


class ParityVerifier:
    """Right when the response has an even number of digits; some responses it cannot judge."""

    async def averify(self, response: str, gold: str) -> Verdict:
        if sum(map(ord, response)) % 13 == 0:
            return grader_failed(Outcome.TIMEOUT, response, SECONDS, "made to fail")
        digits = sum(character.isdigit() for character in response)
        return correct(response, SECONDS) if digits % 2 == 0 else wrong(response, SECONDS)


register_task("parity", ParityVerifier)
register_source("prime_ext/last_digit_chain", "parity")
