# SPDX-License-Identifier: Apache-2.0
"""PRIME-D with all that its PRM can be trained on, stopped and resumed: everything goes on where it was.

That is the average of the policy, the gate, the PRM's bias, and the remembered rollouts, beside models and optimisers.
"""

import json
import shutil

import e2e_harness as harness
import pytest
import torch

pytestmark = pytest.mark.slow

STEPS, SAVED = 4, 2
OVERRIDES = [
    "variant=distilled",
    "prime.process.reliability_gate=true",
    # Open from the start: both pulls are at work.
    "prime.process.gate_start=0.8",
    "prime.process.top_k=8",
    "prm.epochs=2",
    # What is remembered was measured by a reference that never changes.
    "prm.reference=frozen",
    "prm.train_on=judged",
    "prm.judged_limit=12",
    "prm.replay.batches=2",
    "prm.replay.ratio=0.5",
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=50",
    f"trainer.save_freq={SAVED}",
    "trainer.test_freq=-1",
    # In float32 the rounding of a batch can move a token across the boundary of its interval; in float64 it does not.
    "actor_rollout_ref.rollout.dtype=float64",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of four steps, and of its checkpoint of step 2 run on."""
    base = tmp_path_factory.mktemp("distilled")
    inputs, alone, resumed = base / "inputs", base / "alone", base / "resumed"
    harness.write_inputs(inputs)
    harness.run(inputs, alone, OVERRIDES)
    name = f"global_step_{SAVED}"
    shutil.copytree(alone / "checkpoints" / name, resumed / "checkpoints" / name)
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(SAVED))
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


def test_the_prm_was_trained_on_all_of_it(runs):
    steps = harness.metrics(runs[0])
    assert all(metrics["prime/filter/kept"] == 4 for metrics in steps.values())
    assert any(metrics.get("prm/judged_rollouts", 0) > 0 for metrics in steps.values())
    assert steps[1]["prm/replayed_rollouts"] == 0
    for step in range(2, STEPS + 1):
        # Half of the new ones: 4 kept prompts of 4 rollouts, less those that could not be judged.
        new = steps[step].get("prm/judged_rollouts", 0) + 16
        assert 0.5 * (new - 4) <= steps[step]["prm/replayed_rollouts"] <= 0.5 * new
    assert all(metrics["prm/bias"] != 0 for metrics in steps.values())


def test_a_resumed_run_ends_as_the_one_that_was_left_alone(runs):
    alone, resumed = (harness.metrics(folder) for folder in runs)
    assert sorted(alone) == list(range(1, STEPS + 1)) and sorted(resumed) == list(range(SAVED + 1, STEPS + 1))
    for step in resumed:
        expected = harness.repeatable(alone[step])
        assert harness.repeatable(resumed[step]) == pytest.approx(expected, rel=1e-6, abs=1e-7), f"step {step}"
    last = [folder / "checkpoints" / f"global_step_{STEPS}" for folder in runs]
    for part in ("actor", "prm", "policy_average"):
        one, other = (weights(folder, part) for folder in last)
        assert one.keys() == other.keys() and len(one) > 15
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=0, msg=f"{part}: {name}")
    expected, found = ((folder / "prm" / "bias.json").read_text() for folder in last)
    assert found == expected and json.loads(found)["bias"] != 0
    remembered = [sorted(path.name for path in (folder / "prm" / "prm_replay").iterdir()) for folder in last]
    assert remembered[0] == remembered[1] == [f"update_{number:09d}.safetensors" for number in (3, 4)]


def weights(folder, part):
    if part != "policy_average":
        return harness.weights(folder, part)
    found = torch.load(folder / part / "model_world_size_1_rank_0.pt", weights_only=False)
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found.items()}
