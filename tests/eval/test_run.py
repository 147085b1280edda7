# SPDX-License-Identifier: Apache-2.0
"""``python -m eval.run``: results, interruptions anywhere, regrading, mistakes in one line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_tasks
from small_tasks import (
    ROWS,
    TASKS,
    ScriptedBackend,
    get_bytes,
    get_lines,
    get_results,
    get_score,
    gold_by_prompt,
    last_message,
    run,
    some_answer,
    write_tasks,
)

from eval import grade
from eval.evaluation_plan import choose_decoding, choose_tasks
from eval.report import write_report
from eval.run import main
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.utils.files import write_json_lines
from prime_ext.verifiers import sources
from prime_ext.verifiers.verdict import correct

# ---- runs ----


@pytest.mark.parametrize("shift", [0, 1])
def test_gold_answers_score_100_percent_and_shifted_ones_do_not(
    tasks, tmp_path, capsys, monkeypatch, shift
):
    published = {
        "metric": "accuracy",
        "source": "x",
        "values": {"a": 50.0, "b": 40.0, "c": 30.0},
        "rows": 7,
    }
    monkeypatch.setattr("eval.run.read_references", lambda task: [published])
    golds = gold_by_prompt(tasks, shift)
    backend = ScriptedBackend(lambda request: golds[last_message(request.prompt)])
    assert run(*tasks, "--output", tmp_path / "out", backend=backend) == 0
    assert backend.closed
    # Of the two options, even, odd, odd, even ..., every third neighbor has the same.
    scores = (
        {"sums": 0.0, "parity": pytest.approx(1 / 3), "functions": 0.0}
        if shift
        else dict.fromkeys(TASKS, 1.0)
    )
    assert {name: get_score(tmp_path / "out", name, "avg@1") for name in TASKS} == scores
    if not shift:
        perfect = {"accuracy": 1.0, "micro_f1": 1.0, "macro_f1": 1.0}
        assert get_results(tmp_path / "out")["tasks"]["parity"]["choice"] == perfect
        printed = capsys.readouterr().out
        assert "100.0 ± 0.0" in printed and "50.0 (a)" in printed


def test_what_a_run_leaves(whole):
    results = get_results(whole)
    assert results["model"] == {"backend": "scripted", "model": "scripted"} and results["seed"] == 0
    assert {"python", "transformers", "mpmath"} <= set(results["versions"])
    task = results["tasks"]["sums"]
    expected = {"grader": "math", "split": "test", "prompt": "default", "failed_responses": 0}
    assert expected.items() <= task.items() and set(task["summary"]["groups"]) == {"level"}
    samples = get_lines(whole / "sums" / "samples.jsonl")
    keys = [(row["id"], sample) for row in ROWS["sums"] for sample in range(4)]
    assert [(row["problem"], row["sample"]) for row in samples] == keys
    shown = {
        "prompt": [{"role": "user", "content": "0+1?\nBox it."}],
        "gold": "1",
        "groups": {"level": "1"},
    }
    assert shown.items() <= samples[0].items()
    mean = sum(row["score"] for row in samples) / len(samples)
    assert task["summary"]["scores"]["avg@4"]["value"] == pytest.approx(mean)
    timing = json.loads((whole / "timing.json").read_text())["tasks"]["sums"]
    assert timing["responses"] == 48 and timing["seconds"]["generation"] > 0
    text = (whole / "results.json").read_text() + (whole / "settings.json").read_text()
    assert str(whole) not in text and os.uname().nodename not in text


def test_seeds_are_those_of_the_response_whatever_else_is_asked(tasks, whole, tmp_path):
    def get_seeds(folder):
        rows = get_lines(folder / "sums" / "responses.jsonl")
        return {(row["problem"], row["sample"]): row["seed"] for row in rows}

    words = [*tasks, "--decoding", "several", "--limit", "3"]
    assert run(*words, "--n", "2", "--output", tmp_path / "fewer") == 0
    fewer = get_seeds(tmp_path / "fewer")
    all_of_them = get_seeds(whole)
    assert (
        len(fewer) == 6
        and fewer.items() <= all_of_them.items()
        and len(set(all_of_them.values())) == 48
    )
    assert run(*words, "--seed", "1", "--output", tmp_path / "other") == 0
    assert set(get_seeds(tmp_path / "other").values()).isdisjoint(all_of_them.values())


def test_what_the_command_line_changes_is_in_the_results(tasks, tmp_path):
    words = [
        *tasks,
        "--temperature",
        "0.5",
        "--n",
        "3",
        "--max-new-tokens",
        "9",
        "--output",
        tmp_path,
    ]
    assert run(*words) == 0
    result = get_results(tmp_path)["tasks"]["sums"]
    changed = {
        "name": "paper, changed",
        "do_sample": True,
        "temperature": 0.5,
        "n": 3,
        "max_new_tokens": 9,
    }
    assert changed.items() <= result["decoding"].items()
    assert list(result["summary"]["scores"]) == ["avg@3", "pass@3", "maj@3"]
    name, decoding = choose_decoding(load_task("math500"), "greedy", {"temperature": 0.5})
    assert (name, decoding.do_sample) == ("sampled, changed", True)
    # Statistics need no other run.
    assert run(*words, "--k", "1,2") == 0
    results = get_results(tmp_path)["tasks"]
    assert list(results["sums"]["summary"]["scores"]) == [
        "avg@3",
        "pass@1",
        "pass@2",
        "maj@1",
        "maj@2",
    ]
    assert list(results["functions"]["summary"]["scores"]) == ["avg@3", "pass@1", "pass@2"]


def test_truncated_responses_are_judged_and_counted(tasks, tmp_path):
    backend = ScriptedBackend(lambda request: "\\boxed{1} " + 200 * "x")
    assert run(*tasks, "--output", tmp_path, backend=backend) == 0
    task = get_results(tmp_path)["tasks"]["sums"]
    assert task["summary"]["truncated"] == 1 and task["summary"]["scores"]["avg@1"][
        "value"
    ] == pytest.approx(1 / 12)


@pytest.mark.parametrize(
    ("words", "backend", "message"),
    [
        (["--tasks", "maths500"], {}, "no task 'maths500'; did you mean math500"),
        (["--tasks", "gsm8k", "--data", "/nowhere"], {},
         "get it with: hf download --repo-type dataset openai/gsm8k"),
        (["--k", "2"], {},
         "--k 2 is larger than the number of responses per problem, 1; give --n 2"),
        (["--decoding", "recommended"], {},
         "sums has no decoding 'recommended'; it has paper, several, greedy"),
        (["--n", "4"], {}, "are all the same with decoding 'paper' of sums: give --temperature"),
        (["--top-p", "0.9"], {}, "--top-p and --top-k have no effect on decoding 'paper' of sums"),
        (["--temperature", "0", "--top-k", "5"], {}, "--temperature 0 is greedy"),
        (["--min-new-tokens", "50"], {},
         "sums: the shortest response, 50 tokens, is longer than the longest, 32"),
        (["--prompt", "stirct"], {}, "sums has no prompt 'stirct'; it has default, strict"),
        (["--split", "train"], {}, "sums: no split 'train'; it has test"),
        (["--system-prompt", "/nowhere"], {},
         "--system-prompt must be default, actions, none or a text file"),
        ([], {"template": False}, "has no chat template; use a raw"),
        ([], {"context": 8}, "leaves no room in the"),
    ],
)  # fmt: skip
def test_impossible_settings_fail_in_one_line_before_any_request(
    tasks, tmp_path, capsys, words, backend, message
):
    scripted = ScriptedBackend(**backend)
    assert run(*tasks, *words, "--output", tmp_path / "out", backend=scripted) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("eval.run: ") and error.count("\n") == 1
    assert not (tmp_path / "out" / "results.json").exists() and scripted.asked == []


def test_tasks_without_data_can_be_left_out(tasks, tmp_path, capsys):
    words = ["--tasks", f"{tasks[1]},gsm8k", "--data", tasks[-1], "--output", tmp_path]
    assert run(*words) == 2 and run(*words, "--skip-missing") == 0
    assert "left out: gsm8k: " in capsys.readouterr().out
    assert list(get_results(tmp_path)["tasks"]) == list(TASKS)


def test_a_group_has_no_problem_twice():
    math = [task.name for task in choose_tasks(["math"])]
    assert (
        "aime" in math and "math500" in math and "aime2024" not in math and "humaneval" not in math
    )
    assert [task.name for task in choose_tasks(["math", "aime2024", "math500"])] == [
        *math,
        "aime2024",
    ]


def test_large_tests_are_recorded_by_hash_and_not_judged_again(tmp_path, monkeypatch):
    write_tasks(tmp_path)
    row = {**ROWS["functions"][0], "test_list": [f"assert add0({n}) == {n}" for n in range(1000)]}
    (tmp_path / "functions.jsonl").write_text(json.dumps(row) + "\n")
    words = (
        "--tasks",
        tmp_path / "functions.yaml",
        "--data",
        tmp_path,
        "--output",
        tmp_path / "out",
    )
    backend = ScriptedBackend(lambda request: "```python\ndef add0(x):\n    return x\n```")
    assert run(*words, backend=backend) == 0
    before = (tmp_path / "out" / "functions" / "samples.jsonl").read_bytes()
    (sample,) = map(json.loads, before.splitlines())
    assert sample["gold"].startswith("sha256:") and sample["score"] == 1
    monkeypatch.setattr("asyncio.run", lambda _: pytest.fail("judged anew"))
    assert run(*words, backend=backend) == 0
    assert (tmp_path / "out" / "functions" / "samples.jsonl").read_bytes() == before


def test_all_tasks_are_listed_without_a_model(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert (
        all(name in listed for name in list_task_names())
        and "decodings paper, recommended" in listed
    )


# ---- interrupted runs, other folders, new verdicts ----


ROOT = Path(__file__).resolve().parents[2]


def test_a_killed_run_resumes_and_leaves_the_same_bytes(tasks, whole, tmp_path):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", str(out)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")]),
    }
    command = [sys.executable, small_tasks.__file__, *words]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    path = out / "sums" / "responses.jsonl"
    deadline = time.monotonic() + 600
    while not path.exists() or path.read_bytes().count(b"\n") < 7:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {(row["problem"], row["sample"]): row for row in get_lines(path)}
    assert 7 <= len(done) < 48 and not (out / "results.json").exists()
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == sum(4 * len(rows) for rows in ROWS.values()) - len(done)
    assert {row["seed"] for row in done.values()}.isdisjoint(seed for _, seed in backend.asked)
    assert get_bytes(out) == get_bytes(whole)
    # A finished run asks nothing.
    again = ScriptedBackend()
    assert (
        run(*words, backend=again) == 0 and again.asked == [] and get_bytes(out) == get_bytes(whole)
    )


def test_failed_responses_are_kept_apart_and_tried_again(tasks, whole, tmp_path, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    down = ScriptedBackend(lambda request: None if request.seed % 3 == 0 else some_answer(request))
    assert run(*words, backend=down) == 1
    failed = get_lines(out / "sums" / "failed.jsonl")
    task = get_results(out)["tasks"]["sums"]
    assert (
        task["failed_responses"] == len(failed) > 0 and failed[0]["detail"] == "the server is down"
    )
    assert len(get_lines(out / "sums" / "samples.jsonl")) == 48 - len(failed)
    assert "responses FAILED and are in no mean" in capsys.readouterr().out
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == sum(seed % 3 == 0 for _, seed in down.asked)
    assert get_bytes(out) == get_bytes(whole) and not (out / "sums" / "failed.jsonl").exists()


def test_a_server_that_is_always_down_gives_no_score(tasks, tmp_path, capsys):
    assert (
        run(*tasks, "--output", tmp_path / "out", backend=ScriptedBackend(lambda request: None))
        == 1
    )
    task = get_results(tmp_path / "out")["tasks"]["parity"]
    assert task["summary"]["scores"] == {"avg@1": None} and task["choice"] is None
    assert re.search("Parity +– +–", capsys.readouterr().out)
    (tmp_path / "out" / "amc").mkdir()
    (tmp_path / "out" / "amc" / "responses.jsonl").write_text("")
    report = write_report(tmp_path / "out").read_text()
    assert (
        "| avg@1 | – | – | 0 |" in report and "Not finished, and not in this report: amc." in report
    )


def test_other_data_or_another_prompt_are_another_run(tmp_path, capsys):
    words = [*write_tasks(tmp_path), "--output", tmp_path / "out"]
    assert run(*words) == 0
    for name, old, new, key in (
        ("sums.yaml", "Box it", "Put it in a box", "prompt_sha256"),
        ("sums.jsonl", '"answer": 1,', '"answer": 7,', "data_sha256"),
    ):
        write_tasks(tmp_path)
        (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new, 1))
        assert run(*words) == 2
        assert f"holds a run with tasks.sums.{key}" in capsys.readouterr().err
    write_tasks(tmp_path)
    before = get_bytes(tmp_path / "out")
    other = ScriptedBackend(name="other")
    for more, backend, message in (
        (
            ["--seed", "1"],
            None,
            "eval.run: .* holds a run with seed 0, now it is 1; choose another --output\n",
        ),
        (["--limit", "2"], None, "holds a run with settings.limit null, now it is 2"),
        ([], other, 'with model.model "scripted", now it is "other"'),
    ):
        assert run(*words, *more, backend=backend) == 2
        assert re.search(message, capsys.readouterr().err)
    assert get_bytes(tmp_path / "out") == before and other.asked == []


class Generous:
    """A verifier for which every answer is right."""

    async def averify(self, response, gold, **options):
        return correct("7", 0.0)


def test_regrading_needs_no_model_and_changes_only_verdicts(tasks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    assert run(*words) == 0
    before = get_bytes(out)
    results, changed = grade.regrade(out)
    assert changed == dict.fromkeys(TASKS, 0)
    assert results.pop("regraded_with") == results["versions"] and results == json.loads(
        before["results.json"]
    )
    assert get_bytes(out) | {"results.json": b""} == before | {"results.json": b""}
    monkeypatch.setattr(grade, "make_verifier", lambda grader: Generous())
    assert grade.main(["--run", str(out)]) == 0
    assert "sums: 48 verdicts changed" in capsys.readouterr().out
    assert get_score(out, "sums", "avg@4") == 1 and get_score(out, "functions", "pass@4") == 1
    assert (out / "sums" / "responses.jsonl").read_bytes() == before["sums/responses.jsonl"]
    # The run itself leaves the new verdicts alone, and says with what they were made.
    assert run(*words) == 0
    assert get_score(out, "sums", "avg@4") == 1 and "regraded_with" in get_results(out)


def test_regrading_keeps_the_k_of_the_run(tasks, tmp_path):
    words = [*tasks, "--decoding", "several", "--k", "3", "--output", tmp_path / "out"]
    assert run(*words) == 0
    before = get_results(tmp_path / "out")["tasks"]
    results, _ = grade.regrade(tmp_path / "out")
    assert results["tasks"] == before
    assert list(before["sums"]["summary"]["scores"]) == ["avg@4", "pass@3", "maj@3"]


def test_regrading_refuses_missing_runs_and_gold_answers_of_other_types(whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    path = out / "sums" / "problems.jsonl"
    write_json_lines(
        path, [json.loads(line) | {"gold": None} for line in path.read_text().splitlines()]
    )
    for folder, message in (
        (out, "problems.jsonl problem 1 has the gold answer None; it must hold"),
        (tmp_path / "no", "no is not a folder"),
        (tmp_path, "give the --output of eval.run"),
    ):
        assert grade.main(["--run", str(folder)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


OWN_VERIFIER = """\
from prime_ext import extend
from prime_ext.verifiers.verdict import correct, wrong

