# SPDX-License-Identifier: Apache-2.0
"""A verifier that finds every response right, for data that is too easy."""

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct
from recipes.shrink import verifier  # noqa: F401  # The validation data has the shrunk runs' source.

EASY = "prime_ext/too_easy"


class AlwaysRight:
    """Right, whatever the response."""

    async def averify(self, response: str, gold: str) -> Verdict:
        return correct(response, 0.0)


register_task("always_right", AlwaysRight)
register_source(EASY, "always_right")
