# SPDX-License-Identifier: Apache-2.0
"""``python -m eval.run``: from problems to results."""

import json
import os

import pytest
from small_tasks import ROWS, TASKS, ScriptedBackend, gold_by_prompt, last_message, lines_of, results_of, run, score_of


def test_gold_answers_score_100_percent_with_every_grader(tasks, folder, tmp_path, capsys):
    golds = gold_by_prompt(folder)
    backend = ScriptedBackend(lambda request: golds[last_message(request.prompt)])
    assert run(*tasks, "--output", tmp_path / "out", backend=backend) == 0
    assert backend.closed
    for name in TASKS:
        assert score_of(tmp_path / "out", name, "avg@1") == 1
    assert results_of(tmp_path / "out")["tasks"]["parity"]["choice"] == {
        "accuracy": 1.0,
        "micro_f1": 1.0,
        "macro_f1": 1.0,
    }
    printed = capsys.readouterr().out
    assert "sums       accuracy  100.0 ± 0.0" in printed and "50.0 a model, 40.0 another (+1) on 7 rows" in printed
    assert str(tmp_path / "out" / "results.json") in printed


def test_gold_answers_of_other_problems_are_wrong(tasks, folder, tmp_path):
    golds = gold_by_prompt(folder, shift=1)
    backend = ScriptedBackend(lambda request: golds[last_message(request.prompt)])
    assert run(*tasks, "--output", tmp_path / "out", backend=backend) == 0
    assert score_of(tmp_path / "out", "sums", "avg@1") == 0
    assert score_of(tmp_path / "out", "functions", "avg@1") == 0
    # Two options: even, odd, odd, even ...; every third neighbour has the same.
    assert score_of(tmp_path / "out", "parity", "avg@1") == pytest.approx(1 / 3)


def test_what_a_run_leaves(whole):
    results = results_of(whole)
    assert results["format"] == 1 and results["seed"] == 0
    assert results["model"] == {"backend": "scripted", "model": "scripted"}
    assert {"python", "transformers", "math-verify"} <= set(results["versions"])
    task = results["tasks"]["sums"]
    assert task["grader"] == "math" and task["split"] == "test" and task["prompt"] == "default"
    assert task["decoding"]["name"] == "several" and task["decoding"]["n"] == 4
    assert task["summary"]["problems"] == 12 and set(task["summary"]["groups"]) == {"level"}
    assert set(task["summary"]["scores"]) == {"avg@4", "pass@4", "maj@4"}
    assert task["references"][0]["values"]["a model"] == 50 and task["failed_responses"] == 0
    samples = lines_of(whole / "sums" / "samples.jsonl")
    assert [(row["problem"], row["sample"]) for row in samples] == [
        (row["id"], i) for row in ROWS["sums"] for i in range(4)
    ]
    first = samples[0]
    assert first["prompt"] == [{"role": "user", "content": "0+1?\nBox it."}] and first["gold"] == "1"
    assert first["groups"] == {"level": "1"}
    mean = sum(row["score"] for row in samples) / len(samples)
    assert task["summary"]["scores"]["avg@4"]["value"] == pytest.approx(mean)
    timing = json.loads((whole / "timing.json").read_text())["tasks"]["sums"]
    assert timing["responses"] == 48 and timing["seconds"]["generation"] > 0
    text = (whole / "results.json").read_text() + (whole / "settings.json").read_text()
    assert str(whole) not in text and os.uname().nodename not in text


def test_seeds_are_those_of_the_response_whatever_else_is_asked(tasks, whole, tmp_path):
    out = tmp_path / "out"
    assert run(*tasks, "--decoding", "several", "--n", "2", "--limit", "3", "--output", out) == 0
    seeds = {
        folder: {(row["problem"], row["sample"]): row["seed"] for row in lines_of(folder / "sums" / "responses.jsonl")}
        for folder in (out, whole)
    }
    assert len(seeds[out]) == 6 and seeds[out].items() <= seeds[whole].items()
    assert len(set(seeds[whole].values())) == 48
    other = tmp_path / "other"
    assert run(*tasks, "--decoding", "several", "--limit", "3", "--seed", "1", "--output", other) == 0
    assert {row["seed"] for row in lines_of(other / "sums" / "responses.jsonl")}.isdisjoint(seeds[whole].values())


def test_ks_are_those_of_the_task_or_those_asked_for(tasks, whole, tmp_path):
    out = tmp_path / "out"
    assert run(*tasks, "--decoding", "several", "--n", "3", "--output", out) == 0
    assert list(results_of(out)["tasks"]["sums"]["summary"]["scores"]) == ["avg@3", "pass@3", "maj@3"]
    # Statistics need no other run.
    assert run(*tasks, "--decoding", "several", "--n", "3", "--k", "1,2", "--output", out) == 0
    tasks_found = results_of(out)["tasks"]
    assert list(tasks_found["sums"]["summary"]["scores"]) == ["avg@3", "pass@1", "pass@2", "maj@1", "maj@2"]
    assert list(tasks_found["functions"]["summary"]["scores"]) == ["avg@3", "pass@1", "pass@2"]


def test_what_the_command_line_changes_is_in_the_results(tasks, tmp_path):
    out = tmp_path / "out"
    assert run(*tasks, "--temperature", "0.5", "--n", "2", "--max-new-tokens", "9", "--output", out) == 0
    decoding = results_of(out)["tasks"]["sums"]["decoding"]
    assert decoding["name"] == "paper, changed" and decoding["do_sample"] and decoding["temperature"] == 0.5
    assert decoding["n"] == 2 and decoding["max_new_tokens"] == 9


def test_greedy_is_a_decoding_of_every_task(tasks, tmp_path):
    assert run(*tasks, "--decoding", "greedy", "--output", tmp_path) == 0
    decoding = results_of(tmp_path)["tasks"]["sums"]["decoding"]
    assert decoding["name"] == "greedy" and not decoding["do_sample"] and decoding["max_new_tokens"] == 32


def test_prompts_at_a_time_are_what_the_decoding_says(tasks, tmp_path):
    backend = ScriptedBackend()
    assert run(*tasks, "--prompts-at-a-time", "5", "--output", tmp_path, backend=backend) == 0
    assert backend.together == [5, 5, 2, 5, 4, 4]
    # It is no other decoding.
    assert results_of(tmp_path)["tasks"]["sums"]["decoding"]["name"] == "paper"


def test_truncated_responses_are_judged_and_counted(tasks, tmp_path, capsys):
    backend = ScriptedBackend(lambda request: "\\boxed{1} " + 200 * "x")
    assert run(*tasks, "--output", tmp_path, backend=backend) == 0
    task = results_of(tmp_path)["tasks"]["sums"]
    assert task["summary"]["truncated"] == 1 and task["summary"]["scores"]["avg@1"]["value"] == pytest.approx(1 / 12)
    assert "sums: 100.0 % of the responses were cut off" in capsys.readouterr().out
