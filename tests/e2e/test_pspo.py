# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS with a tiny step reward model and critic, through prime_ext's main."""

import json
import math

import e2e_harness as harness
import pytest

pytestmark = pytest.mark.slow


def test_ppo_with_rewards_at_step_ends(tmp_path):
    """As the paper, with critic and GAE, but for where the reward is paid, and half a point for the right answer."""
    overrides = [
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        "trainer.test_freq=2",
        # Two kinds of delimiters, so that also an untrained policy writes steps.
        'pspo.steps={delimiters: [";","="]}',
        "pspo.accumulation.single_step=keep",
        "pspo.accumulation.reward_position=step_ends",
        "pspo.outcome_coefficient=0.5",
        f"step_scorer.model_path={harness.write_step_rm(tmp_path)}",
        f"pspo.log_path={tmp_path}/run/responses",
    ]
    metrics = harness.train(tmp_path, overrides, harness.PSPO)
    assert sorted(metrics) == [1, 2]
    for step in (1, 2):
        logged = metrics[step]
        names = ("n_steps/mean", "score", "acc", "step_score", "chain_score", "chain_factor", "steps_3_to_5")
        assert all(math.isfinite(logged[f"pspo/{name}"]) for name in names)
        # The verifier of this task is made to fail on some responses; what needs it is dropped.
        assert logged["pspo/reward_failure"] == logged["pspo/dropped"] / 4
        # What is paid at step ends adds up to the manager's score.
        assert logged["critic/score/mean"] == pytest.approx(logged["pspo/score"], abs=1e-5)
        assert logged["actor/grad_norm"] > 0 and math.isfinite(logged["critic/vf_loss"])
    # verl's own way: means of the manager's numbers over the validation set.
    validation = {name.split("/")[-2] for name in metrics[2] if name.startswith(("val-core", "val-aux"))}
    assert {"acc", "reward", "n_steps", "chain_score", "steps_2", "reward_failure"} <= validation
    files = (tmp_path / "run" / "responses").iterdir()
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(lines) == 2 * 4 + 4
    for line in lines:
        assert line["failure"] in ("", "verifier: made to fail") and line["n_steps"] == len(line["steps"])
        whole = 0.0 if line["failure"] else line["chain_reward"] + line["outcome_reward"]
        assert line["score"] == pytest.approx(whole)
        assert sum(step["paid"] for step in line["steps"]) == pytest.approx(line["chain_reward"])
