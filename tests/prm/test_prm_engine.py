# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM on verl's FSDP2 engine, on one and on two gloo ranks, against a plain loop over transformers."""

import math
from pathlib import Path

import pytest
import torch
from plain_prm import assert_rows_close, assert_updates_close, assert_weights_close, mini_batches, two_updates

VARIANTS = ["micro-batches of 2", "micro-batches of 1", "micro-batches of 4", "dynamic batches", "remove padding"]

PROGRAM = Path(__file__).with_name("prm_rank.py")


@pytest.fixture(scope="module")
def plain(model_path, runs):
    return two_updates(model_path, runs[1][0]["rollouts"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_losses_gradients_and_weights_equal_a_plain_loop(results, plain, variant):
    found = results["variant", variant]
    assert_updates_close(found["updates"], plain["updates"])
    # Four optimiser steps in float32: values near 4 agree to a few units in the sixth digit.
    assert_rows_close(found["scores"], plain["scores"], tolerance=5e-5)
    assert_weights_close(found["weights"], plain["weights"])
    assert all(row.dtype == torch.float32 for row in found["scores"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_untrained_prm_equals_its_reference_and_its_first_loss_is_ln_2(results, variant):
    found = results["variant", variant]
    same = variant not in ("micro-batches of 4", "dynamic batches", "remove padding", "micro-batches of 1")
    for row, reference in zip(found["initial"], results["reference"], strict=True):
        # Bit for bit when both run with the same batches; else to rounding.
        assert torch.equal(row, reference) if same else torch.allclose(row, reference, atol=1e-5)
    assert found["updates"][0]["loss"][0] == pytest.approx(math.log(2), abs=1e-5)
    assert found["updates"][1]["loss"][1] < found["updates"][0]["loss"][0]


def test_contents_of_padding_and_the_order_of_rows_change_nothing(results):
    expected, found = results["variant", "micro-batches of 2"], results["other padding, reversed"]
    assert_updates_close(found["updates"], expected["updates"])
    assert_weights_close(found["weights"], expected["weights"])


def test_interleaved_equals_after_when_there_is_one_mini_batch(results):
    for step in range(2):
        scores, updated = results["interleaved", 8, step]
        scores_after, updated_after = results["after", 8, step]
        assert_rows_close(scores, scores_after)
        assert_updates_close([updated], [updated_after])
    assert_weights_close(results["interleaved weights", 8], results["after weights", 8])


def test_interleaved_scores_later_mini_batches_with_a_prm_that_has_moved(results):
    rollouts = results["rollouts"]
    first = {rollout["key"] for rollout in mini_batches(rollouts)[0]}
    scores, updated = results["interleaved", 4, 0]
    scores_after, updated_after = results["after", 4, 0]
    assert_updates_close([updated], [updated_after])
    for rollout, score, score_after in zip(rollouts, scores, scores_after, strict=True):
        moved = float((score - score_after).abs().max())
        if not rollout["padding"]:
            assert moved < 1e-5 if rollout["key"] in first else moved > 1e-4
    assert_weights_close(results["interleaved weights", 4], results["after weights", 4])


def test_the_frozen_reference_stays_as_it_was(results):
    assert all(torch.equal(a, b) for a, b in zip(results["reference"], results["reference at the end"], strict=True))


def test_a_restored_prm_makes_the_same_next_update(results):
    (scores, update, weights), (restored_scores, restored_update, restored_weights) = results["resumed"]
    assert all(torch.equal(a, b) for a, b in zip(scores, restored_scores, strict=True))
    assert restored_update == update
    assert update["lr"] != results["first update"]["lr"], "the schedule has moved on"
    assert all(torch.equal(restored_weights[name], weight) for name, weight in weights.items())
    # Without the optimiser's state the update would be another one.
    assert weights.keys() == restored_weights.keys() and len(weights) > 5
