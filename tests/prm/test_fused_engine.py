# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities without logits on verl's FSDP2 engine, on one and on two gloo ranks.

Models with and without fused kernels, and with different backends, live side by side in one process, as the policy, the
PRM and its reference do.
"""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("fused_rank.py")
FUSED = ["chunked", "torch"]


def assert_equal(got, wanted, tolerance=2e-6):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("backend", FUSED)
def test_scores_do_not_depend_on_the_backend(results, backend):
    assert_equal(results["before", backend], results["before", None])


@pytest.mark.parametrize("backend", FUSED)
def test_an_update_is_the_same_whatever_the_backend(results, backend):
    assert_equal(results["interleaved", backend], results["interleaved", None])
    assert_equal(results["after", backend], results["after", None], 2e-5)
    assert (results["after", backend][0] - results["before", backend][0]).abs().max() > 1e-3
    for name, values in results["metrics", None].items():
        assert results["metrics", backend][name] == pytest.approx(values, rel=1e-5)


def test_packed_sequences_score_as_padded_ones(results):
    assert_equal(results["packed"], results["before", None])


@pytest.mark.parametrize("variant, plain", [("chunked", "plain"), ("packed", "plain"), ("chunked adapter", "adapter")])
def test_an_output_layer_of_its_own_is_gathered_for_the_fused_pass(results, variant, plain):
    before, update, after = results["untied", variant]
    before_plain, update_plain, after_plain = results["untied", plain]
    assert_equal(before, before_plain)
    assert update["loss"] == pytest.approx(update_plain["loss"], rel=1e-5)
    assert update["grad_norm"] == pytest.approx(update_plain["grad_norm"], rel=1e-5)
    assert_equal(after, after_plain, 2e-5)
    assert (after[0] - before[0]).abs().max() > 1e-4


def test_the_entropy_is_that_of_the_logits(results):
    for backend in FUSED:
        for got, wanted in zip(results["entropy"][backend], results["entropy"][None], strict=True):
            # The last position predicts nothing.
            torch.testing.assert_close(got[:-1], wanted[:-1], atol=1e-5, rtol=1e-5)


def test_a_base_model_behind_its_adapter_keeps_its_scores(results):
    adapter = results["adapter"]
    assert_equal(adapter["switched off"], adapter["before"])
    assert (adapter["after"][0] - adapter["before"][0]).abs().max() > 1e-4


def test_the_guard_compares_once(results):
    for backend in FUSED:
        assert results["guard", backend]["fused_log_prob_difference"] < 1e-5
        assert results["guard again", backend] == {}
    assert results["guard", None] == {}


def test_the_guard_stops_a_model_whose_logits_are_not_what_the_fused_pass_thinks(results):
    message = results["scaled logits"]
    assert "log-probabilities of the PRM (prm) differ by at most" in message and "use_fused_kernels=false" in message


def test_an_unknown_backend_is_an_error(results):
    assert results["unknown backend"] == (
        "fused_kernel_options.impl_backend='magic' is not one of chunked, torch, triton, liger"
    )
