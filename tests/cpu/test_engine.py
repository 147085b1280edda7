# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP2 engine of critics on the CPU, and what no engine can do there; tests/prm has the language models."""

from pathlib import Path

import pytest
from gloo_ranks import run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_value_model_runs_and_what_the_cpu_cannot_do_is_refused_with_advice(model_path, tmp_path, n_ranks):
    results = run_ranks(Path(__file__).parent / "engine_rank.py", [model_path], tmp_path, n_ranks)
    assert results["backend"] == "gloo" and results["value_engine"] == "CPUEngineWithValueHead"
    assert [len(row) for row in results["values"]] == [5, 9, 3, 12]
    assert all(row.isfinite().all() for row in results["values"])
    assert "set strategy=fsdp2" in results["refused_fsdp1"]
    assert "offload_policy=False" in results["refused_offload_policy"]
