# SPDX-License-Identifier: Apache-2.0
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
