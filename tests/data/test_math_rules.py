# SPDX-License-Identifier: Apache-2.0
"""Rows of sources as math problems, and the rules that remove some of them."""

import pytest

from data_preprocessing.math_problem import MathProblem, gsm8k_row, solved_row
from data_preprocessing.math_rules import MAX_CHARACTERS, RULES, rule_filter, unbalanced, without_drawings
from data_preprocessing.self_grading import ungradable
from prime_ext.tasks.cells import RowError
from prime_ext.utils.rows import BadRow


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("Half of it is 2/2=<<2/2=1>>1.\n#### 1,234", "1234"),
        ("It falls.\n#### -3", "-3"),
        ("Prices.\n#### 2.50 ", "2.50"),
        ("The answer is 3.", ""),
        ("A mark on the way: #### 5\nand on it goes", ""),
    ],
)
def test_the_answer_of_gsm8k_is_the_number_after_the_marker_without_separators(solution, answer):
    assert gsm8k_row({"question": "How many?", "answer": solution}) == ("How many?", solution.strip(), answer)


def test_the_answer_is_that_of_its_column_and_else_the_last_box_of_the_solution():
    solution = r"First \boxed{1}. So it is \boxed{\frac{1}{2}}."
    assert solved_row({"problem": "P", "solution": solution, "answer": "0.5"})[2] == "0.5"
    assert solved_row({"problem": "P", "solution": solution, "answer": None})[2] == r"\frac{1}{2}"
    assert solved_row({"problem": "P", "solution": "No box."})[2] == ""
    assert solved_row({"question": "P", "answer": 142.0}) == ("P", "", "142.0")


@pytest.mark.parametrize(
    ("row", "error", "reason"),
    [
        ({"solution": "x"}, BadRow, "no column problem or question"),
        ({"problem": "P"}, BadRow, "neither column solution nor answer"),
        ({"problem": "  ", "answer": "1"}, RowError, "problem is empty"),
        ({"problem": ["P"], "answer": "1"}, RowError, "problem must be a text"),
        ({"problem": "P", "answer": {"x": 1}}, RowError, "answer must be a text"),
        ({"problem": "half \ud800", "answer": "1"}, RowError, "half a character"),
    ],
)
def test_a_row_without_usable_columns_is_refused_with_the_reason(row, error, reason):
    with pytest.raises(error, match=reason):
        solved_row(row)


def removed_by(text, answer="7", solution="", rules=tuple(RULES)):
    removal = rule_filter(rules)(MathProblem("s", "train", 0, text, solution, answer))
    return None if removal is None else removal.rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("In the figure, what is $AB$?", "figure"),
        ("What is the perimeter of figure $ABCD$?", "figure"),
        ("The areas are as in Figure 2. Find $x$.", "figure"),
        ("Find $x$. ![](https://cdn.example/1.png)", "figure"),
        (r"\includegraphics{a.png} Find $x$.", "figure"),
        ("What is the area of the region shown in the diagram?", "figure"),
        ("What is shown in the diagram? [asy] draw(A--B); [/asy]", None),
        ("Ana sells 4 action figures. How many dollars?", None),
        ("Round $\\pi$ to 3 significant figures.", None),
        ("He tries to figure out how many.", None),
        ("How many? [asy] // the figure\ndraw(A--B); [/asy]", None),
        ("Prove that $2>1$.", "proof"),
        ("Let $x>1$. Show that $x^2>1$.", "proof"),
        ("Find $x$ and show that it is unique.", "proof"),
        ("Records show that 5 teams won. How many lost?", None),
        ("They improve by 3 each day. How many?", None),
        ("The conjecture was disproved with $n$. Find $n$.", None),
        ("Which is it? (A) 1 (B) 2 (C) 3", "choice"),
        (r"Which? $\textbf{(A)}\ 1\qquad\textbf{(B)}\ 2\qquad\textbf{(C)}\ 3$", "choice"),
        ("Which?\nA. 1\nB. 2\nC. 3", "choice"),
        ("Which?\nA: 1\nB: 2\nC: 3", "choice"),
        ("Which? A) 1 B) 2 C) 3", "choice"),
        ("If $P(A)=.1$, $P(B)=.2$ and $P(C)=.3$, what is the sum?", None),
        ("The sides of triangle ABC have $A:B:C=3:4:5$. Find $A$.", None),
        ('[asy] label("$A$",A); label("$B$",B); label("$C$",C); [/asy] How long is $AB$?', None),
        ("(B) and (A) and (C) are letters. How many?", None),
        (r"The answer is \underline{\hspace{2cm}}.", "blank"),
        (r"The answer is \underline{\qquad}.", "blank"),
        ("The answer is ____.", "blank"),
        (r"Find the four-digit number $\underline{a}\,\underline{b}12$.", None),
        (r"What is $\sqrt{49$?", "broken_latex"),
        (r"For $\left\{ x \right.$, what is $x$?", None),
        ("x" * (MAX_CHARACTERS + 1), "giant"),
        ("What is $3+4$?", None),
    ],
)
def test_a_rule_removes_what_it_names_and_not_what_looks_like_it(text, rule):
    assert removed_by(text) == rule


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ("", "no_answer"),
        (r"\text{odd}", "no_digit"),
        (r"\frac{1}{2", "broken_latex"),
        ("2^{3^{4^{5}}}", "ungradable"),
        (r"\frac{1}{2}", None),
        ("(1, 2)", None),
        ("-1.5", None),
    ],
)
def test_answers_that_cannot_be_learned_from_go(answer, rule):
    assert removed_by("What is it?", answer) == rule


def test_only_the_named_rules_apply_in_their_own_order():
    text = "Prove what the figure says: (A) 1 (B) 2 (C) 3"
    assert removed_by(text) == "figure"
    assert removed_by(text, rules=("choice", "proof")) == "proof"
    assert removed_by(text, rules=()) is None
    with pytest.raises(KeyError, match="no rule 'fun'"):
        rule_filter(["fun"])


def test_every_rule_says_what_it_saw():
    found = rule_filter(["proof"])(MathProblem("s", "train", 0, "x" * 500 + ". Prove that!", "", "1"))
    assert "Prove that!" in found.evidence and len(found.evidence) < 100


def test_braces_are_counted_without_the_escaped_ones():
    assert not unbalanced(r"\{1, 2\} \text{a}") and not unbalanced(r"\left\{ x \right.")
    assert unbalanced("{") and unbalanced("}}{") and unbalanced(r"\frac{1}{2")


def test_drawings_are_cut_out_and_unclosed_ones_stay():
    assert without_drawings("a[asy]b[/asy]c[asy]d[/asy]") == "a c "
    assert without_drawings("a[asy]b") == "a[asy]b"


def test_an_answer_that_only_equals_itself_is_ungradable():
    assert ungradable("12") is None and ungradable(r"\frac{\sqrt{2}}{2}") is None
    assert "tower of powers" in ungradable("2^{3^{4^{5}}}")
    assert "read as" in ungradable("1}, {2") and "read as" in ungradable(r"\boxed{3}")


@pytest.mark.parametrize("piece", ["(A", "_", "\\underline{", "figure ", "[asy]", " show that"])
def test_hostile_texts_take_linear_time(piece):
    removed_by(piece * 20_000, answer="1" * 100_000 + "{", rules=tuple(name for name in RULES if name != "giant"))
