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
"""Makes the fake queue importable, and keeps the verifiers that one configuration registers from the next test."""

import sys
from pathlib import Path

import pytest

# pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_sources(monkeypatch):
    import prime_ext.reward.compute_score as scoring
    from prime_ext.verifiers import sources

    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    monkeypatch.setattr(scoring, "_prepared", list(scoring._prepared))
