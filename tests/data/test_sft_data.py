# SPDX-License-Identifier: Apache-2.0
r"""SFT data from a teacher: form, right answers, chats that verl's trainer reads; chains of the numeric sets."""

import json
from pathlib import Path

import pytest
from scripted_server import Answer, ScriptedServer
from told import conversed, rl_row, rows_of, server_words

from data_preprocessing import numeric_expansion, numeric_reasoning, sft_data
from data_preprocessing.sft_prompt import TEACHER_PROMPT
from data_preprocessing.sft_rows import gold_of, problem_row
from data_preprocessing.stage import Removal
from prime_ext.tasks.action_prompt import MATH_SUFFIX, SYSTEM_PROMPT
from prime_ext.utils.files import read_json, write_json_lines
from prime_ext.utils.rows import BadRow

FIXTURES = Path(__file__).parent / "fixtures"


def response(answer):
    return (
        "[ASSESS]\n\n# A sum is wanted.\n\nNext action: [ADVANCE]\n\n[ADVANCE]\n\n# Add.\n\nNext action: [OUTPUT]\n\n"
        f"[OUTPUT]\n\nIt is \\boxed{{{answer}}}."
    )


# ---- problems ----


def test_rl_rows_and_rows_of_instruction_sets_are_problems():
    row = rl_row("1+1?", gold="2", suffix=MATH_SUFFIX)
    found = problem_row(row, 1, "set", "code", ())
    assert (found["problem"], found["gold"], found["judge"], found["ability"]) == ("1+1?", "2", "numina_cn_k12", "math")
    found = problem_row({"instruction": "Sort a list.", "output": "..."}, 3, "magicoder", "code", ())
    assert (found["problem"], found["gold"], found["data_source"]) == ("Sort a list.", None, "magicoder")
    assert found["extra_info"] == {"split": "train", "index": 2}
    assert problem_row({"query": "Q"}, 1, "s", "math", ["query"])["problem"] == "Q"
    for bad in ({"output": "x"}, {"problem": " "}, {**row, "data_source": "nobody"}, BadRow("broken")):
        with pytest.raises(BadRow):
            problem_row(bad, 1, "set", "math", ())


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"problem": "P", "solution": r"So \boxed{5}."}, "5"),
        ({"problem": "P", "expected_answer": "7"}, "7"),
        ({"question": "P", "answer": "Half.\n#### 1,200"}, "1200"),
        ({"instruction": "P", "answer": "12"}, "12"),
        ({"problem": "P", "solution": "No box."}, None),
        ({"problem": "P", "answer": "Because of the reasons given above, it is as it is and no other way."}, None),
        ({"problem": "P"}, None),
        ({"problem": "P", "answer": None}, None),
    ],
)
def test_a_gold_answer_is_there_where_the_verifier_can_use_it(row, gold):
    assert gold_of(row) == gold


# ---- dialogue ----


def answered(*said, gold="2", responses=1):
    row = problem_row(rl_row("1+1?", gold=gold), 1, "", "math", ())
    tries = len(said) // responses
    return conversed(
        sft_data.answering(row, responses, tries, SYSTEM_PROMPT), lambda ask: said[ask.attempt * responses + ask.sample]
    )


def test_the_teacher_is_asked_until_form_and_answer_are_right():
    rows, asked = answered("no form", response(3), response(2), response(2))
    assert len(asked) == 3 and [ask.attempt for ask in asked] == [0, 1, 2]
    assert asked[0].prompt[0] == {"role": "system", "content": TEACHER_PROMPT}
    assert rows == [
        {
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": "1+1?" + MATH_SUFFIX},
                {"role": "assistant", "content": response(2)},
            ],
            "data_source": "numina_cn_k12",
            "ability": "math",
            "extra_info": {"split": "train", "index": 0, "response": 0, "tries": 3, "ground_truth": "2"},
        }
    ]


@pytest.mark.parametrize(
    ("said", "rule"), [("no form", "no_action"), (response(3), "wrong_answer"), ("[X]", "unknown_action")]
)
def test_what_never_becomes_right_is_removed_with_the_last_reason(said, rule):
    removal, asked = answered(response(4), said)
    assert isinstance(removal, Removal) and removal.rule == rule and rule in sft_data.RULES
    assert len(asked) == 2


