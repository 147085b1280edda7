# SPDX-License-Identifier: Apache-2.0
r"""Model stages that meet faults: of the server, of the rows, of the user; and the bytes after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from scripted_server import ScriptedServer
from told import ROWS, removed, right_or_wrong, rl_row, rows_of, server_words, write_problems

from data_preprocessing import difficulty
from prime_ext.tasks.action_prompt import MATH_SUFFIX

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ("removed.jsonl", "report.json", "report.md")


@pytest.fixture
def problems(tmp_path):
    return write_problems(tmp_path / "in" / "train.parquet")


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in ("train.parquet", *REPORTS)}


# ---- store ----


def test_a_finished_answer_is_never_asked_for_twice(problems, tmp_path):
    answers = ("--answers", tmp_path / "shared.sqlite", "--samples", 2)
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(server_words(problems, tmp_path / "a", server, *answers)) == 0
        assert len(server.requests) == 2 * ROWS
        assert difficulty.main(server_words(problems, tmp_path / "b", server, *answers, "--chunk-rows", 5)) == 0
        assert len(server.requests) == 2 * ROWS
        # One more sample of each, and nothing else.
        more = (*answers[:2], "--samples", 3)
        assert difficulty.main(server_words(problems, tmp_path / "c", server, *more)) == 0
        assert len(server.requests) == 3 * ROWS
        # Another sampling, another seed: other answers.
        for change in (("--temperature", 0.5), ("--sampling-seed", 1)):
            before = len(server.requests)
            assert difficulty.main(server_words(problems, tmp_path / "d", server, *answers, *change)) == 0
            assert len(server.requests) == before + 2 * ROWS
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("fault", [429, (429, "0"), 503, "cut", "cut_body", "not_json", "no_choices", "no_finish"])
def test_faults_of_the_server_change_nothing(problems, tmp_path, fault):
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(server_words(problems, tmp_path / "good", server, "--samples", 1)) == 0
    with ScriptedServer(right_or_wrong, faults=[fault, None, fault]) as server:
        assert difficulty.main(server_words(problems, tmp_path / "bad", server, "--samples", 1)) == 0
        assert len(server.requests) == ROWS + 2
    assert bytes_of(tmp_path / "good") == bytes_of(tmp_path / "bad")


@pytest.mark.slow
def test_what_got_no_answer_is_asked_again_by_the_same_command_and_nothing_else(problems, tmp_path, capsys):
    out, lost = tmp_path / "out", f"Problem 7?{MATH_SUFFIX}"
    with ScriptedServer(right_or_wrong, faults_of={lost: ["hang"] * 3}) as server:
        words = server_words(problems, out, server, "--samples", 1, "--timeout", 5)
        assert difficulty.main(words) == 2
        assert "1 of 12 rows got no answer" in capsys.readouterr().err
        assert {path.name for path in out.iterdir()} - {"answers.sqlite", ".unfinished"} == set()
        asked = len(server.requests)
        assert difficulty.main(words) == 0
        assert len(server.requests) == asked + 1 and len(rows_of(out)) == ROWS


def test_rows_without_an_answer_are_removed_and_listed_if_that_is_asked_for(problems, tmp_path):
    lost = f"Problem 7?{MATH_SUFFIX}"
    with ScriptedServer(right_or_wrong, faults_of={lost: [500] * 9}) as server:
        words = server_words(problems, tmp_path / "out", server, "--samples", 1, "--on-failure", "remove")
        assert difficulty.main(words) == 0
    (line,) = removed(tmp_path / "out")
    assert (line["row"], line["rule"]) == (8, "unanswered") and "500" in line["evidence"]
    assert len(rows_of(tmp_path / "out")) == ROWS - 1


def test_a_killed_run_goes_on_where_it_was_and_writes_the_same_bytes(problems, tmp_path):
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(server_words(problems, tmp_path / "good", server, "--samples", 8)) == 0
    with ScriptedServer(right_or_wrong, seconds=0.2) as server:
        out = tmp_path / "out"
        words = server_words(problems, out, server, "--samples", 8, "--concurrency", 2, "--chunk-rows", 6)
        command = [sys.executable, "-m", "data_preprocessing.difficulty", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 600
        while len(server.requests) < 60 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (out / "train.parquet").exists() and not (out / "report.json").exists()
        server.seconds = 0
        before = len(server.requests)
        assert difficulty.main(words) == 0
        # What came in before the last second was kept.
        assert len(server.requests) - before < 8 * ROWS - 20
    times = Counter((payload["messages"][-1]["content"], payload["seed"]) for payload in server.requests)
    assert len(times) == 8 * ROWS and max(times.values()) <= 2
    assert bytes_of(out) == bytes_of(tmp_path / "good")
    assert not (out / ".unfinished").exists()


# ---- bad input ----


def test_bad_rows_are_listed_and_fatal_only_if_asked_for(tmp_path, capsys):
    good = rl_row("Problem 1?", gold="1")
    bad = [{"data_source": "x"}, {**good, "prompt": "text"}, {**good, "prompt": []}, {**good, "extra_info": None}, [1]]
    lines = [json.dumps(row) for row in (good, *bad)] + [
        "{broken",
        json.dumps(good).replace("Problem", "Problem\\ud800"),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(server_words(path, tmp_path / "out", server, "--samples", 1)) == 0
        assert difficulty.main(server_words(path, tmp_path / "strict", server, "--samples", 1, "--strict")) == 2
    bad_rows = removed(tmp_path / "out")
    assert [line["row"] for line in bad_rows] == [2, 3, 4, 5, 6, 7, 8]
    assert {line["rule"] for line in bad_rows} == {"bad_row"}
    assert "rows.jsonl row 2: no column prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--samples", 0), "--samples must be at least 1"),
        (("--band", 0.8, 0.2), "--band must be two numbers from 0 to 1"),
        (("--temperature", -1), "--temperature must be at least 0"),
        (("--chunk-rows", 0), "--chunk-rows must be at least 1"),
        (("--model", "other"), "does not serve 'other'"),
        (("--answers", "IN"), "is no file of answers"),
        (("--output-dir", "IN/.."), "is an input and would be replaced"),
        (("--max-new-tokens", 100), "takes none of"),
        (("--input", "missing.parquet"), "missing.parquet"),
    ],
)
def test_mistakes_are_one_line(problems, tmp_path, capsys, more, message):
    more = [str(word).replace("IN/..", str(problems.parent)).replace("IN", str(problems)) for word in more]
    with ScriptedServer(right_or_wrong, max_model_len=100) as server:
        words = server_words(problems, tmp_path / "out", server, "--max-new-tokens", 50, *more)
        assert difficulty.main(words) == 2
        assert not server.requests
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
