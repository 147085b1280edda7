# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS repeats bit for bit, and so does a run that is killed while it saves and started again.

What is killed has trained two steps in processes of its own before: they are compared like the rest.
"""

import e2e_harness as harness
import pytest
import torch
from e2e_harness import repeatable, weights

pytestmark = pytest.mark.slow

STEPS = 4
OVERRIDES = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=50",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "algorithm.adv_estimator=rloo",
    "actor_rollout_ref.rollout.n=4",
    # A coefficient that moves far at every step.
    "algorithm.kl_ctrl.horizon=100",
    # Two kinds of delimiters, so that also an untrained policy writes steps.
    "pspo.steps.splitter=delimiters",
    'pspo.steps.delimiters=[";","="]',
    "pspo.accumulation.single_step=keep",
    "pspo.judge=false",
    # In float32 the rounding of a batch reaches tokens and scores.
    "actor_rollout_ref.rollout.dtype=float64",
    "step_scorer.dtype=float64",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of the run left alone and of the one that was killed and started again."""
    base = tmp_path_factory.mktemp("pspo_resume")
    harness.write_inputs(base)
    overrides = [*OVERRIDES, f"step_scorer.model_path={harness.write_step_rm(base)}"]
    alone, killed = base / "alone", base / "killed"
    harness.run(base, alone, overrides, config="pspo_trainer_cpu")
    harness.run_killed_while_saving(base, killed, overrides, whole=2, torn=3, config="pspo_trainer_cpu")
    harness.run(base, killed, overrides, config="pspo_trainer_cpu")
    return alone, killed


def test_metrics_are_equal(runs):
    alone, killed = (harness.metrics(folder) for folder in runs)
    assert sorted(alone) == sorted(killed) == list(range(1, STEPS + 1))
    for step in alone:
        assert repeatable(killed[step]) == repeatable(alone[step]), f"step {step}"
    assert len({values["actor/reward_kl_penalty_coeff"] for values in alone.values()}) == STEPS
    assert all(values["actor/grad_norm"] > 0 and values["pspo/score"] > 0 for values in alone.values())


def test_weights_and_optimisers_are_equal(runs):
    alone, killed = (weights(folder / "checkpoints" / f"global_step_{STEPS}", "actor") for folder in runs)
    assert alone.keys() == killed.keys() and len(alone) > 40
    for name in alone:
        torch.testing.assert_close(killed[name], alone[name], rtol=0, atol=0, msg=name)
