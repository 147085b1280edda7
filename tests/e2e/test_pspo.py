# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS with a tiny step reward model and critic, through prime_ext's main."""

import math

import e2e_harness as harness
import pytest

pytestmark = pytest.mark.slow


def test_ppo_with_rewards_at_step_ends(tmp_path):
    """As the paper, with critic and GAE, but for where the reward is paid."""
    overrides = [
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        "trainer.test_freq=2",
        # Two kinds of delimiters, so that also an untrained policy writes steps.
        'pspo.steps={delimiters: [";","="]}',
        "pspo.accumulation.single_step=keep",
        "pspo.accumulation.reward_position=step_ends",
        f"step_scorer.model_path={harness.write_step_rm(tmp_path)}",
    ]
    metrics = harness.train(tmp_path, overrides, harness.PSPO)
    assert sorted(metrics) == [1, 2]
    for step in (1, 2):
        logged = metrics[step]
        names = ("n_steps/mean", "score", "acc", "step_score", "chain_score", "chain_factor")
        assert all(math.isfinite(logged[f"pspo/{name}"]) for name in names)
        # The verifier of this task is made to fail on some responses, which no reward needs.
        assert logged["pspo/reward_failure"] == logged["pspo/dropped"] == 0
        # What is paid at step ends adds up to the manager's score.
        assert logged["critic/score/mean"] == pytest.approx(logged["pspo/score"], abs=1e-5)
        assert logged["actor/grad_norm"] > 0 and math.isfinite(logged["critic/vf_loss"])
    # verl's own way: means of the manager's numbers over the validation set.
    validation = {name.split("/")[-2] for name in metrics[2] if name.startswith(("val-core", "val-aux"))}
    assert {"acc", "reward", "n_steps", "chain_score", "reward_failure"} <= validation
