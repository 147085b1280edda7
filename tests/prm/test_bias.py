# SPDX-License-Identifier: Apache-2.0
"""The bias of the PRM's cross-entropy, and epochs, on one and two gloo ranks, against a loop."""

import prm_rank as base  # isort: skip

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import finish
from plain_prm import assert_updates_close, assert_weights_close, two_updates

from prime_ext.generate.export import BIAS_FILE, export
from prime_ext.generate.prm_description import FILE, read_description
from prime_ext.prm.fields import WEIGHT
from prime_ext.utils.files import write_json

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)

BIAS = {"prm.bias_lr": 0.05}
MEAN_OUTCOME = 0.3

VARIANTS = {
    "micro-batches of 1": {"prm.micro_batch_size_per_gpu": 1},
    "remove padding": base.PACKED,
    "two epochs, micro-batches of 4": {"prm.epochs": 2, "prm.micro_batch_size_per_gpu": 4},
}


def updated(prm, *arguments):
    return {**prm.update(*arguments), "bias": prm.worker.bias_value()}


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    reference = base.Prm(model_path, role="reference").score(rollouts)

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, {**overrides, **BIAS})
        results["at first"] = prm.worker.bias_value()
        # The second one comes too late.
        prm.worker.start_bias(MEAN_OUTCOME)
        prm.worker.start_bias(0.9)
        updates = [updated(prm, rollouts, reference) for _ in range(2)]
        results["variant", name] = {"updates": updates, "weights": prm.weights()}

    # Half of the rollouts are of an earlier step; two mini-batches have equal shares of them.
    replayed = [7 <= row < base.N_VALID for row in range(base.N_ROWS)]
    prm = base.Prm(model_path, BIAS, mini_batch_size=2)
    prm.worker.start_bias(MEAN_OUTCOME)
    updates = [updated(prm, rollouts, reference, replayed, 8) for _ in range(2)]
    results["replayed"] = {"updates": updates, "weights": prm.weights()}

    # Gradients that are not finite: neither the PRM nor its bias moves, and the next step starts
    # from no gradient.
    prm = base.Prm(model_path, BIAS)
    prm.worker.start_bias(MEAN_OUTCOME)
    before = prm.weights()
    data, _ = prm.planned(rollouts, reference)
    data[WEIGHT][:] = torch.inf
    prm.worker.train_mini_batch(data)
    after = prm.weights()
    results["skipped"] = (
        prm.worker.bias_value(),
        all(torch.equal(after[name], before[name]) for name in before),
    )
    results["after the skipped one"] = updated(prm, rollouts, reference)
    fresh = base.Prm(model_path, BIAS)
    fresh.worker.start_bias(MEAN_OUTCOME)
    fresh.worker.engine.lr_scheduler_step()
    results["without a skipped one"] = updated(fresh, rollouts, reference)

    # Off: a checkpoint without a bias, and what a run with one says to it.
    plain = base.Prm(model_path)
    try:
        base.saved_and_restored(plain, Path(work_dir) / "without", model_path, BIAS)
    except FileNotFoundError as error:
        results["missing"] = str(error)

    # Saved before its first update, the bias still waits for its starting value.
    for steps in (0, 1):
        prm = base.Prm(model_path, BIAS)
        if steps:
            prm.worker.start_bias(MEAN_OUTCOME)
            updated(prm, rollouts, reference)
        restored = base.saved_and_restored(
            prm, Path(work_dir) / f"prm{steps}", model_path, BIAS, step=steps
        )
        for each in (prm, restored):
            each.worker.start_bias(0.6)
        results["resumed", steps] = [
            (updated(each, rollouts, reference), updated(each, rollouts, reference), each.weights())
            for each in (prm, restored)
        ]
    results["of all ranks"] = [None] * dist.get_world_size()
    dist.all_gather_object(results["of all ranks"], prm.worker.bias_value())
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


START = math.log(0.3 / 0.7)


def assert_plain_loop(model_path, rollouts, found, **options):
    expected = two_updates(model_path, rollouts, bias=START, **options)
    biases, others = ([update["bias"] for update in one["updates"]] for one in (found, expected))
    assert biases == pytest.approx(others, abs=1e-5)
    assert_updates_close(found["updates"], expected["updates"])
    assert_weights_close(found["weights"], expected["weights"], tolerance=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bias_and_weights_equal_a_plain_loop_for_any_cut(results, model_path, variant):
    epochs = VARIANTS[variant].get("prm.epochs", 1)
    assert_plain_loop(model_path, results["rollouts"], results["variant", variant], epochs=epochs)


def test_replayed_rollouts_count_as_much_as_new_ones(results, model_path):
    rollouts = results["rollouts"]
    batches = [[*rollouts[:4], *rollouts[7:11]], [*rollouts[4:7], *rollouts[11:14]]]
    assert_plain_loop(model_path, rollouts, results["replayed"], batches=batches)


def test_the_bias_starts_at_0_and_agrees_on_all_ranks(runs):
    assert runs[1][0]["at first"] == 0 and len(set(runs[2][0]["of all ranks"])) == 1


def test_it_skips_the_steps_that_the_engine_skips(results):
    assert results["skipped"] == (START, True)
    # Nothing of the skipped step is left, neither its gradient nor a moment.
    after = results["after the skipped one"]
    without = results["without a skipped one"]
    assert after["bias"] == without["bias"] != START
    assert after["loss"] == without["loss"]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_resumed_bias_goes_on_bit_for_bit(results, steps):
    (*updates, weights), (*resumed_updates, resumed_weights) = results["resumed", steps]
    assert updates == resumed_updates
    assert updates[0]["bias"] != updates[1]["bias"]
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)


def test_a_checkpoint_without_a_bias_is_refused(results, run):
    assert results["missing"].endswith(f"{BIAS_FILE}; it was saved with prm.bias_lr=null")
    assert not (run[1] / "without" / BIAS_FILE).exists()


def test_an_exported_prm_says_what_its_bias_is(run, tmp_path):
    _, folder = run
    saved = json.loads((folder / "prm1" / BIAS_FILE).read_text())
    assert saved["beta"] == 0.5 and saved["step"] == 2.0
    shutil.copytree(folder / "prm1", tmp_path / "step" / "prm")
    names = {"prm": "org/sft", "reference": "org/sft", "reference_moves": False}
    write_json(tmp_path / "step" / FILE, names)
    export(tmp_path / "step" / "prm", tmp_path / "out")
    assert read_description(str(tmp_path / "out"))["bias"] == saved["bias"]
