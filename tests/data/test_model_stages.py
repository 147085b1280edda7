# SPDX-License-Identifier: Apache-2.0
"""Effects of model stages on rows, with a server of OpenAI's protocol that fails now and then."""

import pytest
from scripted_server import Answer, ScriptedServer
from tiny_llama import save_llama
from told import (
    ROWS,
    get_rows,
    number_in,
    removed,
    right_or_wrong,
    rl_row,
    server_words,
    write_problems,
)

from data_preprocessing import model_stage, rewrite_choice, selection, validate_votes
from data_preprocessing.validate import main as validate
from prime_ext.tasks.action_prompt import MATH_SUFFIX
from prime_ext.utils.files import read_json, write_json_lines
from prime_ext.utils.run_store import RunLock

FILES = ("train.parquet", "removed.jsonl", "report.json", "report.md")


@pytest.fixture
def problems(tmp_path):
    return write_problems(tmp_path / "in" / "train.parquet")


def get_bytes(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def test_multiple_choice_becomes_open_questions(tmp_path):
    out = tmp_path / "out"
    question = "A rod of {n} cm is cut in half. A half has (A) {n} cm (B) {half} cm (C) 1 cm"
    rows = [
        rl_row(question.format(n=n, half=n // 2), "B", index=n, suffix=MATH_SUFFIX)
        for n in range(10, 40, 2)
    ]
    write_json_lines(tmp_path / "choice.jsonl", rows)

    def says(prompt, payload):
        n = prompt.split("A rod of ")[1].split(" ")[0]
        seeds = tries.setdefault(n, [])
        if payload["seed"] not in seeds:
            seeds.append(payload["seed"])
        if int(n) % 4 == 0 and seeds.index(payload["seed"]) < 2:
            return Answer("Sure, here it is!")
        if n == "38":
            return Answer("REWRITABLE: no\nREASON: No.\nEND")
        question = f"A rod of {n} cm is cut in half. How long is a half in cm?"
        return Answer(f"REWRITABLE: yes\nREASON: Yes.\nQUESTION:\n{question}\nEND")

    tries = {}
    with ScriptedServer(says, faults=[429, "cut", None, 503]) as server:
        assert (
            rewrite_choice.main(server_words(tmp_path / "choice.jsonl", out, server, "--tries", 3))
            == 0
        )
    # A seed for every attempt, at the problem that needs another one.
    assert {n: len(seeds) for n, seeds in tries.items()} == {
        str(n): 3 if n % 4 == 0 else 1 for n in range(10, 40, 2)
    }
    written = get_rows(out, "choice")
    for row in written:
        n = row["extra_info"]["index"]
        assert row["prompt"][0] == {"role": "system", "content": "S"}
        assert (
            row["prompt"][1]["content"]
            == f"A rod of {n} cm is cut in half. How long is a half in cm?" + MATH_SUFFIX
        )
        assert row["reward_model"]["ground_truth"] == f"{n // 2} cm"
    assert [row["extra_info"]["index"] for row in written] == list(range(10, 38, 2))
    assert read_json(out / "report.json")["sources"][0]["removed"] == {"needs_options": 1}


def test_votes_and_selection_keep_what_a_model_can_solve(problems, tmp_path, capsys):
    def judge(prompt, payload):
        number = number_in(prompt)
        if number == 0:
            return Answer("A condition is missing. \\boxed{No solution}")
        if number == 1:
            return Answer(f"\\boxed{{{payload['seed']}}}")
        if number == 2:
            return Answer("\\boxed{99}")
        return Answer(f"\\boxed{{{number}.0}}")

    voted = tmp_path / "voted"
    out = tmp_path / "selected"
    faults = [(429, "0"), "not_json", "cut", None, "cut_body", "no_choices", None, "no_finish"]
    with ScriptedServer(judge, faults=faults) as server:
        assert validate_votes.main(server_words(problems, voted, server, "--solutions", 3)) == 0
    votes = get_rows(voted)[3]["extra_info"]["votes"]
    assert votes == [
        {
            "model": "scripted", "solutions": 3, "solvable": 3, "unsolvable": 0, "agreeing": 3,
            "matching": 3,
            "answer": "3.0", "answer_matches": True,
        }
    ]  # fmt: skip
    assert selection.main(["--input", str(voted / "train.parquet"), "--output-dir", str(out)]) == 0
    assert [row["extra_info"]["index"] for row in get_rows(out)] == list(range(3, ROWS))
    counts = {"unsolvable": 1, "disagreement": 1, "mismatch": 1}
    assert read_json(out / "report.json")["sources"][0]["removed"] == counts
    assert validate([str(out / "train.parquet")]) == 0
    # Without votes nothing is left.
    assert selection.main(["--input", str(problems), "--output-dir", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("selection: nothing is left")


def test_votes_of_a_local_model_do_not_depend_on_chunks(tmp_path, monkeypatch, capsys):
    model = save_llama(tmp_path / "model", max_positions=1024)
    texts = ["Long? " * 200 if index == 7 else f"Problem {index}?" for index in range(ROWS)]
    source = tmp_path / "train.jsonl"
    write_json_lines(source, [rl_row(text, index=index) for index, text in enumerate(texts)])
    backend = [
        "--backend",
        "transformers",
        "--model",
        model,
        "--dtype",
        "float64",
        "--max-new-tokens",
        8,
    ]
    for folder, rows in ((tmp_path / "a", 500), (tmp_path / "b", 5)):
        monkeypatch.setattr(model_stage, "CHUNK_ROWS", rows)
        words = ["--input", source, "--output-dir", folder, *backend, "--solutions", 2]
        assert validate_votes.main([str(word) for word in words]) == 0
    rows = get_rows(tmp_path / "a")
    assert [row["extra_info"]["index"] for row in rows] == [
        index for index in range(ROWS) if index != 7
    ]
    assert all(row["extra_info"]["votes"][0]["solutions"] == 2 for row in rows)
    assert read_json(tmp_path / "a" / "report.json")["sources"][0]["removed"] == {"refused": 1}
    assert get_bytes(tmp_path / "a") == get_bytes(tmp_path / "b")
    words = ["--input", source, "--output-dir", tmp_path / "c", *backend, "--max-new-tokens", 1024]
    assert validate_votes.main([str(word) for word in words]) == 2
    assert "the model takes none of" in capsys.readouterr().err


def test_a_finished_answer_is_never_asked_for_twice(problems, tmp_path):
    answers = ("--answers", tmp_path / "shared.jsonl", "--solutions", 2)
    with ScriptedServer(right_or_wrong) as server:
        assert validate_votes.main(server_words(problems, tmp_path / "a", server, *answers)) == 0
        assert len(server.requests) == 2 * ROWS
        assert validate_votes.main(server_words(problems, tmp_path / "b", server, *answers)) == 0
        assert len(server.requests) == 2 * ROWS
        # One more sample of each, and nothing else.
        more = (*answers[:2], "--solutions", 3)
        assert validate_votes.main(server_words(problems, tmp_path / "c", server, *more)) == 0
        assert len(server.requests) == 3 * ROWS
        # Another sampling, another seed: other answers.
        for change in (("--temperature", 0.5), ("--sampling-seed", 1)):
            before = len(server.requests)
            assert (
                validate_votes.main(
                    server_words(problems, tmp_path / "d", server, *answers, *change)
                )
                == 0
            )
            assert len(server.requests) == before + 2 * ROWS
        # Killed in the middle of a line: the rest is asked for, and the same bytes are written.
        lines = answers[1].read_bytes().splitlines(keepends=True)
        answers[1].write_bytes(b"".join(lines[:5]) + lines[5][:9])
        before = len(server.requests)
        assert validate_votes.main(server_words(problems, tmp_path / "e", server, *answers)) == 0
        assert len(server.requests) == before + 2 * ROWS - 5
    assert get_bytes(tmp_path / "a") == get_bytes(tmp_path / "b") == get_bytes(tmp_path / "e")


def test_what_got_no_answer_is_asked_again_or_removed(problems, tmp_path, capsys):
    out = tmp_path / "out"
    lost = f"{validate_votes.INSTRUCTION}Problem 7?"
    with ScriptedServer(right_or_wrong, faults_of={lost: [500] * 6}) as server:
        words = server_words(problems, out, server, "--solutions", 1)
        assert validate_votes.main(words) == 2
        assert "1 of 12 rows got no answer" in capsys.readouterr().err
        assert sorted(path.name for path in out.iterdir()) == [".prime_ext.lock", "answers.jsonl"]
        assert validate_votes.main([*words, "--on-failure", "remove"]) == 0
        (line,) = removed(out)
        assert (line["row"], line["rule"]) == (8, "unanswered") and "500" in line["evidence"]
        before = len(server.requests)
        assert validate_votes.main(words) == 0
        assert len(server.requests) == before + 1 and len(get_rows(out)) == ROWS


def test_two_stages_share_neither_outputs_nor_answers(problems, tmp_path, capsys):
    with ScriptedServer(right_or_wrong) as server:
        answers = tmp_path / "answers" / "answers.jsonl"
        words = server_words(problems, tmp_path / "out", server, "--answers", answers)
        for folder in (tmp_path / "out", answers.parent):
            with RunLock(folder):
                assert validate_votes.main(words) == 2
            assert f"{folder} is in use by process" in capsys.readouterr().err
        assert not server.requests


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--top-p", 0), "--top-p: '0' must be above 0 and at most 1"),
        (("--answers", "IN"), "is broken or half-written"),
        (("--output-dir", "IN/.."), "is an input and would be replaced"),
        (("--input", "missing.parquet"), "missing.parquet"),
    ],
)
def test_mistakes_are_one_line(problems, tmp_path, capsys, more, message):
    more = [
        str(word).replace("IN/..", str(problems.parent)).replace("IN", str(problems))
        for word in more
    ]
    with ScriptedServer(right_or_wrong) as server:
        words = server_words(problems, tmp_path / "out", server, "--max-new-tokens", 50, *more)
        assert validate_votes.main(words) == 2
        assert not server.requests
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
