# SPDX-License-Identifier: Apache-2.0
"""The page of transcripts and its program: hostile text, long responses, colors, errors."""

import json
import re

import pytest
from page_reader import read_responses, read_tags

from prime_ext.transcripts.__main__ import main
from prime_ext.transcripts.files import step_file
from prime_ext.transcripts.frame import LEVELS
from prime_ext.transcripts.page import MOST_TOKENS, render_page
from prime_ext.utils.files import write_json_lines

INFO = {"acc": 1.0, "score": 1.0, "verdict": "correct", "pred": "7", "grader_failure": 0.0}
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> ' onmouseover='alert(2)",
    "</i></div></main><style>*{display:none}</style>",
    "&lt;b&gt; &amp; &#x3C;script&#x3E;",
    "\u202eevil\u2066 \u200bhidden\u061c",
    "a\x00b\x1b[31m\ud800",
    "CONTENT TITLE {{ 7 * 7 }} ]]> -->",
]


def make_row(**changes):
    row = {
        "step": 20, "uid": "0001", "key": "0001_0_0", "method": "PRIME, variant paper",
        "prompt": "3*9?", "gold": "7", "tokens": ["3", "*", "9"], "info": dict(INFO),
        "filter": "kept", "mask": [1, 1, 1], "outcome": 1.0, "process": [0.1, -0.2, 0.0],
        "advantage": [1.0, 0.5, -0.25], "return": [0.1, 0.2, 0.3], "paid": True,
        "coefficient": 1.0, "metrics": {"prime/gate/value": 0.4375},
    }  # fmt: skip
    return row | changes


def with_tokens(tokens, **changes):
    values = [0.0] * len(tokens)
    lists = {name: values for name in ("process", "advantage", "return")}
    return make_row(tokens=list(tokens), mask=[1] * len(tokens), **lists, **changes)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_interpreted(text):
    plain = render_page([make_row()], "run", [20])
    info = {**INFO, "pred": text, "verdict": text, "verifier_detail": text, text: text}
    row = with_tokens([text, text], prompt=text, gold=text, info=info, uid=text, method=text)
    row["filter"] = text
    page = render_page([row], text, [20])
    assert read_tags(page) == read_tags(plain)
    assert page.count("</main>") == page.count("</i></div>") == 1
    # Nothing invisible is left, and what can be seen is the text itself.
    assert not any(ord(one) in range(0x202A, 0x206A) or one in "\x00\x1b\u200b" for one in page)
    page.encode()
    if text.isprintable():
        assert read_responses(page)[0].text == text * 2


