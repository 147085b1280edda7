# SPDX-License-Identifier: Apache-2.0
"""Runs that were interrupted, anywhere, folders that hold something else, and new verdicts on old responses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_tasks
from small_tasks import ROWS, TASKS, ScriptedBackend, bytes_of, lines_of, results_of, run, score_of

from eval import grade
from prime_ext.verifiers.verdict import correct

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_killed_in_the_middle_goes_on_and_leaves_the_same_bytes(tasks, whole, tmp_path):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    command = [sys.executable, small_tasks.__file__, *words]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path = out / "sums" / "responses.jsonl"
    deadline = time.monotonic() + 600
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
    # A finished run asks nothing.
    again = ScriptedBackend()
    assert run(*words, backend=again) == 0 and again.asked == [] and bytes_of(out) == bytes_of(whole)


def test_failed_responses_are_kept_apart_and_tried_again(tasks, whole, tmp_path, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    down = ScriptedBackend(lambda request: None if request.seed % 3 == 0 else small_tasks.some_answer(request))
    assert run(*words, backend=down) == 1
    failed = lines_of(out / "sums" / "failed.jsonl")
    task = results_of(out)["tasks"]["sums"]
    assert task["failed_responses"] == len(failed) > 0 and failed[0]["detail"] == "the server is down"
    assert len(lines_of(out / "sums" / "samples.jsonl")) == 48 - len(failed)
    assert "responses FAILED and are in no mean" in capsys.readouterr().out
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 0
    assert len(backend.asked) == sum(seed % 3 == 0 for _, seed in down.asked)
    assert bytes_of(out) == bytes_of(whole) and not (out / "sums" / "failed.jsonl").exists()


def test_a_server_that_is_down_from_the_start_is_no_score(tasks, tmp_path, capsys):
    assert run(*tasks, "--output", tmp_path / "out", backend=ScriptedBackend(lambda request: None)) == 1
    task = results_of(tmp_path / "out")["tasks"]["parity"]
    assert task["summary"]["scores"] == {"avg@1": None} and task["choice"] is None
    assert re.search("Parity +– +–", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "backend", "message"),
    [
        (["--seed", "1"], {}, "holds a run with seed 0, now it is 1; choose another --output"),
        (["--limit", "2"], {}, "holds a run with settings.limit null, now it is 2"),
        ([], {"name": "other"}, 'with model.model "scripted", now it is "other"'),
    ],
)
def test_another_run_is_refused_in_the_folder(tasks, whole, capsys, words, backend, message):
    before, asked = bytes_of(whole), ScriptedBackend(**backend)
    assert run(*tasks, "--decoding", "several", "--output", whole, *words, backend=asked) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("eval.run: ") and said.count("\n") == 1
    assert bytes_of(whole) == before and asked.asked == []


@pytest.mark.parametrize(
    ("file", "old", "new", "key"),
    [
        ("sums.jsonl", '"answer": 1,', '"answer": 7,', "data_sha256"),
        ("sums.yaml", "Box it", "Put it in a box", "prompt_sha256"),
    ],
)
def test_other_data_or_another_prompt_are_another_run(tmp_path, capsys, file, old, new, key):
    words = [*small_tasks.write_tasks(tmp_path), "--output", tmp_path / "out"]
    assert run(*words) == 0
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(old, new, 1))
    assert run(*words) == 2
    assert f"holds a run with tasks.sums.{key}" in capsys.readouterr().err


def test_a_broken_line_that_was_not_cut_off_stops_the_run(tasks, tmp_path, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--output", out]
    assert run(*words, backend=ScriptedBackend(die_after=3)) == 2
    path = out / "sums" / "responses.jsonl"
    path.write_bytes(b'{"problem": "s0", "sam\n' + path.read_bytes())
    before = path.read_bytes()
    assert capsys.readouterr().err.splitlines()[-1] == "eval.run: the device is gone"
    backend = ScriptedBackend()
    assert run(*words, backend=backend) == 2
    said = capsys.readouterr().err
    assert f"{path} line 1 is broken or half-written: Unterminated string" in said and said.count("\n") == 1
    assert path.read_bytes() == before and backend.asked == []


def test_two_runs_in_one_folder_at_a_time_are_refused(tasks, tmp_path, capsys):
    inner = []

    def answer(request):
        if not inner:
            inner.append(run(*tasks, "--output", tmp_path))
        return "x"

    assert run(*tasks, "--output", tmp_path, backend=ScriptedBackend(answer)) == 0
    assert inner == [2] and "another process is at work in" in capsys.readouterr().err


class Generous:
    """A verifier for which every answer is right."""

    async def averify(self, response, gold, **options):
        return correct("7", 0.0)


def test_regrading_needs_no_model_and_changes_only_verdicts(tasks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    assert run(*words) == 0
    before = bytes_of(out)
    results, changed = grade.regrade(out)
    assert changed == dict.fromkeys(TASKS, 0)
    assert results.pop("regraded_with") == results["versions"] and results == json.loads(before["results.json"])
    assert bytes_of(out) | {"results.json": b""} == before | {"results.json": b""}
    monkeypatch.setattr(grade, "make_verifier", lambda grader: Generous())
    assert grade.main(["--run", str(out)]) == 0
    assert "sums: 48 verdicts are not what they were" in capsys.readouterr().out
    assert score_of(out, "sums", "avg@4") == 1 and score_of(out, "functions", "pass@4") == 1
    assert (out / "sums" / "responses.jsonl").read_bytes() == before["sums/responses.jsonl"]
    # The run itself leaves the new verdicts alone, and says with what they were made.
    assert run(*words) == 0
    assert score_of(out, "sums", "avg@4") == 1 and "regraded_with" in results_of(out)


@pytest.mark.parametrize(("name", "message"), [("no", "no is not a folder"), ("", "give the --output of eval.run")])
def test_regrading_a_folder_that_is_no_run(tmp_path, capsys, name, message):
    assert grade.main(["--run", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
