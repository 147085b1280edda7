# SPDX-License-Identifier: Apache-2.0
"""The rules of math and code, the choice of tests, and reference programs in the sandbox."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.check_solutions import CheckSolutions
from data_preprocessing.code_rules import CODE_RULES, CodeTests, spread
from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.grading import ungradable
from data_preprocessing.math_rules import MATH_RULES, MAX_CHARACTERS, unbalanced, without_drawings
from data_preprocessing.math_sources import MathProblem
from data_preprocessing.stages import Removal, apply_rules


def removal_of(text, answer="7", rules=tuple(MATH_RULES)):
    return apply_rules(MATH_RULES, rules, MathProblem("s", "train", 0, text, "", answer), without_drawings(text))


def removed_by(*given, **options):
    removal = removal_of(*given, **options)
    return None if removal is None else removal.rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("In the figure, what is $AB$?", "figure"),
        (r"\includegraphics{a.png} Find $x$.", "figure"),
        ("What is the area of the region shown in the diagram?", "figure"),
        ("What is shown in the diagram? [asy] draw(A--B); [/asy]", None),
        ("Ana sells 4 action figures. How many dollars?", None),
        ("Round $\\pi$ to 3 significant figures.", None),
        ("How many? [asy] // the figure\ndraw(A--B); [/asy]", None),
        ("Prove that $2>1$.", "proof"),
        ("Records show that 5 teams won. How many lost?", None),
        ("Which is it? (A) 1 (B) 2 (C) 3", "choice"),
        ("Which?\nA. 1\nB. 2\nC. 3", "choice"),
        ("If $P(A)=.1$, $P(B)=.2$ and $P(C)=.3$, what is the sum?", None),
        ("The sides of triangle ABC have $A:B:C=3:4:5$. Find $A$.", None),
        ('[asy] label("$A$",A); label("$B$",B); label("$C$",C); [/asy] How long is $AB$?', None),
        (r"The answer is \underline{\hspace{2cm}}.", "blank"),
        (r"Find the four-digit number $\underline{a}\,\underline{b}12$.", None),
        (r"What is $\sqrt{49$?", "broken_latex"),
        (r"For $\left\{ x \right.$, what is $x$?", None),
        ("x" * (MAX_CHARACTERS + 1), "giant"),
        (("?", ""), "no_answer"),
        (("?", r"\text{odd}"), "no_digit"),
        (("?", r"\frac{1}{2"), "broken_latex"),
        (("?", "2^{3^{4^{5}}}"), "ungradable"),
        *((("?", answer), None) for answer in (r"\frac{1}{2}", "(1, 2)", "-1.5")),
    ],
)
def test_a_rule_removes_what_it_names_and_not_what_looks_like_it(text, rule):
    """Of a problem, or a problem and its answer."""
    assert removed_by(*([text] if isinstance(text, str) else text)) == rule


def test_only_the_named_rules_apply_in_their_own_order_and_say_what_they_saw():
    text = "Prove what the figure says: (A) 1 (B) 2 (C) 3"
    assert removed_by(text) == "figure"
    assert removed_by(text, rules=("choice", "proof")) == "proof"
    assert removed_by(text, rules=()) is None
    found = removal_of("x" * 500 + ". Prove that!", "1", ["proof"])
    assert "Prove that!" in found.evidence and len(found.evidence) < 100


def test_braces_drawings_and_answers_that_only_equal_themselves():
    assert not unbalanced(r"\{1, 2\} \text{a}") and not unbalanced(r"\left\{ x \right.")
    assert unbalanced("{") and unbalanced("}}{") and unbalanced(r"\frac{1}{2")
    assert without_drawings("a[asy]b[/asy]c[asy]d[/asy]") == "a c "
    assert without_drawings("a[asy]b") == "a[asy]b"
    assert ungradable("12") is None and ungradable(r"\frac{\sqrt{2}}{2}") is None
    assert "tower of powers" in ungradable("2^{3^{4^{5}}}")
    assert "read as" in ungradable("1}, {2") and "read as" in ungradable(r"\boxed{3}")


@pytest.mark.parametrize("piece", ["(A", "_", "\\underline{", "figure ", "[asy]", " show that"])
def test_hostile_texts_take_linear_time(piece):
    removed_by(piece * 20_000, "1" * 100_000 + "{", tuple(name for name in MATH_RULES if name != "giant"))


# ---- code ----


def problem(text="Print the sum.", inputs=("1\n",), outputs=("1\n",), **more):
    return CodeProblem("apps", "train", 0, text, tuple(inputs), tuple(outputs), **more)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (problem("Look: <img src='a'>"), "image"),
        (problem("see https://a.org/x.png for it"), "image"),
        (problem(marks=("picture",)), "image"),
        (problem("This is an interactive problem."), "interactive"),
        (problem("If there are multiple answers, print any of them."), "several_answers"),
        (problem("x" * 20_001), "long_statement"),
        (problem(marks=("file",)), "files"),
        (problem(unreadable="no JSON"), "unreadable_tests"),
        (problem(inputs=["1", "1 "], outputs=["a", "b"]), "contradictory_tests"),
        (problem(inputs=["1", "1"], outputs=["a", " a\n"]), None),
        (problem("Print the image of the number under the function."), None),
        (problem("If there are many coins, give the number of them mod 7."), None),
    ],
)
def test_a_rule_of_code_removes_what_it_is_for(row, rule):
    found = apply_rules(CODE_RULES, tuple(CODE_RULES), row, row.problem)
    assert (found and found.rule) == rule


def test_cut_repeated_and_large_tests_go_and_an_even_spread_of_the_others_stays():
    inputs = ["0", "1" * 300 + "...", "0", "2" * 90, *map(str, range(10, 20))]
    kept, gone = CodeTests(most_tests=4, most_bytes=80).choose(inputs, ["x"] * len(inputs))
    assert [inputs[number] for number in kept] == ["0", "12", "15", "19"]
    assert gone == {"cut tests": 1, "repeated tests": 1, "tests too large": 1, "tests beyond the limits": 7}
    inputs = ["a" * 40, "b" * 10, "c" * 40, "d" * 20]
    kept, _ = CodeTests(most_bytes_in_all=90).choose(inputs, [""] * 4)
    assert [inputs[number][0] for number in kept] == ["b", "d"]
    assert CodeTests(most_bytes=len(json.dumps(["é", ""]))).choose(["é"], [""])[0] == [0]


@given(st.integers(0, 60), st.integers(1, 20))
def test_a_spread_has_no_more_than_asked_in_order_with_both_ends(n, k):
    places = spread(n, k)
    assert len(places) == min(n, k) and places == sorted(set(places))
    if n and k > 1:
        assert places[0] == 0 and places[-1] == n - 1


def test_a_problem_without_tests_left_goes_and_says_why():
    found = CodeTests(most_bytes=30).judge(problem(inputs=["1" * 50], outputs=["1"]))
    assert isinstance(found, Removal) and found.rule == "no_tests" and "tests too large 1" in found.evidence
    assert CodeTests().judge(problem()) is None


def test_problems_without_a_program_can_be_removed_and_other_splits_stay_as_published():
    rows = [problem(programs=()), CodeProblem("apps", "test", 0, "x", programs=("print(1)",))]
    found = CheckSolutions(without_solutions="remove").judge_all(rows, lambda pairs: [])
    assert found[0].rule == "no_solutions" and found[1] is None
