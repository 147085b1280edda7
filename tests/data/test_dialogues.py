# SPDX-License-Identifier: Apache-2.0
"""Dialogues with a model: multiple choice as open questions; votes, and what they select."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import conversed, rl_row

from data_preprocessing.rewrite_choice import (
    Choice,
    find_fault,
    find_option,
    parse_question,
    read_options,
    rewrite,
)
from data_preprocessing.selection import find_reason, select
from data_preprocessing.stages import Removal
from data_preprocessing.validate_votes import INSTRUCTION, Votes, says_unsolvable, vote_on_row
from prime_ext.generate.backend import Response
from prime_ext.tasks.action_prompt import MATH_SUFFIX

SQUARE = "A square has area 49. Its perimeter is\n\n(A) 7 (B) 14 (C) 28"


def yes(question, reason="Clear."):
    return f"REWRITABLE: yes\nREASON: {reason}\nQUESTION:\n{question}\nEND"


GOOD = yes("A square has area 49. What is its perimeter?")
NO = "REWRITABLE: no\nREASON: It depends on the options.\nEND"


@pytest.mark.parametrize(
    ("problem", "stem", "options"),
    [
        (SQUARE, "A square has area 49. Its perimeter is", ["7", "14", "28"]),
        (r"$2+3$? $\textbf{(A)}\ 4 \qquad \textbf{(B)}\ 5 \qquad \textbf{(C)}\ 6$", "$2+3$?",
         ["4", "5", "6"]),
        (r"$x$? $\text{(A) } \frac12 \quad \text{(B) } 3 \quad \text{(C) } -1$", "$x$?",
         [r"\frac12", "3", "-1"]),
        ("How many?\nA. $12$; B. $13$; C. $14$; D. $15$.", "How many?", ["12", "13", "14", "15"]),
        ("Both? A) $3$ and $4$ B) $5$ and $6$ C) $7$", "Both?",
         ["$3$ and $4$", "$5$ and $6$", "7"]),
        ("By (A) and (B) above, find it. (A) 1 (B) 2 (C) 3", "By (A) and (B) above, find it.",
         ["1", "2", "3"]),
        (r"Area? $\textbf{(A) 3} \qquad \textbf{(B) 4} \qquad \textbf{(C) 5}$", "Area?",
         ["3", "4", "5"]),
        ("What is 2+3?", "", None),
        ("Which? (A) 1 (B) (C) 3", "", None),
        ("Which? (A) 1 (B) 2 (C) [asy] draw(); [/asy]", "", None),
        (r"Which? (A) $\frac{1$ (B) 2 (C) 3", "", None),
    ],
)  # fmt: skip
def test_unambiguous_options_are_separated_from_the_question(problem, stem, options):
    assert read_options(problem) == (
        options and Choice(stem, dict(zip("ABCDE", options, strict=False)))
    )


@pytest.mark.parametrize(
    "gold",
    ["B", "(B)", r"\text{B}", r"\textbf{(B)}", r"\mathrm{(B)}\ 14", "B) 14", "B.", "$B$", "B: 14"],
)
def test_a_gold_answer_names_its_option_however_it_is_written(gold):
    assert find_option(gold, read_options(SQUARE)) == "B"
    for other in ("14", "D", "BC", "B+C", "Bob", ""):
        assert find_option(other, read_options(SQUARE)) is None


@given(
    reason=st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1).filter(
        str.strip
    ),
    question=st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1).filter(
        str.strip
    ),
)
def test_whatever_is_written_in_the_form_is_read_back(reason, question):
    assert parse_question(yes(question, reason.strip())) == (question.strip(), "")


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_anything_else_is_malformed(text, expected):
    assert parse_question(text) == expected


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
    assert find_fault(read_options(SQUARE), "28", question) == fault
    choice = Choice("Divide 1,002 by 3.", {"A": r"\frac{1002}{3}", "B": "2", "C": "3"})
    assert find_fault(choice, choice.options["A"], r"Is 1{,}002 by 3 $\frac{1002}{3}$?").startswith(
        "gives the answer"
    )


COLOR = rl_row("It is red. Its color is (A) red (B) blue (C) none", gold="B")


@pytest.mark.parametrize(
    ("row", "answers", "rule", "questions"),
    [
        (rl_row("Which? (A) 1 (B) (C) 3", gold="A"), (), "options_unread", 0),
        (rl_row(SQUARE, gold="30"), (), "gold_not_an_option", 0),
        (rl_row("Which of the following is prime? (A) 1 (B) 4 (C) 7", gold="C"), (),
         "refers_to_options", 0),
        (rl_row("The root of 5 is closest to (A) 1 (B) 2 (C) 3", gold="B"), (),
         "refers_to_options", 0),
        (rl_row(SQUARE, gold="C"), (NO,), "needs_options", 1),
        (rl_row(SQUARE, gold="C"), ("?", "?"), "malformed", 2),
        (rl_row(SQUARE, gold="C"), (yes("A square has area 50. Perimeter?"), "?"), "unfaithful", 2),
        (COLOR, (yes("Its color?"),), "rewritten_no_digit", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_removed_with_its_reason(row, answers, rule, questions):
    removal, asks = conversed(rewrite(row, "m", 2), lambda ask: answers[ask.attempt])
    assert isinstance(removal, Removal) and removal.rule == rule
    assert len(asks) == questions


# ---- votes ----


def voted(gold, *answers, model="judge", row=None):
    row = row or rl_row("What is it?", gold=gold, suffix=MATH_SUFFIX)
    (new,), asks = conversed(vote_on_row(row, model, len(answers)), lambda ask: answers[ask.sample])
    return new, asks


CUT = Response("", r"\boxed{3}, but wait", 9, 9, "length")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # The math verifier groups answers.
        ((r"\boxed{3.0}", r"\boxed{\frac62}", r"\boxed{\frac{6}{2}}", r"\boxed{2}", "Who?"),
         (4, 0, 3, 3, "3.0", True)),
        ((r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"), (3, 0, 2, 1, "2", False)),
        ((CUT, r"\boxed{3}"), (1, 0, 1, 1, "3", True)),
        ((r"\boxed{No solution}", r"\boxed{\text{no solution.}}", r"\boxed{3}", "cut"),
         (1, 2, 1, 1, "3", True)),
        ((r"\boxed{No solution}",), (0, 1, 0, 0, None, False)),
    ],
)  # fmt: skip
def test_votes_are_counted_by_the_answers_of_complete_solutions(answers, expected):
    new, asks = voted("3", *answers)
    assert [ask.sample for ask in asks] == list(range(len(answers)))
    assert asks[0].prompt[-1]["content"] == INSTRUCTION + "What is it?"
    assert new["extra_info"]["votes"] == [asdict(Votes("judge", len(answers), *expected))]


def test_votes_replace_only_earlier_votes_of_the_same_model():
    first, _ = voted("3", r"\boxed{3}", model="a")
    second, _ = voted("3", r"\boxed{4}", model="b", row=first)
    again, _ = voted("3", r"\boxed{5}", model="a", row=second)
    assert [(votes["model"], votes["answer"]) for votes in again["extra_info"]["votes"]] == [
        ("b", "4"),
        ("a", "5"),
    ]


def test_rows_of_other_verifiers_pass_without_votes():
    row = {**rl_row("Write a program.", gold="{}", source="apps"), "ability": "code"}
    (new,), asks = conversed(vote_on_row(row, "judge", 3), str)
    assert not asks and new["extra_info"]["votes"] is None
    assert select(new) == [new]


def votes(solvable=5, agreeing=5, matching=5, matches=True, of=5, model="m"):
    return Votes(
        model, of, solvable, of - solvable, agreeing, matching, "7" if agreeing else None, matches
    )


@pytest.mark.parametrize(
    ("given_votes", "settings", "reason"),
    [
        ([], {}, "no_votes"),
        ([votes()], {}, None),
        ([votes(solvable=2, agreeing=2)], {}, "unsolvable"),
        ([votes(0, 0, 0, False)], {"min_solvable": 0, "min_agreement": 0}, "disagreement"),
        ([votes(solvable=3, agreeing=3)], {"min_solvable": 1.0}, "unsolvable"),
        ([votes(), votes(matching=0, matches=False, model="n")], {}, "mismatch"),
        ([votes(agreeing=1), votes(solvable=1, model="n")], {}, "unsolvable"),
    ],
)
def test_the_selection_keeps_what_is_solvable_agreed_and_the_reference(
    given_votes, settings, reason
):
    removal = find_reason(given_votes, **{"min_solvable": 0.6, "min_agreement": 0.6, **settings})
    assert (removal and removal.rule) == reason


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("No solution", True),
        ("No solution exists", True),
        (r"\text{No solution exists.}", True),
        (r"\textbf{There is no solution}", True),
        ("There are no solutions", True),
        (r"\mathrm{No~solutions~exist}", True),
        (r"No\ solution", True),
        ("The problem has no solution", True),
        ("cannot be solved", True),
        ("This problem can't be solved!", True),
        ("unsolvable", True),
        ("no real solutions", False),
        ("no solution for x < 3", False),
        ("1 solution", False),
        ("0", False),
        ("x = 2", False),
    ],
)
def test_answers_without_a_solution_are_recognized(answer, expected):
    assert says_unsolvable(answer) is expected
