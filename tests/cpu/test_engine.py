# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP2 engine on the CPU, through verl's TrainingWorker, on one and on two gloo ranks."""

from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks

pytestmark = pytest.mark.slow

RANK_PROGRAM = Path(__file__).parent / "engine_rank.py"


@pytest.fixture(scope="module")
def results_by_ranks(model_path, tmp_path_factory):
    return {n: run_ranks(RANK_PROGRAM, [model_path], tmp_path_factory.mktemp(f"ranks{n}"), n) for n in (1, 2)}


@pytest.fixture(params=[1, 2], ids=["1 rank", "2 ranks"])
def results(request, results_by_ranks):
    return results_by_ranks[request.param]


@pytest.fixture(scope="module")
def expected_log_probs(model, results_by_ranks):
    return [
        model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        for ids in results_by_ranks[1]["sequences"]
    ]


def assert_rows_close(rows, expected_rows):
    assert len(rows) == len(expected_rows)
    for row, expected in zip(rows, expected_rows, strict=True):
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("remove_padding", [True, False], ids=["remove padding", "padded"])
@pytest.mark.parametrize("dynamic, micro_batch_size", [(True, 1), (False, 1), (False, 4)])
def test_log_probs_equal_those_of_transformers(results, expected_log_probs, remove_padding, dynamic, micro_batch_size):
    assert results["backend"] == "gloo"
    assert_rows_close(results["infer", remove_padding, dynamic, micro_batch_size], expected_log_probs)


def test_an_engine_that_only_runs_forward_needs_no_pinned_memory(results, expected_log_probs):
    assert_rows_close(results["forward_only"], expected_log_probs)


def test_the_value_model_runs_on_the_cpu_engine(results):
    assert results["value_engine"] == "CPUEngineWithValueHead"
    assert len(results["values"]) == 8 and all(row.isfinite().all() for row in results["values"])


def test_what_the_cpu_cannot_do_is_refused_with_advice(results):
    assert "set strategy=fsdp2" in results["refused_fsdp1"]
    assert "offload_policy=False" in results["refused_offload_policy"]
