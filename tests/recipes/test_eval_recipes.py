# SPDX-License-Identifier: Apache-2.0
"""The evaluation recipes: their tasks and decodings exist, and one evaluates a tiny model."""

import os
import re
import subprocess
from itertools import pairwise

import pytest
from benchmark_rows import SAMPLES
from forked_workers import python
from recipe_calls import RECIPES, get_calls
from tiny_llama import save_llama

from eval.published import read_references
from prime_ext.tasks.task_file import load_task


@pytest.mark.parametrize(
    ("script", "metric"), [("eval_eurus2.sh", "accuracy"), ("eval_pspo.sh", "micro_f1")]
)
def test_paper_suites_have_their_decodings_and_published_numbers(tmp_path, script, metric):
    (call,) = get_calls(tmp_path, script, "some/model")
    given = dict(pairwise(call))
    assert call[:2] == ["-m", "eval.run"] and (given["--model"], given["--decoding"]) == (
        "some/model",
        "paper",
    )
    for task in map(load_task, given["--tasks"].split(",")):
        assert task.decoding["recommended"].do_sample and task.decoding["paper"]
        assert any(own["metric"] == metric for own in read_references(task.name))


@pytest.mark.parametrize(
    ("knobs", "tensor", "data"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "1", "8"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4", "TENSOR_PARALLEL": "2"}, "2", "2"),
        ({"CUDA_VISIBLE_DEVICES": "0", "TENSOR_PARALLEL": "2", "DATA_PARALLEL": "3"}, "2", "3"),
    ],
)
def test_all_gpus_evaluate(tmp_path, knobs, tensor, data):
    (call,) = get_calls(tmp_path, "eval_eurus2.sh", "some/model", **knobs)
    given = dict(pairwise(call))
    assert (given["--tensor-parallel"], given["--data-parallel"]) == (tensor, data)


@pytest.mark.slow
def test_a_recipe_evaluates_a_tiny_model_and_fails_with_it(tmp_path):
    task = tmp_path / "some_of_awpnli.yaml"
    task.write_text(
        "name: some_of_awpnli\nextends: awpnli\ntitle: Some of AwpNLI\nsource: {rows: null}\n"
    )
    model = save_llama(tmp_path / "model", max_positions=4096)
    knobs = {
        "TASKS": str(task),
        "DATA": str(SAMPLES),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "PYTHON": python(),
    }

    def run(*words):
        command = [
            "bash",
            str(RECIPES / "eval_pspo.sh"),
            *words,
            "--limit",
            "2",
            "--max-new-tokens",
            "12",
        ]
        return subprocess.run(
            command, env={**os.environ, **knobs}, capture_output=True, text=True, check=False
        )

    done = run(str(model))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "AwpNLI" in done.stdout and "PSPO-WRS" in done.stdout
    # The command of the table, which it names, is that of the folder that it wrote.
    assert re.search(rf"python -m eval.report {tmp_path / 'out'} --table pspo", done.stdout)
    assert (tmp_path / "out" / "report.md").is_file() and (
        tmp_path / "out" / "results.json"
    ).is_file()
    done = run(str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "report:" not in done.stdout
