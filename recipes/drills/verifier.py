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
