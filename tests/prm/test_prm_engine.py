# SPDX-License-Identifier: Apache-2.0
"""The PRM on verl's FSDP2 engine, on one and two gloo ranks, against a loop over transformers."""

import prm_rank as base  # isort: skip

import os
from pathlib import Path

import pytest
import torch
from gloo_ranks import finish
from plain_prm import (
    assert_rows_close,
    assert_updates_close,
    assert_weights_close,
    mini_batches,
    two_updates,
)
from transformers import AutoTokenizer, LlamaForCausalLM

PROGRAM = Path(__file__)

VARIANTS = {
    "micro-batches of 2": {},
    "micro-batches of 1": {"prm.micro_batch_size_per_gpu": 1},
    "micro-batches of 4": {"prm.micro_batch_size_per_gpu": 4},
    "dynamic batches": {"prm.use_dynamic_bsz": True, "prm.max_token_len_per_gpu": 40},
    "remove padding": base.PACKED,
    "chunked": base.CHUNKED,
}


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    reference_worker = base.Prm(model_path, role="reference")
    reference = reference_worker.score(rollouts)
    results["reference"] = reference

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, overrides)
        results["variant", name] = {
            "initial": prm.score(rollouts),
            **prm.two_updates(rollouts, reference),
        }

    # Other padding, and rows in another order: nothing may change.
    others = [
        dict(r, prompt=r["prompt"].flip(0), label=1.0) if r["padding"] else r for r in rollouts
    ][::-1]
    prm = base.Prm(model_path)
    updates = [prm.update(others, reference[::-1]) for _ in range(2)]
    results["other padding, reversed"] = {"updates": updates, "weights": prm.weights()}

    # `interleaved` against `after`: score, then update.
    after = base.Prm(model_path)
    interleaved = base.Prm(model_path)
    scores_after = after.score(rollouts)
    updated_after = after.update(rollouts, reference)
    updated, scores = interleaved.update_and_score(rollouts, reference)
    results["after"] = (scores_after, updated_after, after.weights())
    results["interleaved"] = (scores, updated, interleaved.weights())
    results["reference at the end"] = reference_worker.score(rollouts)

    # Models whose output layer is their embeddings: full ones, and with adapters.
    tied_path = Path(work_dir) / f"tied{os.environ['RANK']}"
    LlamaForCausalLM.from_pretrained(model_path, tie_word_embeddings=True).save_pretrained(
        tied_path
    )
    AutoTokenizer.from_pretrained(model_path).save_pretrained(tied_path)
    for overrides in ({}, base.LORA):
        pair = [base.Prm(tied_path, overrides | words) for words in ({}, base.CHUNKED)]
        moved = [prm.update_and_score(rollouts, reference)[0]["grad_norm"] for prm in pair]
        results["tied", bool(overrides)] = (moved, [prm.score(rollouts) for prm in pair])

    # Saved after one update, restored into a fresh worker, updated once more.
    prm = base.Prm(model_path)
    first = prm.update(rollouts, reference)
    restored = base.saved_and_restored(prm, Path(work_dir) / "prm", model_path)
    results["resumed"] = [
        (each.score(rollouts), each.update(rollouts, reference), each.weights())
        for each in (prm, restored)
    ]
    results["first update"] = first

    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(model_path, runs):
    return two_updates(model_path, runs[1][0]["rollouts"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_losses_gradients_and_weights_equal_a_plain_loop(results, plain, variant):
    result = results["variant", variant]
    # Untrained it equals its reference: bit for bit when both run with the same batches, else to
    # rounding.
    same = variant == "micro-batches of 2"
    for row, reference in zip(result["initial"], results["reference"], strict=True):
        assert torch.equal(row, reference) if same else torch.allclose(row, reference, atol=1e-5)
    assert_updates_close(result["updates"], plain["updates"])
    # Four optimizer steps in float32: values near 4 agree to a few units in the sixth digit.
    assert_rows_close(result["scores"], plain["scores"], tolerance=5e-5)
    assert_weights_close(result["weights"], plain["weights"])


@pytest.mark.parametrize("adapter", [False, True])
def test_tied_models_are_scored_and_updated_alike_without_logits(results, adapter):
    moved, scores = results["tied", adapter]
    assert moved[1] == pytest.approx(moved[0], rel=1e-4) and min(moved[0]) > 0
    assert_rows_close(*scores, 1e-4)


def test_contents_of_padding_and_the_order_of_rows_change_nothing(results):
    expected = results["variant", "micro-batches of 2"]
    result = results["other padding, reversed"]
    assert_updates_close(result["updates"], expected["updates"])
    assert_weights_close(result["weights"], expected["weights"])


def test_interleaved_scores_later_mini_batches_with_the_updated_prm(results):
    rollouts = results["rollouts"]
    first = {rollout["key"] for rollout in mini_batches(rollouts)[0]}
    scores, updated, weights = results["interleaved"]
    scores_after, updated_after, weights_after = results["after"]
    assert_updates_close([updated], [updated_after])
    for rollout, score, score_after in zip(rollouts, scores, scores_after, strict=True):
        moved = float((score - score_after).abs().max())
        if not rollout["padding"]:
            assert moved < 1e-5 if rollout["key"] in first else moved > 1e-4
    assert_weights_close(weights, weights_after)


def test_the_frozen_reference_stays_as_it_was(results):
    assert all(
        torch.equal(a, b)
        for a, b in zip(results["reference"], results["reference at the end"], strict=True)
    )


def test_a_restored_prm_makes_the_same_next_update(results):
    (scores, update, weights), (restored_scores, restored_update, restored_weights) = results[
        "resumed"
    ]
    assert all(torch.equal(a, b) for a, b in zip(scores, restored_scores, strict=True))
    assert restored_update == update
    assert update["lr"] != results["first update"]["lr"], "the schedule has moved on"
    assert all(torch.equal(restored_weights[name], weight) for name, weight in weights.items())
