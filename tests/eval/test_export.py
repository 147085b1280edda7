# SPDX-License-Identifier: Apache-2.0
"""Exports have the shape that readers of lm-evaluation-harness expect, and say nothing that the run did not."""

import hashlib
import json
import statistics

import pytest
from eval_runs import make_run

from eval.export import main


def export(run, output, *more):
    return main([str(run), "--format", "lm-eval", "--output", str(output), *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")

    def change(row):
        if row["problem"] == "math500/002":
            row.update(score=None, verdict="error", grader_failure=True)
        if row["problem"] == "math500/003":
            row["response"] = "\ud800 half"

    run = make_run(
        folder / "run", ["math500"], decoding="recommended", n=4, ks=(4,), change=change, failed=[("math500/001", 2)]
    )
    assert export(run, folder / "out" / "results_first_try.json") == 0
    return run, folder / "out"


def test_results(made):
    run, out = made
    own = json.loads((run / "results.json").read_text())["tasks"]["math500"]
    told = json.loads((out / "results_first_try.json").read_text())
    expected = {"name": "math500", "alias": "math500", "sample_len": 12}
    for name, metric in (("avg@4", "acc"), ("pass@4", "pass@4"), ("maj@4", "maj@4")):
        score = own["summary"]["scores"][name]
        expected |= {f"{metric},none": score["value"], f"{metric}_stderr,none": score["standard_error"]}
    assert told["results"] == {"math500": expected}
    assert told["higher_is_better"] == {"math500": {"acc": True, "pass@4": True, "maj@4": True}}
    assert told["n-samples"] == {"math500": {"original": 500, "effective": 12}}
    assert told["versions"] == {"math500": own["data_sha256"][:12]}
    generation = told["configs"]["math500"]["generation_kwargs"]
    assert generation["temperature"] == 0.3 and generation["max_gen_toks"] == 8192 and generation["until"] == []
    assert told["configs"]["math500"]["repeats"] == 4 and told["config"]["random_seed"] == 0
    assert told["config"]["model_args"]["model"] == told["model_name"] == "some/model"
    assert told["config"]["model_revision"] == "abc123" and told["model_name_sanitized"] == "some__model"
    assert not {"date", "git_hash", "lm_eval_version", "n-shot", "pretty_env_info"} & set(told)


def test_samples(made):
    run, out = made
    # The harness reads the name of the task between the first and the last underline.
    path = out / "samples_math500_first-try.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in (run / "math500" / "samples.jsonl").read_text().splitlines()]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    assert [line["doc_id"] for line in told] == list(range(12))
    for line, problem in zip(told, problems, strict=True):
        own = [row for row in rows if row["problem"] == problem]
        assert line["doc"] == {"problem": problem, **own[0]["groups"]} and line["target"] == own[0]["gold"]
        assert line["resps"] == [[row["response"] for row in own]]
        assert line["filtered_resps"] == [row["extracted"] for row in own] and line["filter"] == "none"
        prompt = line["arguments"]["gen_args_0"]["arg_0"]
        assert json.loads(prompt) == own[0]["prompt"]
        assert line["prompt_hash"] == hashlib.sha256(prompt.encode()).hexdigest()
        if problem == "math500/002":
            assert line["metrics"] == [] and "acc" not in line
        else:
            assert line["metrics"] == ["acc"] and line["acc"] == statistics.fmean(row["score"] for row in own)
    assert len(told[1]["resps"][0]) == 3
    hashes = "".join(line[key] for line in told for key in ("doc_hash", "prompt_hash", "target_hash"))
    results = json.loads((out / "results_first_try.json").read_text())
    assert results["task_hashes"] == {"math500": hashlib.sha256(hashes.encode()).hexdigest()}


def test_f1_of_choice_has_no_error(tmp_path):
    run = make_run(tmp_path / "run", ["qqa"], decoding="greedy")
    assert export(run, tmp_path / "x.json") == 0
    told = json.loads((tmp_path / "x.json").read_text())["results"]["qqa"]
    choice = json.loads((run / "results.json").read_text())["tasks"]["qqa"]["choice"]
    assert told["macro_f1,none"] == choice["macro_f1"] and told["macro_f1_stderr,none"] == "N/A"
    assert (tmp_path / "samples_qqa_x.jsonl").exists()


def test_mistakes_are_one_line_and_nothing_is_overwritten(made, tmp_path, capsys):
    run, out = made
    kept = (run / "results.json").read_bytes()
    old = tmp_path / "old.json"
    old.write_text("mine")
    for output, more, message in (
        (run / "results.json", ["--overwrite"], "must not be the run's own results.json"),
        (tmp_path / "out.txt", [], "must be a file that ends in .json"),
        (old, [], "exists already; --overwrite replaces it"),
    ):
        assert export(run, output, *more) == 2
        error = capsys.readouterr().err
        assert message in error and error.startswith("export: ") and error.count("\n") == 1
    assert old.read_text() == "mine" and (run / "results.json").read_bytes() == kept
    assert export(tmp_path, tmp_path / "new.json") == 2
    assert "has no results.json" in capsys.readouterr().err
    assert export(run, old, "--overwrite") == 0 and json.loads(old.read_text())["results"]
