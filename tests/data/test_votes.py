# SPDX-License-Identifier: Apache-2.0
r"""Votes on problems: what counts as an answer, which answers are the same; and the rule of the final selection."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import conversed, rl_row

from data_preprocessing.selection import find_reason, select
from data_preprocessing.validate_votes import INSTRUCTION, Votes, says_unsolvable, voting
from prime_ext.generate.backend import Response
from prime_ext.tasks.action_prompt import MATH_SUFFIX


def voted(gold, *answers, model="judge", row=None):
    row = row or rl_row("What is it?", gold=gold, suffix=MATH_SUFFIX)
    (new,), asked = conversed(voting(row, model, len(answers)), lambda ask: answers[ask.sample])
    return new, asked


def test_answers_are_grouped_by_the_math_verifier_and_compared_with_the_reference():
    answers = (r"\boxed{0.5}", r"\boxed{\frac12}", r"\boxed{\frac{2}{4}}", r"\boxed{2}", "I do not know.")
    new, asked = voted("1/2", *answers)
    assert [ask.sample for ask in asked] == [0, 1, 2, 3, 4]
    assert asked[0].prompt[-1]["content"] == INSTRUCTION + "What is it?"
    assert new["extra_info"]["votes"] == [asdict(Votes("judge", 5, 4, 0, 3, 3, "0.5", True))]


CUT = Response("", r"\boxed{3}, but wait", 9, 9, "length")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"), (3, 0, 2, 1, "2", False)),
        ((CUT, r"\boxed{3}"), (1, 0, 1, 1, "3", True)),
        ((r"\boxed{No solution}", r"\boxed{\text{no solution.}}", r"\boxed{3}", "cut"), (1, 2, 1, 1, "3", True)),
        ((r"\boxed{No solution}",), (0, 1, 0, 0, None, False)),
    ],
)
def test_a_solution_that_says_that_there_is_none_or_was_cut_off_is_no_answer(answers, expected):
    found = voted("3", *answers)[0]["extra_info"]["votes"][0]
    assert Votes(**found) == Votes("judge", len(answers), *expected)


def test_no_solution_can_be_said_in_several_ways():
    for answer in ("No solution", r"\text{No Solution}", "there is no solution", "nosolution", "unsolvable"):
        assert says_unsolvable(answer)
    assert not says_unsolvable("0") and not says_unsolvable("no solution for x = 2, else 3")


def test_votes_of_several_models_stand_side_by_side_and_those_of_one_model_are_replaced():
    first, _ = voted("3", r"\boxed{3}", model="a")
    second, _ = voted("3", r"\boxed{4}", model="b", row=first)
    again, _ = voted("3", r"\boxed{5}", model="a", row=second)
    assert [(votes["model"], votes["answer"]) for votes in again["extra_info"]["votes"]] == [("b", "4"), ("a", "5")]


def test_rows_of_other_verifiers_are_not_asked_about_and_pass_the_selection():
    row = {**rl_row("Write a program.", gold="{}", source="apps"), "ability": "code"}
    (new,), asked = conversed(voting(row, "judge", 3), str)
    assert not asked and new["extra_info"]["votes"] is None
    assert select(new) == [new]


# ---- selection ----


def votes(solvable=5, agreeing=5, matching=5, matches=True, of=5, model="m"):
    return Votes(model, of, solvable, of - solvable, agreeing, matching, "7" if agreeing else None, matches)


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
def test_the_selection_keeps_what_is_solvable_agreed_and_the_reference(given_votes, settings, reason):
    found = find_reason(given_votes, **{"min_solvable": 0.6, "min_agreement": 0.6, **settings})
    assert (found and found.rule) == reason


counts = st.integers(1, 9).flatmap(
    lambda of: st.tuples(st.just(of), *(st.integers(0, of) for _ in range(3)), st.booleans())
)


@given(counts, st.tuples(*(st.floats(0, 1) for _ in range(2))), st.floats(0, 1))
def test_a_stricter_rule_never_keeps_more(numbers, shares, more):
    of, solvable, agreeing, matching, matches = numbers
    one = votes(solvable, agreeing, matching, matches, of)
    strict = [min(1.0, share + more) for share in shares]
    assert find_reason([one], *shares) is None or find_reason([one], *strict) is not None
