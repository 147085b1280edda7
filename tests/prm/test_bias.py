# SPDX-License-Identifier: Apache-2.0
"""The trained bias of the PRM's cross-entropy, and several epochs, on one and two gloo ranks, against a plain loop."""

import json
import math
from pathlib import Path

import pytest
import torch
from plain_prm import assert_updates_close, assert_weights_close, two_updates

from prime_ext.algorithms.prm_losses.cross_entropy import logit_of_mean
from prime_ext.generate.export import BIAS_FILE, export

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("bias_rank.py")
VARIANTS = [
    "micro-batches of 2",
    "micro-batches of 1",
    "micro-batches of 4",
    "dynamic batches",
    "remove padding",
    "two epochs",
    "two epochs, micro-batches of 4",
]
START = math.log(0.3 / 0.7)


@pytest.fixture(scope="module")
def plain(model_path, runs):
    rollouts = runs[1][0]["rollouts"]
    return {epochs: two_updates(model_path, rollouts, bias=START, epochs=epochs) for epochs in (1, 2)}


def biases(updates):
    return [update["bias"] for update in updates]


@pytest.mark.parametrize("variant", VARIANTS)
def test_bias_and_weights_equal_a_plain_loop_however_the_batch_is_cut(results, plain, variant):
    found, expected = results["variant", variant], plain[2 if "epochs" in variant else 1]
    assert biases(found["updates"]) == pytest.approx(biases(expected["updates"]), abs=1e-5)
    assert_updates_close(found["updates"], expected["updates"])
    assert_weights_close(found["weights"], expected["weights"], tolerance=2e-5)


def test_replayed_rollouts_count_as_much_as_new_ones(results, model_path):
    rollouts, found = results["rollouts"], results["replayed"]
    batches = [[*rollouts[:4], *rollouts[7:11]], [*rollouts[4:7], *rollouts[11:14]]]
    expected = two_updates(model_path, rollouts, bias=START, batches=batches)
    assert biases(found["updates"]) == pytest.approx(biases(expected["updates"]), abs=1e-5)
    assert_updates_close(found["updates"], expected["updates"])
    assert_weights_close(found["weights"], expected["weights"], tolerance=2e-5)


def test_it_is_the_same_on_all_ranks(runs):
    assert len(set(runs[2][0]["of all ranks"])) == 1


@pytest.mark.parametrize(
    ("mean", "logit"), [(0.5, 0.0), (0.3, START), (0.0, -4.0), (1.0, 4.0), (1e-4, -4.0), (1 - 1e-4, 4.0)]
)
def test_the_starting_value_is_bounded(mean, logit):
    assert logit_of_mean(mean) == logit


def test_it_skips_the_steps_that_the_engine_skips(results):
    assert results["skipped"] == (0.5, True)
    # Nothing of the skipped step is left, neither its gradient nor a moment.
    after, without = results["after the skipped one"], results["without a skipped one"]
    assert after["bias"] == without["bias"] != 0.5
    assert after["loss"] == without["loss"]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_resumed_bias_goes_on_bit_for_bit(results, steps):
    (*updates, weights), (*resumed_updates, resumed_weights) = results["resumed", steps]
    assert updates == resumed_updates
    assert updates[0]["bias"] != updates[1]["bias"]
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)


def test_a_checkpoint_without_a_bias_is_refused(results):
    assert results["missing"].endswith(f"{BIAS_FILE}; it was saved with prm.bias.enable=false")


def test_without_it_there_is_none(results, run):
    update, _ = results["none"]
    assert update["bias"] is None and update["loss"][0] == pytest.approx(math.log(2), abs=1e-5)
    assert not (run[1] / "without" / BIAS_FILE).exists()


def test_an_exported_prm_says_what_its_bias_is(run, tmp_path):
    _, folder = run
    saved = json.loads((folder / "prm1" / BIAS_FILE).read_text())
    assert saved["beta"] == 0.5 and saved["step"] == 2.0
    export(folder / "prm1", tmp_path / "with")
    assert f"beta = 0.5, b = {saved['bias']}" in (tmp_path / "with" / "README.md").read_text()
    export(folder / "without", tmp_path / "without")
    assert not (tmp_path / "without" / "README.md").exists()
