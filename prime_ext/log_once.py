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
"""Warnings of verl that repeat for every rollout are said once per process."""

import logging

# Logs, for every rollout of a model family it has no special rule for (Llama among them), that it uses the general one.
_PER_ROLLOUT = ("verl.utils.tokenizer.continuous_token_wiring",)


class OncePerMessage(logging.Filter):
    """Lets each different message of a logger through once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message in self._seen:
            return False
        self._seen.add(message)
        return True


def install() -> None:
    """Attach the filter; a second call changes nothing."""
    for name in _PER_ROLLOUT:
        target = logging.getLogger(name)
        if not any(isinstance(existing, OncePerMessage) for existing in target.filters):
            target.addFilter(OncePerMessage())
