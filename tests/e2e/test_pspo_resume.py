# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS, stopped and resumed, ends bit for bit as the run that was left alone."""

import shutil

import e2e_harness as harness
import pytest
import torch
from e2e_harness import repeatable, weights

pytestmark = pytest.mark.slow

STEPS, SAVED = 4, 2
OVERRIDES = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=50",
    f"trainer.save_freq={SAVED}",
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
    """Folders of a run of four steps, and of its checkpoint of step 2 run on."""
    base = tmp_path_factory.mktemp("pspo_resume")
    harness.write_inputs(base)
    overrides = [*OVERRIDES, f"step_scorer.model_path={harness.write_step_rm(base)}"]
    alone, resumed = base / "alone", base / "resumed"
    harness.run(base, alone, overrides, config="pspo_trainer_cpu")
    name = f"global_step_{SAVED}"
    shutil.copytree(alone / "checkpoints" / name, resumed / "checkpoints" / name)
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(SAVED))
    harness.run(base, resumed, overrides, config="pspo_trainer_cpu")
    return alone, resumed


def test_metrics_are_equal(runs):
    alone, resumed = (harness.metrics(folder) for folder in runs)
    assert sorted(alone) == list(range(1, STEPS + 1)) and sorted(resumed) == list(range(SAVED + 1, STEPS + 1))
    for step in resumed:
        assert repeatable(resumed[step]) == repeatable(alone[step]), f"step {step}"
    assert len({values["actor/reward_kl_penalty_coeff"] for values in alone.values()}) == STEPS
    assert all(values["actor/grad_norm"] > 0 and values["pspo/score"] > 0 for values in alone.values())


def test_weights_and_optimisers_are_equal(runs):
    alone, resumed = (weights(folder / "checkpoints" / f"global_step_{STEPS}", "actor") for folder in runs)
    assert alone.keys() == resumed.keys() and len(alone) > 40
    for name in alone:
        torch.testing.assert_close(resumed[name], alone[name], rtol=0, atol=0, msg=name)
