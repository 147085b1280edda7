# SPDX-License-Identifier: Apache-2.0
"""Keeps the verifiers that one configuration registers from the next test."""

import pytest


@pytest.fixture(autouse=True)
def own_sources(monkeypatch):
    import prime_ext.reward.compute_score as scoring
    from prime_ext.verifiers import sources

    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    scoring._verifiers.cache_clear()
    yield
    scoring._verifiers.cache_clear()
