# SPDX-License-Identifier: Apache-2.0
"""A real vLLM server gives the scores of the model in this process."""

import asyncio

import pytest
from tiny_step_rm import described, save_bert, scored, scorer_settings
from vllm_server import vllm_server

from prime_ext.step_rm.scorers.build import build_scorer, check_server
from prime_ext.step_rm.scorers.protocol import Chain

pytestmark = pytest.mark.vllm

# Also with special tokens in the steps, a temperature, and steps that are too long.
STEPS = [Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good." for k in range(1, n))) for n in (1, 2, 5, 9)]
STEPS.append(Chain(("we add 3 " * 60, "so 7.")))


def test_a_vllm_server_gives_the_scores_of_the_model_in_this_process(tmp_path):
    path = described(save_bert(tmp_path / "model", size=64), temperature=1.7)
    with vllm_server(path, tmp_path, "--runner", "pooling") as address:
        settings = scorer_settings(
            model_path=str(path), kind="server", address=address, timeout_seconds=60.0, attempts=3
        )
        check_server(settings)
        outcomes = asyncio.run(scored(build_scorer(settings), STEPS))
    local = build_scorer(scorer_settings(model_path=str(path), device="cpu")).score_now(STEPS)
    for outcome, expected in zip(outcomes, local, strict=True):
        assert (outcome.contexts_cut, outcome.steps_cut) == (expected.contexts_cut, expected.steps_cut)
        for row, other in zip(outcome.probabilities, expected.probabilities, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
