# SPDX-License-Identifier: Apache-2.0
"""A real vLLM server gives the scores of the local model."""

import asyncio

import pytest
from tiny_step_rm import described, save_bert, scorer_settings
from vllm_server import vllm_server

from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain


@pytest.fixture
def served(tmp_path):
    """A model's folder and the address where it is served."""
    model_path = described(save_bert(tmp_path / "model", size=64), temperature=1.7)
    with vllm_server(model_path, tmp_path, "--runner", "pooling") as address:
        yield model_path, address


@pytest.mark.vllm
def test_a_vllm_server_gives_the_scores_of_the_local_model(served):
    """Also with special tokens in the steps, a temperature, and steps that are too long."""
    model_path, address = served
    chains = [Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good." for k in range(1, n))) for n in (1, 2, 5, 9)]
    chains.append(Chain(("we add 3 " * 60, "so 7.")))

    async def ask():
        settings = {"batch_size": 4, "timeout_seconds": 60, "attempts": 3}
        scorer = build_scorer(scorer_settings(kind="server", model_path=str(model_path), address=address, **settings))
        try:
            return await scorer.score(chains)
        finally:
            await scorer.close()

    local = LocalScorer(model_path, device="cpu").score_now(chains)
    for outcome, expected in zip(asyncio.run(ask()), local, strict=True):
        assert (outcome.contexts_cut, outcome.steps_cut) == (expected.contexts_cut, expected.steps_cut)
        for row, other in zip(outcome.probabilities, expected.probabilities, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
