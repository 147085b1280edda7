# SPDX-License-Identifier: Apache-2.0
"""Stopped and resumed, runs end bit for bit as those that were left alone.

PRIME-D with all that its PRM can be trained on: the average of the policy, the gate, the PRM's bias, and the remembered
rollouts go on, beside models and optimisers. PSPO-WRS: tests/recipes/test_pspo_cpu.py.
"""

import json

import e2e_harness as harness
import pytest

pytestmark = pytest.mark.slow

STEPS, SAVED = 4, 2
DISTILLED = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={SAVED}",
    "trainer.test_freq=-1",
    # In float32 the rounding of a batch reaches tokens and scores; in float64 it does not.
    "actor_rollout_ref.rollout.dtype=float64",
    "variant=distilled",
    # Open from the start: both pulls are at work.
    "prime.process.gate.start=0.8",
    "prm.epochs=2",
    "prm.reference=frozen",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of four steps, and of its checkpoint of step 2 run on."""
    base = tmp_path_factory.mktemp("distilled")
    harness.write_inputs(base)
    return harness.run_alone_and_resumed(base, base, DISTILLED, SAVED)


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


def test_a_resumed_run_ends_as_the_one_that_was_left_alone(runs):
    parts = ("actor", "prm", "policy_average")
    harness.assert_same_end(*runs, range(SAVED + 1, STEPS + 1), STEPS, parts)
    last = [folder / "checkpoints" / f"global_step_{STEPS}" for folder in runs]
    expected, found = ((folder / "prm" / "bias.json").read_text() for folder in last)
    assert found == expected and json.loads(found)["bias"] != 0
