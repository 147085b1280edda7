# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""``python -m eval.run``: from problems to results, interrupted anywhere, and one line for whatever is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_tasks import ROWS, TASKS, ScriptedBackend, gold_by_prompt, last_message, run, some_answer, write_tasks

from eval import regrade as regrading
from eval.grade import main as grade_main
from eval.regrade import regrade

ROOT = Path(__file__).resolve().parents[2]
SAME = ("settings.json", "results.json") + tuple(
    f"{name}/{file}.jsonl" for name in TASKS for file in ("responses", "samples", "problems")
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def folder(tasks):
    return Path(tasks[-1])


@pytest.fixture(scope="module")
def whole(tasks, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(*tasks, "--decoding", "several", "--output", out) == 0
    return out


def results_of(out):
    return json.loads((out / "results.json").read_text())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def bytes_of(out):
    return {name: (out / name).read_bytes() for name in SAME}


def score_of(out, task, metric):
    return results_of(out)["tasks"][task]["summary"]["scores"][metric]["value"]


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


# ---- interrupted -----------------------------------------------------------------------------------------------------


def test_a_run_killed_in_the_middle_goes_on_and_leaves_the_same_bytes(tasks, whole, tmp_path):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    command = [sys.executable, str(Path(__file__).with_name("small_tasks.py")), *words]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path = out / "sums" / "responses.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 7:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {(row["problem"], row["sample"]): row for row in lines_of(path)}
    assert 7 <= len(done) < 48 and not (out / "results.json").exists()
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == sum(4 * len(rows) for rows in ROWS.values()) - len(done)
    assert {row["seed"] for row in done.values()}.isdisjoint(seed for _, seed in backend.asked)
    assert bytes_of(out) == bytes_of(whole)


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_was_cut_off_is_dropped_wherever_the_kill_came(tasks, whole, tmp_path, cut):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    with pytest.raises(KeyError):
        run(*words, backend=ScriptedBackend(lambda request: {}[request.key] if "4+5" in str(request) else "#### 1"))
    assert run(*words) in (0, 1)
    for name in ("responses", "samples"):
        path = out / "sums" / f"{name}.jsonl"
        lines = (whole / "sums" / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[5:9]) + lines[2][:-cut])
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len([prompt for prompt, _ in backend.asked if "Box it" in last_message(prompt)]) == 44
    assert (out / "sums" / "samples.jsonl").read_bytes() == (whole / "sums" / "samples.jsonl").read_bytes()


def test_a_finished_run_asks_nothing_and_changes_nothing(tasks, whole):
    before, backend = bytes_of(whole), ScriptedBackend()
    assert run(*tasks, "--decoding", "several", "--output", whole, backend=backend) == 0
    assert backend.asked == [] and bytes_of(whole) == before


def test_a_backend_that_dies_leaves_what_was_finished(tasks, whole, tmp_path, capsys):
    words = [*tasks, "--decoding", "several", "--output", tmp_path / "out"]
    assert run(*words, backend=ScriptedBackend(die_after=60)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "eval.run: the device is gone"
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == 100 - 60
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


def test_failed_responses_are_kept_apart_and_tried_again(tasks, whole, tmp_path, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    down = ScriptedBackend(lambda request: None if request.seed % 3 == 0 else some_answer(request))
    assert run(*words, backend=down) == 1
    failed = lines_of(out / "sums" / "failed.jsonl")
    task = results_of(out)["tasks"]["sums"]
    assert task["failed_responses"] == len(failed) > 0 and failed[0]["detail"] == "the server is down"
    assert task["summary"]["grader_failures"] == 0
    assert (
        len(lines_of(out / "sums" / "responses.jsonl")) == 48 - len(failed) == len(lines_of(out / "sums/samples.jsonl"))
    )
    assert f"sums: {len(failed)} responses FAILED and are in no mean" in capsys.readouterr().out
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == sum(seed % 3 == 0 for _, seed in down.asked)
    assert bytes_of(out) == bytes_of(whole) and not (out / "sums" / "failed.jsonl").exists()


def test_a_server_that_is_down_from_the_start_is_no_score(tasks, tmp_path, capsys):
    assert run(*tasks, "--output", tmp_path / "out", backend=ScriptedBackend(lambda request: None)) == 1
    task = results_of(tmp_path / "out")["tasks"]["parity"]
    assert task["summary"]["scores"] == {"avg@1": None} and task["choice"] is None
    assert "parity     accuracy  -" in capsys.readouterr().out


# ---- other settings, broken files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "backend", "message"),
    [
        (["--seed", "1"], {}, "holds a run with seed 0, now it is 1; choose another --output"),
        (["--limit", "2"], {}, "holds a run with settings.limit null, now it is 2"),
        (["--temperature", "0.5"], {}, "holds a run with settings.changed.temperature null, now it is 0.5"),
        (["--system-prompt", "none"], {}, 'with settings.system_prompt "default", now it is "none"'),
        ([], {"name": "other"}, 'with model.model "scripted", now it is "other"'),
    ],
)
def test_another_run_is_refused_in_the_folder(tasks, whole, capsys, words, backend, message):
    before, asked = bytes_of(whole), ScriptedBackend(**backend)
    assert run(*tasks, "--decoding", "several", "--output", whole, *words, backend=asked) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("eval.run: ") and said.count("\n") == 1
    assert bytes_of(whole) == before and asked.asked == []


def test_other_data_or_another_prompt_are_another_run(folder, tmp_path, capsys):
    mine, out = tmp_path / "mine", tmp_path / "out"
    words = [*write_tasks(mine), "--output", out]
    assert run(*words) == 0
    rows = [{**row, "answer": 7} for row in ROWS["sums"]]
    (mine / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(*words) == 2
    assert "holds a run with tasks.sums.data_sha256" in capsys.readouterr().err
    write_tasks(mine)
    (mine / "sums.yaml").write_text((mine / "sums.yaml").read_text().replace("Box it", "Put it in a box"))
    assert run(*words) == 2
    assert "holds a run with tasks.sums.prompt_sha256" in capsys.readouterr().err


LINE = {
    "problem": "s0",
    "sample": 0,
    "seed": 5,
    "text": "",
    "tokens": 1,
    "prompt_tokens": 1,
    "finish": "stop",
    "detail": "",
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"problem": "s0", "sam', "line 1 is broken (Unterminated string"),
        (b"[]", "line 1 is broken (not an object of problem, sample, seed, text"),
        (json.dumps({**LINE, "tokens": "1"}).encode(), "line 1 is broken (not an object of"),
        (json.dumps({**LINE, "problem": "x"}).encode(), "line 1 belongs to no response of this run (x, 0)"),
        (json.dumps(LINE).encode(), "this run did not make the response to s0 (0)"),
        (json.dumps(LINE).encode() + b"\n" + json.dumps(LINE).encode(), "line 2 is there a second time (s0, 0)"),
    ],
)
def test_a_broken_line_that_was_not_cut_off_stops_the_run(tasks, tmp_path, capsys, line, message):
    out = tmp_path / "out"
    words = [*tasks, "--output", out]
    assert run(*words, backend=ScriptedBackend(die_after=3)) == 2
    path = out / "sums" / "responses.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    before = path.read_bytes()
    capsys.readouterr()
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 2
    said = capsys.readouterr().err
    assert message in said and str(path) in said and said.count("\n") == 1
    assert path.read_bytes() == before and backend.asked == []


@pytest.mark.parametrize("name", ["settings.json", "results.json"])
def test_a_broken_result_file_stops_the_run(tasks, tmp_path, capsys, name):
    words = [*tasks, "--limit", "1", "--output", tmp_path]
    assert run(*words) == 0
    (tmp_path / name).write_text('{"format": ')
    capsys.readouterr()
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert f"{name} is broken" in said and said.count("\n") == 1
    assert (tmp_path / name).read_text() == '{"format": '


def test_two_runs_in_one_folder_at_a_time_are_refused(tasks, tmp_path, capsys):
    inner = []

    def answer(request):
        if not inner:
            inner.append(run(*tasks, "--output", tmp_path))
        return "x"

    assert run(*tasks, "--output", tmp_path, backend=ScriptedBackend(answer)) == 0
    assert inner == [2] and "another process is at work in" in capsys.readouterr().err


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "maths500"], "no task 'maths500'; did you mean math500"),
        (["--tasks", "zzz"], "no task 'zzz'; there are aime, aime2022"),
        (["--tasks", "gsm8k", "--data", "/nowhere"], "get it with: hf download --repo-type dataset openai/gsm8k"),
        (["--k", "2"], "--k 2 is larger than the number of responses per problem, 1; give --n 2"),
        (["--decoding", "recommended"], "sums has no decoding 'recommended'; it has paper, several, greedy"),
        (["--n", "4"], "4 responses per problem are all the same with decoding 'paper' of sums: give --temperature"),
        (["--top-p", "0.9"], "--top-p and --top-k have no effect on decoding 'paper' of sums: give --temperature"),
        (["--temperature", "0", "--top-p", "0.9"], "--temperature 0 is greedy: --top-p and --top-k have no effect"),
        (["--min-new-tokens", "50"], "sums: the shortest response, 50 tokens, is longer than the longest, 32"),
        (["--prompt", "stirct"], "sums has no prompt 'stirct'; it has default, strict"),
        (["--split", "train"], "sums has no split 'train'; it has test"),
        (
            ["--system-prompt", "/nowhere"],
            "--system-prompt must be default, none, actions or a text file",
        ),
        (["--few-shot", "/nowhere"], "--few-shot /nowhere cannot be read"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(tasks, tmp_path, capsys, words, message):
    backend = ScriptedBackend()
    assert run(*tasks, *words, "--output", tmp_path / "out", backend=backend) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("eval.run: ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists() and backend.asked == []


@pytest.mark.parametrize(
    ("backend", "message"),
    [({"template": False}, "has no chat template; give --chat-template"), ({"context": 8}, "leaves no room in the")],
)
def test_what_the_backend_cannot_do_is_said_before_it_is_asked(tasks, tmp_path, capsys, backend, message):
    scripted = ScriptedBackend(**backend)
    assert run(*tasks, "--output", tmp_path, backend=scripted) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and scripted.asked == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "math500"], "--output is needed"),
        (["--output", "x"], "--tasks is needed; --list says which there are"),
        (["--tasks", "a,,b"], "must be names with commas between them"),
        (["--tasks", "a", "--n", "0"], "'0' must be a whole number from 1"),
        (["--tasks", "a", "--top-p", "1.5"], "'1.5' must be above 0 and at most 1"),
        (["--tasks", "a", "--k", "1,x"], "'x' must be a whole number from 1"),
    ],
)
def test_a_command_that_cannot_be_read(capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_tasks_without_data_can_be_left_out(tasks, tmp_path, capsys):
    names = tasks[1] + ",gsm8k"
    words = ["--tasks", names, "--data", tasks[-1], "--output", tmp_path / "out"]
    assert run(*words) == 2
    assert run(*words, "--skip-missing") == 0
    assert "left out: gsm8k: " in capsys.readouterr().out
    assert list(results_of(tmp_path / "out")["tasks"]) == list(TASKS)


# ---- statistics and decoding -----------------------------------------------------------------------------------------


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


# ---- judging again ---------------------------------------------------------------------------------------------------


class Generous:
    """A verifier for which every answer is right."""

    async def averify(self, response, gold, **options):
        from prime_ext.verifiers.verdict import correct

        return correct("7", 0.0)


def test_regrading_needs_no_model_and_changes_only_verdicts(tasks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    assert run(*words) == 0
    before = bytes_of(out)
    results, changed = regrade(out)
    assert changed == dict.fromkeys(TASKS, 0)
    assert results.pop("regraded_with") == results["versions"] and results == json.loads(before["results.json"])
    assert {name: (out / name).read_bytes() for name in SAME if name != "results.json"} == {
        name: content for name, content in before.items() if name != "results.json"
    }
    monkeypatch.setattr(regrading, "make_verifier", lambda grader: Generous())
    monkeypatch.setattr(sys, "argv", ["grade", "--run", str(out)])
    assert grade_main() == 0
    assert "sums: 48 verdicts are not what they were" in capsys.readouterr().out
    assert score_of(out, "sums", "avg@4") == 1 and score_of(out, "functions", "pass@4") == 1
    assert (out / "sums" / "responses.jsonl").read_bytes() == before["sums/responses.jsonl"]
    # The run itself leaves the new verdicts alone, and says with what they were made.
    assert run(*words) == 0
    assert score_of(out, "sums", "avg@4") == 1 and "regraded_with" in results_of(out)


def test_regrading_a_folder_that_is_no_run(tmp_path, monkeypatch, capsys):
    for arguments, message in [
        (["--run", str(tmp_path / "no")], "no is no folder"),
        (["--run", str(tmp_path)], "the folder of a run that has finished a task?"),
    ]:
        monkeypatch.setattr(sys, "argv", ["grade", *arguments])
        assert grade_main() == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    monkeypatch.setattr(sys, "argv", ["grade", "--run", str(tmp_path), "--task", "math"])
    with pytest.raises(SystemExit):
        grade_main()
    assert "--run judges a whole folder; leave out --task" in capsys.readouterr().err
