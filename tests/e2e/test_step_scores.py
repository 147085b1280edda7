# SPDX-License-Identifier: Apache-2.0
"""PRIME with a published process reward model in place of the implicit PRM, through verl's main."""

import math

import e2e_harness as harness
import pytest
from tiny_llama import save_llama

pytestmark = pytest.mark.slow


def test_two_steps_and_no_implicit_prm(tmp_path):
    harness.write_inputs(tmp_path)
    # Short positions, so that some responses are too long to be scored and leave their groups.
    save_llama(tmp_path / "prm", seed=3, classes=2, max_positions=40)
    overrides = [
        "variant=step_scorer",
        "step_scorer.architecture=token_classification",
        f"step_scorer.model_path={tmp_path}/prm",
        # Two kinds of delimiters, so that also an untrained policy writes steps.
        "prime.steps.splitter=delimiters",
        'prime.steps.delimiters=[";","="]',
        "prime.filter.enable=false",
        "trainer.total_training_steps=2",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    ]
    harness.run(tmp_path, tmp_path / "run", overrides)
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert 0 < logged["prm/lowest_step_score"] <= logged["prm/step_score"] < 1
        # A soft minimum of the scores of each response is what it is paid.
        assert 0 < logged["prm/reward_sum/mean"] < 1 and logged["prime/process/return_std"] > 0
        assert logged["prime/steps/mean"] >= 1 and math.isfinite(logged["prime/outcome/return_std"])
        assert logged["actor/grad_norm"] > 0 and "prm/loss" not in logged
    assert sum(logged.get("verifier/not_scored", 0.0) for logged in metrics.values()) > 0
    validation = {name.split("/")[-2] for name in metrics[2] if name.startswith(("val-core", "val-aux"))}
    assert {"acc", "step_score", "n_steps", "reward_failure"} <= validation
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2"
    assert (checkpoint / "actor").is_dir() and not (checkpoint / "prm").exists()
