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
r"""Model stages against a server that speaks OpenAI's protocol: faults, retries, resuming after a kill, reports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scripted_server import Answer, ScriptedServer
from told import rl_row

from data_preprocessing import difficulty, rewrite_choice, rl_data, selection, validate_votes
from data_preprocessing.action_prompt import MATH_SUFFIX
from data_preprocessing.rl_rows import MATH_SCHEMA, RowWriter
from data_preprocessing.validate import main as validate
from prime_ext.files import read_json, write_json_lines

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
ROWS = 12
REPORTS = ("removed.jsonl", "report.json", "report.md")


def words_of(source, out, server, *more):
    backend = ["--backend", "server", "--base-url", server.base_url, "--attempts", "3", "--timeout", "20"]
    return [str(word) for word in ["--input", source, "--output-dir", out, *backend, *more]]


@pytest.fixture
def problems(tmp_path):
    """Rows whose gold answer is their number."""
    path = tmp_path / "in" / "train.parquet"
    path.parent.mkdir()
    with RowWriter(path, MATH_SCHEMA) as writer:
        for number in range(ROWS):
            writer.write(rl_row(f"Problem {number}?", gold=str(number), index=number, suffix=MATH_SUFFIX))
    return path


def number_in(prompt):
    return int(prompt.split("Problem ")[1].split("?")[0])


def right_or_wrong(prompt, payload):
    """Right for even seeds."""
    return Answer(f"So it is \\boxed{{{number_in(prompt) + payload['seed'] % 2}}}.")


def rows_of(folder, name="train"):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in ("train.parquet", *REPORTS)}


# ---- difficulty ----


def test_the_pass_rate_is_the_share_of_right_answers(problems, tmp_path):
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "out", server, "--samples", 4)) == 0
    seeds = {}
    for payload in server.requests:
        seeds.setdefault(number_in(payload["messages"][-1]["content"]), []).append(payload["seed"])
    for number, row in enumerate(rows_of(tmp_path / "out")):
        right = sum(seed % 2 == 0 for seed in seeds[number])
        expected = {"model": "scripted", "samples": 4, "graded": 4, "pass_rate": right / 4}
        assert row["extra_info"] == {"split": "train", "index": number, "difficulty": expected}
        assert len(set(seeds[number])) == 4
    assert server.requests[0]["messages"] == rows_of(problems.parent)[0]["prompt"] or len(server.requests) == 4 * ROWS
    assert validate([str(tmp_path / "out" / "train.parquet")]) == 0


@pytest.mark.parametrize(
    ("pass_rate", "rule"),
    [(0.0, "too_hard"), (0.19, "too_hard"), (0.2, None), (4 / 5, None), (0.81, "too_easy"), (1, "too_easy")],
)
def test_the_ends_of_the_band_belong_to_it(pass_rate, rule):
    assert difficulty.outside(pass_rate, (0.2, 0.8)) == rule
    assert difficulty.outside(pass_rate, None) is None


def test_the_band_removes_rows_and_the_report_says_so(problems, tmp_path):
    def easy_and_hard(prompt, payload):
        number = number_in(prompt)
        if number < 3:
            return Answer(f"\\boxed{{{number}}}")
        return Answer("I give up.") if number < 5 else right_or_wrong(prompt, {"seed": len(server.requests)})

    out = tmp_path / "out"
    with ScriptedServer(easy_and_hard) as server:
        difficulty.main(words_of(problems, out, server, "--samples", 2, "--band", 0.2, 0.8, "--concurrency", 1))
    report = read_json(out / "report.json")
    removed = report["sources"][0]["removed"]
    assert removed["too_easy"] >= 3 and removed["too_hard"] >= 2
    assert report["outputs"] == {"train.parquet": len(rows_of(out))}
    assert report["settings"]["band"] == [0.2, 0.8] and report["settings"]["model"]["model"] == "scripted"
    lines = [json.loads(line) for line in (out / "removed.jsonl").read_text().splitlines()]
    assert {(line["row"], line["rule"]) for line in lines} >= {(1, "too_easy"), (4, "too_hard")}
    assert "# Difficulty" in (out / "report.md").read_text()


# ---- store ----


def test_a_finished_answer_is_never_asked_for_twice(problems, tmp_path):
    answers = ("--answers", tmp_path / "shared.sqlite", "--samples", 2)
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "a", server, *answers)) == 0
        assert len(server.requests) == 2 * ROWS
        assert difficulty.main(words_of(problems, tmp_path / "b", server, *answers, "--chunk-rows", 5)) == 0
        assert len(server.requests) == 2 * ROWS
        # One more sample of each, and nothing else.
        more = (*answers[:2], "--samples", 3)
        assert difficulty.main(words_of(problems, tmp_path / "c", server, *more)) == 0
        assert len(server.requests) == 3 * ROWS
        # Another sampling, another seed: other answers.
        for change in (("--temperature", 0.5), ("--sampling-seed", 1)):
            before = len(server.requests)
            assert difficulty.main(words_of(problems, tmp_path / "d", server, *answers, *change)) == 0
            assert len(server.requests) == before + 2 * ROWS
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("fault", [429, (429, "0"), 503, "cut", "cut_body", "not_json", "no_choices", "no_finish"])
def test_faults_of_the_server_change_nothing(problems, tmp_path, fault):
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "good", server, "--samples", 1)) == 0
    with ScriptedServer(right_or_wrong, faults=[fault, None, fault]) as server:
        assert difficulty.main(words_of(problems, tmp_path / "bad", server, "--samples", 1)) == 0
        assert len(server.requests) == ROWS + 2
    assert bytes_of(tmp_path / "good") == bytes_of(tmp_path / "bad")


def test_what_got_no_answer_is_asked_again_by_the_same_command_and_nothing_else(problems, tmp_path, capsys):
    out, lost = tmp_path / "out", f"Problem 7?{MATH_SUFFIX}"
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "good", server, "--samples", 1)) == 0
    with ScriptedServer(right_or_wrong, faults_of={lost: ["hang"] * 3}) as server:
        words = words_of(problems, out, server, "--samples", 1, "--timeout", 1)
        assert difficulty.main(words) == 2
        assert "1 of 12 rows got no answer" in capsys.readouterr().err
        assert {path.name for path in out.iterdir()} - {"answers.sqlite", ".unfinished"} == set()
        asked = len(server.requests)
        assert difficulty.main(words) == 0
        assert len(server.requests) == asked + 1
    assert bytes_of(out) == bytes_of(tmp_path / "good")


def test_rows_without_an_answer_are_removed_and_listed_if_that_is_asked_for(problems, tmp_path):
    lost = f"Problem 7?{MATH_SUFFIX}"
    with ScriptedServer(right_or_wrong, faults_of={lost: [500] * 9}) as server:
        words = words_of(problems, tmp_path / "out", server, "--samples", 1, "--on-failure", "remove")
        assert difficulty.main(words) == 0
    (line,) = [json.loads(line) for line in (tmp_path / "out" / "removed.jsonl").read_text().splitlines()]
    assert (line["row"], line["rule"]) == (8, "unanswered") and "500" in line["evidence"]
    assert len(rows_of(tmp_path / "out")) == ROWS - 1


def test_a_killed_run_goes_on_where_it_was_and_writes_the_same_bytes(problems, tmp_path):
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "good", server, "--samples", 8)) == 0
    with ScriptedServer(right_or_wrong, seconds=0.1) as server:
        out = tmp_path / "out"
        words = words_of(problems, out, server, "--samples", 8, "--concurrency", 2, "--chunk-rows", 6)
        command = [sys.executable, "-m", "data_preprocessing.difficulty", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 200
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


# ---- choice ----


def test_multiple_choice_goes_from_the_raw_set_to_open_questions(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    words = ["--sources", "math", "--data-dir", FIXTURES, "--output-dir", data, "--workers", "1"]
    assert rl_data.main([str(word) for word in words]) == 0
    (aside,) = [json.loads(line) for line in (data / "choice.jsonl").read_text().splitlines()]
    assert "(A)" in aside["prompt"][-1]["content"]
    rows = [
        rl_row(
            f"A rod of {n} cm is cut in half. A half has (A) {n} cm (B) {n // 2} cm (C) 1 cm",
            "B",
            index=n,
            suffix=MATH_SUFFIX,
        )
        for n in range(10, 40, 2)
    ]
    write_json_lines(tmp_path / "choice.jsonl", rows)

    def says(prompt, payload):
        n = prompt.split("A rod of ")[1].split(" ")[0]
        tries[n] += 1
        if int(n) % 4 == 0 and tries[n] <= 2:
            return Answer("Sure, here it is!")
        if n == "38":
            return Answer("REWRITABLE: no\nREASON: No.\nEND")
        question = f"A rod of {n} cm is cut in half. How long is a half in cm?"
        return Answer(f"REWRITABLE: yes\nREASON: Yes.\nQUESTION:\n{question}\nEND")

    tries = Counter()
    merged = ("--merge", data / "train.parquet", "--tries", 3)
    with ScriptedServer(says, faults=[429, "cut", None, 503]) as server:
        assert rewrite_choice.main(words_of(tmp_path / "choice.jsonl", out, server, *merged)) == 0
    assert all(count == (3 if int(n) % 4 == 0 else 1) for n, count in tries.items())
    by_prompt = {}
    for payload in server.requests:
        by_prompt.setdefault(payload["messages"][-1]["content"], set()).add(payload["seed"])
    # A seed for every attempt.
    assert sorted(len(seeds) for seeds in by_prompt.values()) == [1] * 8 + [3] * 7
    first, then = rows_of(data), rows_of(out)
    assert then[: len(first)] == first
    for row in then[len(first) :]:
        n = row["extra_info"]["index"]
        assert row["prompt"][-1]["content"].startswith(f"A rod of {n} cm is cut in half. How long")
        assert row["reward_model"]["ground_truth"] == f"{n // 2} cm"
    assert [row["extra_info"]["index"] for row in then[len(first) :]] == list(range(10, 38, 2))
    assert read_json(out / "report.json")["sources"][0]["removed"] == {"needs_options": 1}


# ---- votes and selection ----


def test_votes_and_selection_keep_what_a_model_can_solve(problems, tmp_path):
    def judge(prompt, payload):
        number = number_in(prompt)
        if number == 0:
            return Answer("A condition is missing. \\boxed{No solution}")
        if number == 1:
            return Answer(f"\\boxed{{{payload['seed']}}}")
        if number == 2:
            return Answer("\\boxed{99}")
        return Answer(f"\\boxed{{{number}.0}}")

    voted, out = tmp_path / "voted", tmp_path / "selected"
    with ScriptedServer(judge, faults=[(429, "0"), "not_json", "cut"]) as server:
        assert validate_votes.main(words_of(problems, voted, server, "--solutions", 3)) == 0
    votes = rows_of(voted)[3]["extra_info"]["votes"]
    assert votes == [
        {
            "model": "scripted", "solutions": 3, "solvable": 3, "unsolvable": 0, "agreeing": 3, "matching": 3,
            "answer": "3.0", "answer_matches": True,
        }
    ]  # fmt: skip
    assert selection.main(["--input", str(voted / "train.parquet"), "--output-dir", str(out)]) == 0
    assert [row["extra_info"]["index"] for row in rows_of(out)] == list(range(3, ROWS))
    removed = {"unsolvable": 1, "disagreement": 1, "mismatch": 1}
    assert read_json(out / "report.json")["sources"][0]["removed"] == removed
    assert validate([str(out / "train.parquet")]) == 0
    # Without votes nothing is left.
    assert selection.main(["--input", str(problems), "--output-dir", str(tmp_path / "none")]) == 1


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
        assert difficulty.main(words_of(path, tmp_path / "out", server, "--samples", 1)) == 0
        assert difficulty.main(words_of(path, tmp_path / "strict", server, "--samples", 1, "--strict")) == 2
    removed = [json.loads(line) for line in (tmp_path / "out" / "removed.jsonl").read_text().splitlines()]
    assert [line["row"] for line in removed] == [2, 3, 4, 5, 6, 7, 8]
    assert {line["rule"] for line in removed} == {"bad_row"}
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
        words = words_of(problems, tmp_path / "out", server, "--max-new-tokens", 50, *more)
        assert difficulty.main(words) == 2
        assert not server.requests
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_question_that_the_model_does_not_take_is_a_removed_row(problems, tmp_path, monkeypatch):
    from prime_ext.inference.backend import BackendError
    from prime_ext.inference.server import ServerBackend

    def check(self, requests):
        if any("Problem 4?" in request.prompt[-1]["content"] for request in requests):
            raise BackendError("the prompt is too long")

    monkeypatch.setattr(ServerBackend, "check", check)
    with ScriptedServer(right_or_wrong) as server:
        assert difficulty.main(words_of(problems, tmp_path / "out", server, "--samples", 1)) == 0
    assert read_json(tmp_path / "out" / "report.json")["sources"][0]["removed"] == {"refused": 1}