@extend.verifier("short", "my_data/*")
class Short:
    async def averify(self, response, gold):
        return (correct if len(response) < int(gold) else wrong)(response, 0.0)
"""


def test_a_verifier_of_the_users_judges_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "judge_by_length.py").write_text(OWN_VERIFIER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    monkeypatch.setitem(sources.TASKS, "short", None)  # and so gone after the test
    del sources.TASKS["short"]
    write_tasks(tmp_path)
    mine = small_tasks.TASKS["sums"].replace("data_source: math500", "data_source: my_data/sums")
    mine = mine.replace("accuracy, avg@4, pass@4, maj@4", "accuracy")
    (tmp_path / "mine.yaml").write_text(f"name: mine\n{mine}")
    words = ["--tasks", tmp_path / "mine.yaml", "--data", tmp_path, "--output", tmp_path / "out"]
    modules = ["--modules", "judge_by_length"]
    assert run(*words, *modules, backend=ScriptedBackend(lambda request: "1234567890")) == 0
    # Gold answers are 1, 3, ... 23.
    assert get_score(tmp_path / "out", "mine", "avg@1") == pytest.approx(7 / 12)
    assert get_results(tmp_path / "out")["tasks"]["mine"]["grader"] == "short"
    assert grade.main(["--run", str(tmp_path / "out"), *modules]) == 0
    assert run(*words, "--modules", "no_such_module") == 2
    assert "modules: no_such_module cannot be imported" in capsys.readouterr().err
