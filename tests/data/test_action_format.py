# SPDX-License-Identifier: Apache-2.0
r"""The form of the action-centric chain of thought, and the chains of the numeric sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing import numeric_chain
from data_preprocessing.action_format import RULES, Action, actions_of, format_fault, written
from data_preprocessing.sft_prompt import MEANINGS, TEACHER_PROMPT, student_messages, teacher_messages
from data_preprocessing.stage import Removal
from prime_ext.tasks.action_prompt import ACTIONS, SYSTEM_PROMPT

GOOD = (
    "[ASSESS]\n\n# The sum of 3 and 4 is wanted.\n\nNext action: [ADVANCE]\n\n"
    "[ADVANCE]\n\n# 3 + 4 = 7\n\n# That is all.\n\nNext action: [OUTPUT]\n\n"
    "[OUTPUT]\n\nThe answer is \\boxed{7}."
)
CODE = GOOD.replace("The answer is \\boxed{7}.", "```python\nprint(7)\n```")


def test_the_prompts_name_all_actions_and_only_the_teacher_is_told_what_they_mean():
    assert tuple(MEANINGS) == ACTIONS
    assert all(f"[{action}] {meaning}" in TEACHER_PROMPT for action, meaning in MEANINGS.items())
    assert teacher_messages("P", "math")[-1]["content"].startswith("P\n\nPresent the answer")
    student = student_messages("P", "math", "R")
    assert [message["role"] for message in student] == ["system", "user", "assistant"]
    assert student[0]["content"] == SYSTEM_PROMPT and student[1] == teacher_messages("P", "math")[1]


def test_the_actions_of_a_response_are_read():
    before, actions = actions_of(GOOD)
    assert before == ""
    assert actions == [
        Action("ASSESS", "# The sum of 3 and 4 is wanted.", "ADVANCE"),
        Action("ADVANCE", "# 3 + 4 = 7\n\n# That is all.", "OUTPUT"),
        Action("OUTPUT", "The answer is \\boxed{7}.", None),
    ]


@pytest.mark.parametrize(
    ("response", "ability", "rule"),
    [
        (GOOD, "math", None),
        (CODE, "code", None),
        (GOOD.replace("[ADVANCE]\n\nNext", "[ADVANCE]\nNext"), "math", None),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: OUTPUT"), "math", None),
        (GOOD.replace("\\boxed{7}", "option B"), "choice", None),
        ("The answer is \\boxed{7}.", "math", "no_action"),
        ("Sure!\n" + GOOD, "math", "preamble"),
        (GOOD.replace("ADVANCE", "PONDER"), "math", "unknown_action"),
        (GOOD.replace("ASSESS", "VERIFY"), "math", "wrong_start"),
        (GOOD.partition("[OUTPUT]\n")[0], "math", "wrong_end"),
        (GOOD + "\n\n[VERIFY]\n\n# It is right.", "math", "wrong_end"),
        (GOOD.replace("[ADVANCE]\n\n#", "[OUTPUT]\n\n#"), "math", "wrong_end"),
        (GOOD.replace("# The sum", "The sum"), "math", "no_step"),
        (GOOD.replace("The answer is \\boxed{7}.", ""), "math", "no_step"),
        (GOOD.replace("Next action: [OUTPUT]\n", ""), "math", "next_action"),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: [VERIFY]"), "math", "next_action"),
        (GOOD.replace("Next action: [OUTPUT]", "Next action: [OUTPUT]\nand more"), "math", "next_action"),
        (GOOD + "\n\nNext action: [OUTPUT]", "math", "next_action"),
        (GOOD.replace("\\boxed{7}", "7"), "math", "no_answer"),
        (GOOD.replace("# 3 + 4 = 7", "# \\boxed{7}").replace("is \\boxed{7}", "is 7"), "math", "no_answer"),
        (GOOD, "code", "no_answer"),
        (CODE.removesuffix("```"), "code", "no_answer"),
    ],
)
def test_a_response_keeps_to_the_form_or_breaks_a_rule(response, ability, rule):
    fault = format_fault(response, ability)
    assert (fault and fault[0]) == rule
    assert rule is None or rule in RULES


words = st.text("abc xyz=+1\\${}()", min_size=1, max_size=20).filter(str.strip).map(str.strip)


@given(st.lists(st.tuples(st.sampled_from(ACTIONS[:-1]), st.lists(words, min_size=1, max_size=3)), max_size=5), words)
def test_every_response_in_the_form_passes_and_is_read_back(middle, output):
    names = ["ASSESS", *(name for name, _ in middle), "OUTPUT"]
    texts = ["# Look.", *("\n\n".join(f"# {step}" for step in steps) for _, steps in middle), output]
    actions = [Action(*parts) for parts in zip(names, texts, [*names[1:], None], strict=True)]
    response = written(actions)
    assert actions_of(response) == ("", actions)
    assert format_fault(response, "medicine") is None


PIECES = ["[", "]", "ASSESS", "OUTPUT", "#", "\n", "Next action: ", "\\boxed{", "}", " ", "x", "[OUTPUT]\n"]


@given(st.lists(st.sampled_from(PIECES) | st.characters()).map("".join))
def test_any_text_is_judged_without_an_error(text):
    fault = format_fault(text, "math")
    assert fault is None or fault[0] in RULES


# ---- numeric chains ----

CHAIN = "[1] 14 + 9 = 23\n[2] It is right.\nThus, the answer is option 1. #### 1"


def test_a_chain_is_read_and_written_in_one_form():
    assert numeric_chain.read_chain(CHAIN) == CHAIN
    assert (
        numeric_chain.read_chain(" [1] . 14 + 9 = 23\n\n [2]: It is right.\nThus, the answer is option 1. #### 1\n")
        == CHAIN
    )


@given(st.lists(st.text("abcxyz1", min_size=1, max_size=20), min_size=1, max_size=12), st.integers(1, 9))
def test_what_is_written_is_read_back(steps, option):
    chain = numeric_chain.written(steps, option)
    assert numeric_chain.read_chain(chain) == chain


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no_answer_line"),
        (CHAIN.replace("#### 1", "#### 2"), "no_answer_line"),
        (CHAIN.replace("Thus, t", "T"), "no_answer_line"),
        (CHAIN + "\nI hope that helps.", "no_answer_line"),
        (CHAIN.replace("[2]", "[3]"), "no_chain"),
        (CHAIN.replace("[2]", "2."), "no_chain"),
        ("Let us see.\n" + CHAIN, "no_chain"),
        (CHAIN.replace("14 + 9 = 23", "..."), "no_chain"),
        (CHAIN.replace("[2] It is right.\n", ""), "too_short"),
    ],
)
def test_other_chains_are_refused_with_the_reason(text, rule):
    found = numeric_chain.read_chain(text, min_steps=2)
    assert isinstance(found, Removal) and found.rule == rule
    assert rule in numeric_chain.RULES
