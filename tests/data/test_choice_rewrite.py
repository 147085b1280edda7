# SPDX-License-Identifier: Apache-2.0
r"""Multiple choice: reading the options, the gold answer behind the letter, the model's answer, what is faithful."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import conversed, rl_row

from data_preprocessing.rewrite_choice import (
    INSTRUCTION,
    Choice,
    option_named,
    parsed,
    read_options,
    rewrite,
    unfaithful,
)
from data_preprocessing.stages import Removal
from prime_ext.tasks.action_prompt import MATH_SUFFIX

SQUARE = "A square has area 49. Its perimeter is\n\n(A) 7 (B) 14 (C) 28"


def yes(question, reason="Clear."):
    return f"REWRITABLE: yes\nREASON: {reason}\nQUESTION:\n{question}\nEND"


GOOD = yes("A square has area 49. What is its perimeter?")
NO = "REWRITABLE: no\nREASON: It depends on the options.\nEND"


# ---- options ----


@pytest.mark.parametrize(
    ("problem", "stem", "options"),
    [
        (SQUARE, "A square has area 49. Its perimeter is", ["7", "14", "28"]),
        (r"$2+3$? $\textbf{(A)}\ 4 \qquad \textbf{(B)}\ 5 \qquad \textbf{(C)}\ 6$", "$2+3$?", ["4", "5", "6"]),
        (r"$x$? $\text{(A) } \frac12 \quad \text{(B) } 3 \quad \text{(C) } -1$", "$x$?", [r"\frac12", "3", "-1"]),
        ("How many?\nA. $12$; B. $13$; C. $14$; D. $15$.", "How many?", ["12", "13", "14", "15"]),
        ("Both? A) $3$ and $4$ B) $5$ and $6$ C) $7$", "Both?", ["$3$ and $4$", "$5$ and $6$", "7"]),
        ("By (A) and (B) above, find it. (A) 1 (B) 2 (C) 3", "By (A) and (B) above, find it.", ["1", "2", "3"]),
        (r"Area? $\textbf{(A) 3} \qquad \textbf{(B) 4} \qquad \textbf{(C) 5}$", "Area?", ["3", "4", "5"]),
        ("What is 2+3?", "", None),
        ("Which? (A) 1 (B) (C) 3", "", None),
        ("Which? (A) 1 (B) 2 (C) [asy] draw(); [/asy]", "", None),
        (r"Which? (A) $\frac{1$ (B) 2 (C) 3", "", None),
    ],
)
def test_the_options_and_what_is_asked_are_told_apart_where_they_are_certain(problem, stem, options):
    assert read_options(problem) == (options and Choice(stem, dict(zip("ABCDE", options, strict=False))))


@pytest.mark.parametrize(
    "gold", ["B", "(B)", r"\text{B}", r"\textbf{(B)}", r"\mathrm{(B)}\ 14", "B) 14", "B.", "$B$", "B: 14"]
)
def test_a_gold_answer_names_its_option_however_it_is_written(gold):
    assert option_named(gold, read_options(SQUARE)) == "B"
    for other in ("14", "D", "BC", "B+C", "Bob", ""):
        assert option_named(other, read_options(SQUARE)) is None


# ---- the answer of the model ----


@given(
    reason=st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1).filter(str.strip),
    question=st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1).filter(str.strip),
)
def test_whatever_is_written_in_the_form_is_read_back(reason, question):
    assert parsed(yes(question, reason.strip())) == (question.strip(), "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (NO, ("", "It depends on the options.")),
        (GOOD.replace("\n", "\r\n"), ("A square has area 49. What is its perimeter?", "")),
        ("What is its perimeter?", None),
        ("Sure!\n" + GOOD, None),
        (GOOD + "\nI hope that helps.", None),
        (GOOD.replace("REASON: Clear.\n", ""), None),
        (NO.replace("END", "QUESTION:\nx\nEND"), None),
        ("```\n" + GOOD + "\n```", None),
    ],
)
def test_anything_else_is_malformed(text, found):
    assert parsed(text) == found


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ("A square has area 49. What is its perimeter?", None),
        ("What is the perimeter of a square?", "lost 49"),
        ("A square has area 49. Is its perimeter 28?", "added 28"),
        ("A square has area 49. Which option is its perimeter?", "speaks of option"),
    ],
)
def test_an_open_question_keeps_the_numbers_and_forgets_the_options(question, fault):
    assert unfaithful(read_options(SQUARE), "28", question) == fault
    choice = Choice("Divide 1,002 by 3.", {"A": r"\frac{1002}{3}", "B": "2", "C": "3"})
    assert unfaithful(choice, choice.options["A"], r"Is 1{,}002 by 3 $\frac{1002}{3}$?").startswith("gives the answer")


# ---- the dialogue ----


def said(*answers):
    return lambda ask: answers[ask.attempt]


def test_the_gold_answer_becomes_the_text_of_its_option():
    row = rl_row(SQUARE, gold="C", suffix=MATH_SUFFIX)
    (new,), asked = conversed(rewrite(row, "m", tries=3), said(GOOD))
    assert new["reward_model"] == {"style": "rule", "ground_truth": "28"}
    assert new["prompt"][0] == {"role": "system", "content": "S"}
    assert new["prompt"][1]["content"] == "A square has area 49. What is its perimeter?" + MATH_SUFFIX
    assert new["extra_info"] == row["extra_info"]
    assert asked[0].prompt[-1]["content"] == INSTRUCTION + SQUARE


COLOUR = rl_row("It is red. Its colour is (A) red (B) blue (C) none", gold="B")


@pytest.mark.parametrize(
    ("row", "answers", "rule", "questions"),
    [
        (rl_row("Which? (A) 1 (B) (C) 3", gold="A"), (), "options_unread", 0),
        (rl_row(SQUARE, gold="30"), (), "gold_not_an_option", 0),
        (rl_row("Which of the following is prime? (A) 1 (B) 4 (C) 7", gold="C"), (), "refers_to_options", 0),
        (rl_row("The root of 5 is closest to (A) 1 (B) 2 (C) 3", gold="B"), (), "refers_to_options", 0),
        (rl_row(SQUARE, gold="C"), (NO,), "needs_options", 1),
        (rl_row(SQUARE, gold="C"), ("?", "?"), "malformed", 2),
        (rl_row(SQUARE, gold="C"), (yes("A square has area 50. Perimeter?"), "?"), "unfaithful", 2),
        (COLOUR, (yes("Its colour?"),), "rewritten_no_digit", 1),
    ],
)
def test_what_cannot_be_rewritten_is_removed_with_its_reason(row, answers, rule, questions):
    removal, asked = conversed(rewrite(row, "m", 2), said(*answers))
    assert isinstance(removal, Removal) and removal.rule == rule
    assert len(asked) == questions
