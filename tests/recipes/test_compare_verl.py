# SPDX-License-Identifier: Apache-2.0
"""The comparison of the studies' loop with verl: its inputs, the loop's metrics, the table."""

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.minimal_prime import build_settings
from recipes.pretrained import compare_verl
from recipes.studies.laboratory import SumTask
from recipes.tiny_model import write_model

WORDS = {"rollout.prompts": 3, "rollout.n": 2, "actor.mini_batches": 1, "prm.mini_batch_size": 4}
OF_PRM = {"prm/loss", "prm/grad_norm", "prm/pair_accuracy/before_update", "prime/gate/value"}
OF_PRM |= {"prime/kl/prm", "prime/kl/average"}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    pytest.importorskip("reasoning_gym")
    folder = tmp_path_factory.mktemp("compare") / "start"
    write_model(folder)
    made = SumTask(str(folder), "max_digits=1", 6, train=12, demonstrations=1)
    # An untrained model solves nothing, and a PRM needs both outcomes.
    made.verify = lambda problems, response_BT: (torch.arange(len(problems)) % 2).float()
    return made, folder


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rloo", "distilled"])
def test_the_loop_has_all_metrics_of_its_method(task, method):
    settings = build_settings(method, WORDS | {"actor.lr": 1e-3, "prm.lr": 1e-2})
    metrics = compare_verl.train_in_loop(*task, settings, 0, 3)
    of_both = set(compare_verl.METRICS.values()) - OF_PRM
    assert set(metrics) == (of_both | OF_PRM if method == "distilled" else of_both)
    assert metrics["critic/score/mean"] == 0.5 and 1 <= metrics["response_length/mean"] <= 6
    # Random bytes: log 258 each.
    assert metrics["rollout_corr/training_log_ppl"] == pytest.approx(5.5, abs=0.5)
    assert all(value >= 0 for value in metrics.values()) and metrics["actor/grad_norm"] > 0.01


@pytest.mark.slow
def test_verl_reads_the_prompts_of_the_loop(task, tmp_path):
    made, start = task
    problems = compare_verl.get_problems(made, 1, 3)
    assert problems == made.rows[False][3:6]
    for _ in range(2):
        compare_verl.write_inputs(made, start, tmp_path, problems)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for name, expected in (("train", problems), ("test", made.rows[True])):
        rows = pq.read_table(tmp_path / "data" / f"{name}.parquet").to_pylist()
        prompts = [
            tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True).input_ids
            for row in rows
        ]
        assert prompts == made.prompts(expected)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() == 123_328


def test_the_table_has_means_and_errors_by_method_and_side():
    runs = {"rloo": {"loop": {"0": {"critic/score/mean": 0.2}, "1": {"critic/score/mean": 0.4}}}}
    runs["rloo"]["verl"] = {"0": {"critic/score/mean": 0.25, "actor/grad_norm": 0.5}}
    lines = compare_verl.format_table(runs).splitlines()
    assert lines[0] == "|  | `rloo`, loop | `rloo`, verl |"
    assert "| accuracy of the rollouts | 0.3000 ± 0.1000 | 0.2500 |" in lines
    assert "| gradient norm of the policy | - | 0.5000 |" in lines
