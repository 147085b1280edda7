# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
