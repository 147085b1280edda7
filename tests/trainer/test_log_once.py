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

import logging

from prime_ext import log_once


def test_a_repeated_message_is_said_once_and_installing_twice_changes_nothing(caplog):
    name = log_once._PER_ROLLOUT[0]
    log_once.install()
    log_once.install()
    target = logging.getLogger(name)
    assert sum(isinstance(existing, log_once.OncePerMessage) for existing in target.filters) == 1
    with caplog.at_level(logging.WARNING, logger=name):
        for model_type in ("made_up", "made_up", "another"):
            target.warning("no rule for %s", model_type)
    assert [record.getMessage() for record in caplog.records] == ["no rule for made_up", "no rule for another"]
