# SPDX-License-Identifier: Apache-2.0
"""A bias, dropped prompts, several epochs and replay in the PRM's updates: resumed, a run equals the one left alone."""

import json
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
    # In float32 the rounding of a batch can move a token across the boundary of its interval; in float64 it does not.
    "actor_rollout_ref.rollout.dtype=float64",
    "prime.process.reliability_gate=true",
    "prm.update_mode=before",
    "prm.epochs=2",
    "prm.beta=1",
    "prm.bias.enable=true",
    "prm.train_on=judged",
    "prm.judged_limit=12",
    "prm.replay.batches=2",
    "prm.replay.ratio=0.5",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of the run left alone, and of one that has its first checkpoint and nothing else."""
    base = tmp_path_factory.mktemp("prm_data")
    inputs = base / "inputs"
    harness.write_inputs(inputs)
    alone, resumed = base / "alone", base / "resumed"
    harness.run(inputs, alone, OVERRIDES)
    name = f"global_step_{SAVED}"
    shutil.copytree(alone / "checkpoints" / name, resumed / "checkpoints" / name)
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(SAVED))
    harness.run(inputs, resumed, OVERRIDES)
    return alone, resumed


def test_a_resumed_run_equals_the_uninterrupted_one(runs):
    alone, resumed = (harness.metrics(folder) for folder in runs)
    assert sorted(alone) == list(range(1, STEPS + 1)) and sorted(resumed) == list(range(SAVED + 1, STEPS + 1))
    for step in resumed:
        assert repeatable(resumed[step]) == pytest.approx(repeatable(alone[step]), rel=1e-6, abs=1e-7), f"step {step}"
    last = [folder / "checkpoints" / f"global_step_{STEPS}" for folder in runs]
    for part in ("actor", "prm"):
        expected, found = (weights(folder, part) for folder in last)
        assert expected.keys() == found.keys() and len(expected) > 40
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, msg=name)
    expected, found = ((folder / "prm" / "bias.json").read_text() for folder in last)
    assert found == expected and json.loads(found)["bias"] != 0
    remembered = [sorted(path.name for path in (folder / "prm" / "prm_replay").iterdir()) for folder in last]
    assert remembered[0] == remembered[1] == [f"update_{number:09d}.safetensors" for number in (3, 4)]


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
