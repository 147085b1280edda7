# SPDX-License-Identifier: Apache-2.0
"""PRIME-D through verl, stopped and resumed: the average of the policy and the gate go on where they were."""

import shutil

import e2e_harness as harness
import pytest
import torch

pytestmark = pytest.mark.slow

OVERRIDES = [
    "variant=distilled",
    "prime.process.reliability_gate=true",
    # Open from the start: both pulls are at work.
    "prime.process.gate_start=0.8",
    "prime.process.top_k=8",
    "trainer.total_training_steps=4",
    "trainer.total_epochs=50",
    "trainer.save_freq=2",
    "trainer.test_freq=-1",
    "actor_rollout_ref.rollout.dtype=float64",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of four steps, and of its checkpoint of step 2 run on."""
    base = tmp_path_factory.mktemp("distilled")
    inputs, alone, resumed = base / "inputs", base / "alone", base / "resumed"
    harness.write_inputs(inputs)
    harness.run(inputs, alone, OVERRIDES)
    shutil.copytree(alone / "checkpoints" / "global_step_2", resumed / "checkpoints" / "global_step_2")
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    harness.run(inputs, resumed, OVERRIDES)
    return alone, resumed


def test_both_pulls_are_in_the_loss(runs):
    for step, metrics in harness.metrics(runs[0]).items():
        gate = metrics["prime/gate/value"]
        assert 0 < gate < 1
        assert metrics["prime/kl/prm_coefficient"] == pytest.approx(gate)
        assert metrics["prime/kl/average_coefficient"] == pytest.approx(1 - gate)
        # The first update of the PRM has the learning rate 0.
        assert metrics["prime/kl/prm"] > 0 or step == 1
        assert metrics["prime/kl/average"] >= 0
        assert "prime/process/return_std" not in metrics
        # One in the PRM's update and one inside the policy's, none to score.
        assert metrics["prm/passes/forward"] == pytest.approx(2.0, abs=0.1), step


def test_a_resumed_run_ends_as_the_one_that_was_left_alone(runs):
    alone, resumed = (harness.metrics(folder) for folder in runs)
    for step in (3, 4):
        expected = harness.repeatable(alone[step])
        assert harness.repeatable(resumed[step]) == pytest.approx(expected, rel=1e-6, abs=1e-7), f"step {step}"
    for part in ("actor", "prm", "policy_average"):
        folders = (folder / "checkpoints" / "global_step_4" for folder in runs)
        one, other = (weights(folder, part) for folder in folders)
        assert one.keys() == other.keys() and len(one) > 15
        for name, value in one.items():
            assert torch.equal(value, other[name]), f"{part}: {name}"


def weights(folder, part):
    if part != "policy_average":
        return harness.weights(folder, part)
    found = torch.load(folder / part / "model_world_size_1_rank_0.pt", weights_only=False)
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found.items()}
