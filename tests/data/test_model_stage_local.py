# SPDX-License-Identifier: Apache-2.0
"""A model stage with a small model in this process, through transformers."""

import pytest
from told import ROWS, rl_row, rows_of, write_problems

from data_preprocessing import difficulty
from prime_ext.tasks.rl_rows import MATH_SCHEMA, RowWriter
from prime_ext.utils.files import read_json


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tiny_llama import save_llama

    return save_llama(tmp_path_factory.mktemp("model"), max_positions=256)


def graded(source, out, model, *more):
    backend = ["--backend", "transformers", "--model", model, "--dtype", "float64", "--max-new-tokens", 8]
    words = ["--input", source, "--output-dir", out, *backend, "--samples", 2, *more]
    return difficulty.main([str(word) for word in words])


def test_a_local_model_is_asked_and_the_parts_change_nothing(model, tmp_path):
    source = write_problems(tmp_path / "in" / "train.parquet")
    assert graded(source, tmp_path / "a", model) == 0
    assert graded(source, tmp_path / "b", model, "--chunk-rows", 5) == 0
    rows = rows_of(tmp_path / "a")
    assert len(rows) == ROWS
    assert all(row["extra_info"]["difficulty"]["samples"] == 2 for row in rows)
    for name in ("train.parquet", "report.json", "report.md", "removed.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_prompt_that_is_longer_than_the_context_is_a_removed_row(model, tmp_path):
    source = tmp_path / "train.parquet"
    with RowWriter(source, MATH_SCHEMA) as writer:
        for index, problem in enumerate(("Short?", "Long? " * 60)):
            writer.write(rl_row(problem, index=index))
    assert graded(source, tmp_path / "out", model) == 0
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out")] == [0]
    assert read_json(tmp_path / "out" / "report.json")["sources"][0]["removed"] == {"refused": 1}