def test_several_responses_are_different_and_only_missing_ones_are_asked_again():
    rows, asked = answered(response("2"), response("2.0"), "no", "-", "-", response("2"), responses=3)
    assert [row["extra_info"]["response"] for row in rows] == [0, 1]
    assert [(ask.sample, ask.attempt) for ask in asked] == [(0, 0), (1, 0), (2, 0), (2, 1)]


# ---- command ----


@pytest.fixture
def made(tmp_path):
    problems = [{"problem": f"Add {n} and 1.", "expected_answer": str(n + 1)} for n in range(6)] + [{"problem": ""}]
    write_json_lines(tmp_path / "sums.jsonl", problems)

    def teach(prompt, payload):
        n = int(prompt.split()[1])
        return Answer(response(n + 1 if n != 4 else 0) if n != 5 else "I refuse.")

    with ScriptedServer(teach, faults=[429, "cut", "no_choices"]) as server:
        shared = ("--tries", 2, "--answers", tmp_path / "answers.sqlite")
        for folder in ("out", "again"):
            words = server_words(tmp_path / "sums.jsonl", tmp_path / folder, server, *shared)
            assert sft_data.main(words) == 0
            assert len(server.requests) == 4 + 2 * 2 + 3
    return tmp_path


def test_the_command_writes_chats_and_says_what_it_removed(made):
    rows = rows_of(made / "out", "sums")
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert rows[2]["messages"][-1]["content"] == response(3) and rows[2]["data_source"] == "sums"
    removed = {found["data_source"]: found["removed"] for found in read_json(made / "out" / "report.json")["sources"]}
    assert removed == {"sums": {"wrong_answer": 1, "no_action": 1}, "sums.jsonl": {"bad_row": 1}}
    for name in ("sums.parquet", "removed.jsonl", "report.json", "report.md"):
        assert (made / "out" / name).read_bytes() == (made / "again" / name).read_bytes()


def test_verls_sft_dataset_learns_the_response_and_nothing_else(made):
    from tiny_llama import byte_tokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer = byte_tokenizer(template)
    config = {"pad_mode": "no_padding", "truncation": "error", "max_length": 8192}
    dataset = MultiTurnSFTDataset(str(made / "out" / "sums.parquet"), tokenizer, config)
    assert len(dataset) == 4
    row = dataset[1]
    learnt = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
    assert learnt.removesuffix("<eos>") == response(2)


# ---- numeric sets ----


def test_chains_of_the_numeric_sets_have_their_form_and_the_gold_option(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    files = ["--tasks", "awpnli", "--input", f"awpnli={FIXTURES / 'equate' / 'AWPNLI.csv'}", "--test", "0"]
    assert numeric_reasoning.main([*files, "--output-dir", str(data)]) == 0
    problems = rows_of(data)
    never = problems[-1]["prompt"][-1]["content"]
    golds = {row["prompt"][-1]["content"]: row["reward_model"]["ground_truth"] for row in problems}

    def teach(prompt, payload):
        gold = golds[prompt]
        if prompt == never:
            return Answer(f"[1] Guess.\n[2] It is.\nThus, the answer is option {3 - int(gold)}. #### {3 - int(gold)}")
        if payload["seed"] % 3 == 0:
            return Answer(f"The answer is option {gold}.")
        text = f" [1] . Add {payload['seed']}.\n [2] . Compare.\nThus, the answer is option {gold}. #### {gold}"
        return Answer(text)

    with ScriptedServer(teach, faults=["not_json"]) as server:
        words = server_words(data / "train.parquet", out, server, "--chains", 2, "--tries", 6)
        assert numeric_expansion.main(words) == 0
    rows = rows_of(out)
    assert len(rows) == 2 * (len(problems) - 1)
    for row in rows:
        user, assistant = row["messages"][-2:]
        assert (
            assistant["content"].startswith("[1] Add ")
            and "\n[2] Compare.\nThus, the answer is" in assistant["content"]
        )
        assert assistant["content"].endswith(f"#### {golds[user['content']]}")
    removed = [json.loads(line) for line in (out / "removed.jsonl").read_text().splitlines()]
    assert [line["rule"] for line in removed] == ["wrong_answer"]
    # Problems of other kinds are no multiple choice.
    write_json_lines(tmp_path / "math.jsonl", [rl_row("1+1?", gold="2")])
    with ScriptedServer(teach) as server:
        assert numeric_expansion.main(server_words(tmp_path / "math.jsonl", tmp_path / "none", server)) == 1
    assert "numina_cn_k12 is none of the numeric sets" in (tmp_path / "none" / "removed.jsonl").read_text()