def test_the_page_needs_no_other_file_and_allows_no_script():
    page = render_page([make_row()], "run", [20])
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not {"script", "img", "link", "iframe", "object", "form"} & read_tags(page)
    assert (
        "url(" not in page
        and "@import" not in page
        and "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    )


def test_huge_responses_are_cut_with_a_note():
    row = with_tokens([f"{number} " for number in range(2 * MOST_TOKENS)])
    page = render_page([row], "run", [20])
    assert f"… {MOST_TOKENS:,} tokens left out …" in page
    (shown,) = read_responses(page)
    assert len(shown.notes) == MOST_TOKENS
    assert shown.notes[0][0] == "token 1" and shown.notes[-1][0] == f"token {2 * MOST_TOKENS}"
    many = [dict(row, key=f"0001_{number}_0") for number in range(200)]
    assert len(render_page(many, "run", [20])) < 12_000_000
    long = render_page([make_row(prompt="x" * 100_000, gold="y" * 100_000)], "run", [20])
    assert len(long) < 30_000 and long.count("characters left out") == 2


def test_colors_have_the_sign_and_the_size_of_the_value():
    process = [0.0, 0.5, -0.5, 5.0, -5.0, 0.01]
    row = with_tokens("abcdef")
    row["process"] = process
    row["advantage"] = [-value for value in process]
    (shown,) = read_responses(render_page([row], "run", [20]))
    # The largest size but one has the full color.
    assert shown.classes == ["", "pu1 ad1", "pd1 au1", f"pu{LEVELS} ad{LEVELS}",
                             f"pd{LEVELS} au{LEVELS}", ""]  # fmt: skip


def test_tokens_of_tools_have_no_numbers():
    row = make_row(tokens=["call", " 7", "done"], mask=[1, 0, 1])
    (shown,) = read_responses(render_page([row], "run", [20]))
    assert shown.classes[1] == "other" and shown.numbers("advantage") == ["+1", "", "-0.25"]
    assert shown.notes[1] == ["token 2: not trained on (of a tool, or rejected)"]


def test_turns_show_their_rewards_and_sums():
    row = make_row(tokens=["call", " 7", "done"], mask=[1, 0, 1], unit="turn", step_ends=[0, 2])
    row |= {"turn_ends": [0, 2], "turn_rewards": [0.5, -1.0]}
    (shown,) = read_responses(render_page([row], "run", [20]))
    assert shown.notes_with("turn ") == ["turn 1 of 2, sum +0.1", "turn 2 of 2, sum +0"]
    assert shown.numbers("reward of the turn") == ["+0.5", "", "-1"]


FAILURES = [
    ({"verdict": "timeout", "grader_failure": 1.0}, "⚠ not graded: timeout"),
    ({"verdict": "timeout", "grader_failure": 0.0}, "✗ out of time"),
    ({"verdict": "no_answer"}, "∅ no answer"),
    ({"reward_failure": 1.0}, "⚠ not scored"),
    ({"acc": 0.5, "verdict": None}, "accuracy 0.5"),
]


@pytest.mark.parametrize(("changes", "words"), FAILURES)
def test_verdicts_are_named_and_failures_of_the_grader_marked(changes, words):
    page = render_page([make_row(info={**INFO, **changes})], "run", [20])
    assert f">{words}</span>" in page


def test_a_response_is_compared_with_the_others_of_its_prompt():
    outcomes = (1.0, 0.0, 0.5)
    rows = [make_row(key=f"0001_{at}_0", outcome=one) for at, one in enumerate(outcomes)]
    ungraded = make_row(key="0001_3_0")
    del ungraded["outcome"], ungraded["advantage"]
    page = render_page([*rows, ungraded, make_row(uid="0002", key="0002_0_0")], "run", [20])
    means = re.findall("mean reward of the others</dt><dd>(.*?)<", page)
    assert means == ["0.25", "0.75", "0.5"]
    # A grader that failed has given nothing, and the accuracy is that of the others.
    failed = make_row(info={**INFO, "acc": 0.0, "score": 0.0, "grader_failure": 1.0})
    del failed["outcome"], failed["advantage"]
    page = render_page([make_row(), failed], "run", [20])
    assert "2 responses, mean accuracy 1;" in page and page.count("<dt>reward</dt>") == 1


def test_a_page_of_outcome_rewards_alone_is_colored_by_advantage():
    row = make_row()
    del row["process"]
    page = render_page([row], "run", [20])
    assert 'id="by-advantage" checked' in page and "no process rewards in this run" in page
    assert 'id="by-process" checked' in render_page([make_row()], "run", [20])


# ---- the program ---------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    for step in (1, 10, 20):
        write_json_lines(step_file(tmp_path / "run" / "transcripts", step), [make_row(step=step)])
    return tmp_path / "run"


def test_the_program_writes_the_last_step_or_the_named_one(run, capsys):
    assert main([str(run)]) == 0
    assert "Step <b>20</b>" in (run / "transcripts.html").read_text()
    assert f"{run}/transcripts.html: step 20, 1 responses" in capsys.readouterr().out
    # The folder above, as that of a quickstart.
    output = run / "page.html"
    assert main([str(run.parent), "--step", "10", "--output", str(output)]) == 0
    assert "Step <b>10</b>" in output.read_text() and "1, 10, 20" in output.read_text()


def say(capsys, *words):
    assert main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_errors_are_one_line_that_says_what_would_be_right(run, tmp_path, capsys):
    assert f"{tmp_path}/none does not exist" in say(capsys, tmp_path / "none")
    assert "has no step 7; it has 1, 10, 20" in say(capsys, run, "--step", "7")
    (tmp_path / "empty").mkdir()
    assert "where transcripts.every is above 0" in say(capsys, tmp_path / "empty")
    write_json_lines(step_file(tmp_path / "other" / "transcripts", 1), [make_row()])
    said = say(capsys, tmp_path)
    assert f"several runs; name one of {tmp_path}/other, {tmp_path}/run" in said
    step_file(run / "transcripts", 20).write_text(json.dumps(make_row()) + '\n{"uid": 1\n')
    assert "step_000020.jsonl, line 2, is not a transcript" in say(capsys, run)
    step_file(run / "transcripts", 20).write_text("[]\n")
    assert "line 1, is not a transcript" in say(capsys, run)
