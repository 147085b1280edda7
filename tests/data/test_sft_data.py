# SPDX-License-Identifier: Apache-2.0
"""SFT data from a teacher: form, correct answers, chats for verl's trainer, numeric chains."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Answer, ScriptedServer
from told import conversed, get_rows, removed, rl_row, server_words

from data_preprocessing import sft_data
from data_preprocessing.model_stage import extract_problem
from data_preprocessing.sft_data import RULES, read_gold, read_problem_row
from data_preprocessing.sft_forms import TEACHER_PROMPT, format_chain, read_actions, read_chain
from data_preprocessing.stages import Removal
from prime_ext.tasks.action_prompt import MATH_SUFFIX, SYSTEM_PROMPT
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.rows import BadRow

GOOD = (
    "[ASSESS]\n\n# The sum of 3 and 4 is wanted.\n\nNext action: [ADVANCE]\n\n"
    "[ADVANCE]\n\n# 3 + 4 = 7\n\n# That is all.\n\nNext action: [OUTPUT]\n\n"
    "[OUTPUT]\n\nThe answer is \\boxed{7}."
)
CODE = GOOD.replace("The answer is \\boxed{7}.", "```python\nprint(7)\n```")


def response(answer):
    return GOOD.replace("\\boxed{7}", f"\\boxed{{{answer}}}")


@pytest.mark.parametrize(
    ("response", "ability", "rule"),
    [
        (GOOD, "math", None),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: OUTPUT"), "math", None),
        (GOOD.replace("\\boxed{7}", "option B"), "choice", None),
        ("The answer is \\boxed{7}.", "math", "no_action"),
        ("Sure!\n" + GOOD, "math", "preamble"),
        (GOOD.replace("ADVANCE", "PONDER"), "math", "unknown_action"),
        (GOOD.partition("[OUTPUT]\n")[0], "math", "wrong_end"),
        (GOOD.replace("[ADVANCE]\n\n#", "[OUTPUT]\n\n#"), "math", "wrong_end"),
        (GOOD.replace("# The sum", "The sum"), "math", "no_step"),
        (GOOD.replace("The answer is \\boxed{7}.", ""), "math", "no_step"),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: [VERIFY]"), "math", "next_action"),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: [OUTPUT]\nand more"), "math",
         "next_action"),
        (GOOD.replace("# 3 + 4 = 7", "# \\boxed{7}").replace("is \\boxed{7}", "is 7"), "math",
         "no_answer"),
        (CODE.removesuffix("```"), "code", "no_answer"),
    ],
)  # fmt: skip
def test_a_response_keeps_to_the_form_or_breaks_a_rule(response, ability, rule):
    result = read_actions(response, ability)
    assert (result == response) if rule is None else (result.rule == rule and rule in RULES)


PIECES = [
    "[",
    "]",
    "ASSESS",
    "OUTPUT",
    "#",
    "\n",
    "Next action: ",
    "\\boxed{",
    "}",
    " ",
    "x",
    "[OUTPUT]\n",
]


@given(st.lists(st.sampled_from(PIECES) | st.characters()).map("".join))
def test_any_text_is_judged_without_an_error(text):
    result = read_actions(text, "math")
    assert result == text.strip() or result.rule in RULES


CHAIN = "[1] 14 + 9 = 23\n[2] It is right.\nThus, the answer is option 1. #### 1"


@given(
    st.lists(st.text("abcxyz1", min_size=1, max_size=20), min_size=1, max_size=12),
    st.integers(1, 9),
)
def test_what_is_written_is_read_back(steps, option):
    chain = format_chain(steps, option)
    assert read_chain(chain) == chain
    assert (
        read_chain(
            " [1] . 14 + 9 = 23\n\n [2]: It is right.\nThus, the answer is option 1. #### 1\n"
        )
        == CHAIN
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (CHAIN.replace("#### 1", "#### 2"), "no_answer_line"),
        (CHAIN + "\nI hope that helps.", "no_answer_line"),
        (CHAIN.replace("[2]", "[3]"), "no_chain"),
        ("Let us see.\n" + CHAIN, "no_chain"),
        (CHAIN.replace("14 + 9 = 23", "..."), "no_chain"),
        (CHAIN.replace("[2] It is right.\n", ""), "too_short"),
    ],
)
def test_other_chains_are_refused_with_the_reason(text, rule):
    removal = read_chain(text, min_steps=2)
    assert isinstance(removal, Removal) and removal.rule == rule
    assert rule in RULES


def test_rl_rows_and_rows_of_instruction_sets_are_problems():
    row = rl_row("1+1?", gold="2", suffix=MATH_SUFFIX)
    assert read_problem_row(row, Path("x.jsonl"), 1, "set", "code", ()) == {
        **row,
        "judge": "numina_cn_k12",
    }
    assert extract_problem(row) == "1+1?"
    converted = read_problem_row(
        {"instruction": "Sort a list.", "output": "..."}, Path("magicoder.jsonl"), 3, "", "code", ()
    )
    assert extract_problem(converted) == "Sort a list." and converted["data_source"] == "magicoder"
    assert converted["reward_model"]["ground_truth"] is None and converted["extra_info"] == {
        "split": "train",
        "index": 2,
    }
    assert (
        extract_problem(read_problem_row({"query": "Q"}, Path("x"), 1, "s", "math", ["query"]))
        == "Q"
    )
    for bad in ({"output": "x"}, {"problem": " "}, {**row, "data_source": "nobody"}):
        with pytest.raises(BadRow):
            read_problem_row(bad, Path("x"), 1, "set", "math", ())


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"problem": "P", "solution": r"So \boxed{5}."}, "5"),
        ({"problem": "P", "expected_answer": "7"}, "7"),
        ({"question": "P", "answer": "Half.\n#### 1,200"}, "1200"),
        (
            {
                "problem": "P",
                "answer": "Because of the reasons given above, it is as it is and no other way.",
            },
            None,
        ),
        ({"problem": "P"}, None),
    ],
)
def test_only_gold_answers_that_the_verifier_can_use_are_read(row, gold):
    assert read_gold(row) == gold


def answered(*texts, gold="2", responses=1):
    row = read_problem_row(rl_row("1+1?", gold=gold), Path("x"), 1, "", "math", ())
    tries = len(texts) // responses
    return conversed(
        sft_data.answer_in_actions(row, "m", SYSTEM_PROMPT, responses, tries),
        lambda ask: texts[ask.attempt * responses + ask.sample],
    )


def test_the_teacher_is_asked_until_form_and_answer_are_right():
    rows, asks = answered("no form", response(3), response(2), response(2))
    assert [ask.attempt for ask in asks] == [0, 1, 2]
    assert asks[0].prompt[0] == {"role": "system", "content": TEACHER_PROMPT}
    assert rows == [
        {
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": "1+1?" + MATH_SUFFIX},
                {"role": "assistant", "content": response(2)},
            ],
            "data_source": "numina_cn_k12",
            "ability": "math",
            "extra_info": {
                "split": "train",
                "index": 0,
                "response": 0,
                "tries": 3,
                "ground_truth": "2",
            },
        }
    ]


def test_responses_differ_and_only_missing_ones_are_requested_again():
    rows, asks = answered(
        response("2"), response("2.0"), "no", "-", "-", response("2"), responses=3
    )
    assert [row["extra_info"]["response"] for row in rows] == [0, 1]
    assert [(ask.sample, ask.attempt) for ask in asks] == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_verls_dataset_learns_the_responses_that_the_command_writes(tmp_path):
    problems = [{"problem": f"Add {n} and 1.", "expected_answer": str(n + 1)} for n in range(6)] + [
        {"problem": ""}
    ]
    write_json_lines(tmp_path / "sums.jsonl", problems)

    def teach(prompt, payload):
        n = int(prompt.split()[1])
        return Answer(response(n + 1 if n != 4 else 0) if n != 5 else "I refuse.")

    with ScriptedServer(teach, faults=[429, "cut", "no_choices"]) as server:
        words = server_words(tmp_path / "sums.jsonl", tmp_path / "out", server, "--tries", 2)
        assert sft_data.main(words) == 0
        assert len(server.requests) == 4 + 2 * 2 + 3
    rows = get_rows(tmp_path / "out", "sums")
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert rows[2]["messages"][-1]["content"] == response(3) and rows[2]["data_source"] == "sums"
    assert [(line["row"], line["rule"]) for line in removed(tmp_path / "out")] == [
        (5, "wrong_answer"),
        (6, "no_action"),
        (7, "bad_row"),
    ]
    from tiny_llama import byte_tokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer = byte_tokenizer(template)
    config = {"pad_mode": "no_padding", "truncation": "error", "max_length": 8192}
    dataset = MultiTurnSFTDataset(str(tmp_path / "out" / "sums.parquet"), tokenizer, config)
    assert len(dataset) == 4
    row = dataset[1]
    learnt = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
    assert learnt.removesuffix("<eos>") == response(2)


def test_numeric_chains_have_their_form_and_the_gold_option(tmp_path):
    golds = {f"Problem {n}?": 1 + n % 2 for n in range(6)}
    rows = [
        rl_row(text, str(gold), "awpnli", n, n_options=2)
        for n, (text, gold) in enumerate(golds.items())
    ]
    write_json_lines(tmp_path / "in.jsonl", [*rows, rl_row("1+1?", gold="2")])

    def teach(prompt, payload):
        if payload["seed"] % 3 == 0:
            return Answer(f"The answer is option {golds[prompt]}.")
        option = golds[prompt] if prompt != "Problem 5?" else 1
        steps = f" [1] . Add {payload['seed']}.\n [2] . Compare.\n"
        return Answer(f"{steps}Thus, the answer is option {option}. #### {option}")

    with ScriptedServer(teach, faults=["not_json"]) as server:
        words = server_words(tmp_path / "in.jsonl", tmp_path, server, "--form", "chains")
        assert sft_data.main([*words, "--responses", "2", "--tries", "6"]) == 0
    written = get_rows(tmp_path, "in")
    assert len(written) == 2 * 5
    for row in written:
        user, assistant = (message["content"] for message in row["messages"][-2:])
        assert (
            assistant.startswith("[1] Add ") and "\n[2] Compare.\nThus, the answer is" in assistant
        )
        assert assistant.endswith(f"#### {golds[user]}")
    lines = removed(tmp_path)
    assert [(line["row"], line["rule"]) for line in lines] == [(6, "wrong_answer"), (7, "bad_row")]
    assert lines[1]["evidence"] == "numina_cn_k12 is of math, not of the numeric sets"
