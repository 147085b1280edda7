# SPDX-License-Identifier: Apache-2.0
"""Rows of sources as problems: rules of math and code, choice of tests, reference programs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.check_solutions import CheckSolutions
from data_preprocessing.code_rules import CODE_RULES, CodeTests, spread_evenly
from data_preprocessing.code_sources import MOST_PROGRAMS, CodeProblem, join_submissions
from data_preprocessing.math_rules import MATH_RULES, MAX_CHARACTERS, remove_drawings
from data_preprocessing.math_sources import MathProblem, read_gsm8k_row, read_solved
from data_preprocessing.pipeline import SOURCES
from data_preprocessing.problem_sources import number_rows
from data_preprocessing.stages import Removal, apply_rules
from prime_ext.utils.rows import BadRow, read_source
from prime_ext.verifiers.code.cases import parse_test_cases

# ---- sources ----


FIXTURES = Path(__file__).parent / "fixtures"


def get_problems(name):
    source = SOURCES[name]
    rows = read_source(FIXTURES / source.local["train"])
    rows = source.joined(rows) if source.joined else rows
    return [
        source.problem(row, "train", n)
        for n, (_, row) in enumerate(rows)
        if not isinstance(row, BadRow)
    ]


BOXES = r"First \boxed{1}. So it is \boxed{\frac{1}{2}}."


@pytest.mark.parametrize(
    ("parse", "row", "solution", "answer"),
    [
        (read_gsm8k_row, {"question": "P", "answer": "<<2/2=1>>1.\n#### 1,234"},
         "<<2/2=1>>1.\n#### 1,234", "1234"),
        (read_gsm8k_row, {"question": "P", "answer": "Prices.\n#### 2.50 "}, "Prices.\n#### 2.50",
         "2.50"),
        (read_gsm8k_row, {"question": "P", "answer": "On the way: #### 5\nand on"},
         "On the way: #### 5\nand on", ""),
        (read_solved, {"problem": "P", "solution": BOXES, "answer": "0.5"}, BOXES, "0.5"),
        (read_solved, {"problem": "P", "solution": BOXES, "answer": None}, BOXES, r"\frac{1}{2}"),
        (read_solved, {"problem": "P", "solution": r"\boxed{3}, so \boxed 7."},
         r"\boxed{3}, so \boxed 7.", "7"),
        (read_solved, {"problem": "P", "solution": "No box."}, "No box.", ""),
        (read_solved, {"question": "P", "answer": 142.0}, "", "142.0"),
    ],
)  # fmt: skip
def test_answers_are_read_from_markers_columns_and_last_boxes(parse, row, solution, answer):
    assert parse(row) == {"problem": "P", "solution": solution, "answer": answer}


def test_only_an_equal_id_was_there_before():
    """Python's own hash takes -1 and -2 for the same, and 1 and 2**61."""
    ids = [-1, -2, 1, 2**61, "1", "-1", -2]
    numbered = [(number, {"id": value}) for number, value in enumerate(ids, start=1)]
    source = SimpleNamespace(name="set", id_column="id")
    split = SimpleNamespace(
        source=source, split="train", name="rows", path=None, rows=lambda: numbered
    )
    *first, again = [row for *_, row in number_rows([split])]
    assert [row["id"] for row in first] == ids[:-1] and isinstance(again, BadRow)


# ---- programs ----


def test_tests_keep_their_text_and_say_what_they_call():
    first, second, *_ = problems = get_problems("apps")
    assert json.loads(first.ground_truth()) == {
        "inputs": ["2 3\n", "-4 10\n"],
        "outputs": ["5\n", "6\n"],
    }
    assert first.programs[0] == "print(7)\n" and len(first.programs) == 2
    assert json.loads(second.ground_truth()) == {
        "inputs": [[3], [-5]],
        "outputs": [[6], [-10]],
        "fn_name": "double",
    }
    assert parse_test_cases(second.ground_truth()).function == "double"
    assert second.statement().endswith(
        "Begin with this code:\n```python\ndef double(x):\n    pass\n```"
    )
    named = CodeProblem("apps", "train", 0, "Do it.", function="f")
    assert named.statement() == "Do it.\n\nName the function `f`."
    assert "no JSON" in problems[3].unreadable and problems[4].unreadable == "there is no test"
    assert problems[3].inputs == () and problems[3].programs


def test_submissions_become_problems_with_their_accepted_python_3_programs():
    first, second = get_problems("codeforces")
    assert first.programs == ("print(int(input()) // 2)\n",) and second.index == 2
    row = {"contestId": 1, "index": "A", "verdict": "OK", "programmingLanguage": "Python 3"}
    rows = [(n, {**row, "code": f"print({n})"}) for n in range(1, 40)]
    joined = dict(join_submissions(iter([*rows, (40, {"index": "A"})])))
    assert isinstance(joined[40], BadRow) and len(joined[1]["accepted_programs"]) == MOST_PROGRAMS


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("math", {"solution": "x"}, "no column problem or question"),
        ("math", {"problem": "P"}, "neither column solution nor answer"),
        ("math", {"problem": "P", "answer": {"x": 1}}, "answer must be a text"),
        ("apps", {"question": "x"}, "no column input_output"),
        ("codecontests", {"description": "x", "public_tests": [1]},
         "public_tests must have input and output"),
        ("codeforces", {"problem-description": "x", "test_cases": ["a"]},
         "test_cases must be a list of pairs"),
    ],
)  # fmt: skip
def test_rows_of_another_shape_are_bad_rows(name, row, reason):
    with pytest.raises(BadRow, match=reason):
        SOURCES[name].problem(row, "train", 0)


@pytest.mark.parametrize(
    "tests",
    [
        '{"inputs": ["\\ud800"], "outputs": ["1"]}',
        '{"inputs": [1], "outputs": ["1"]}',
        "[]",
        '{"test_list": ["assert 1"]}',
        '{"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}',
        "7" * 5000,
    ],
)
def test_strange_tests_are_unreadable_and_never_an_error(tests):
    row = {"question": "x", "input_output": tests, "solutions": '[7, "a"]'}
    problem = SOURCES["apps"].problem(row, "train", 0)
    assert problem.unreadable and problem.programs == ("a",)


# ---- rules ----


def get_removal(text, answer="7", rules=tuple(MATH_RULES)):
    return apply_rules(
        MATH_RULES, rules, MathProblem("s", "train", 0, text, "", answer), remove_drawings(text)
    )


def removed_by(*texts, **options):
    removal = get_removal(*texts, **options)
    return None if removal is None else removal.rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("In the figure, what is $AB$?", "figure"),
        (r"\includegraphics{a.png} Find $x$.", "figure"),
        ("<image> Find $x$.", "figure"),
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
        (("?", r"\boxed{3}"), "ungradable"),
        (("?", r"\frac{3}{}"), "ungradable"),
        (r"Is $\{1, 2\}$ in }}{ braces?", "broken_latex"),
        *((("?", answer), None) for answer in (r"\frac{1}{2}", "(1, 2)", "-1.5")),
    ],
)
def test_each_rule_removes_its_target_and_no_lookalikes(text, rule):
    """A text is a problem, a pair a problem and its answer."""
    assert removed_by(*([text] if isinstance(text, str) else text)) == rule


def test_named_rules_apply_in_fixed_order_and_quote_their_evidence():
    text = "Prove what the figure says: (A) 1 (B) 2 (C) 3"
    assert removed_by(text) == "figure"
    assert removed_by(text, rules=("choice", "proof")) == "proof"
    assert removed_by(text, rules=()) is None
    removal = get_removal("x" * 500 + ". Prove that!", "1", ["proof"])
    assert "Prove that!" in removal.evidence and len(removal.evidence) < 100


@pytest.mark.parametrize("piece", ["(A", "_", "\\underline{", "figure ", "[asy]", " show that"])
def test_hostile_texts_take_linear_time(piece):
    removed_by(
        piece * 20_000, "1" * 100_000 + "{", tuple(name for name in MATH_RULES if name != "giant")
    )


# ---- code ----


def problem(text="Print the sum.", inputs=("1\n",), outputs=("1\n",), **more):
    return CodeProblem("apps", "train", 0, text, tuple(inputs), tuple(outputs), **more)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (problem("Look: <img src='a'>"), "image"),
        (problem("see https://a.org/x.png for it"), "image"),
        (problem("This is an interactive problem."), "interactive"),
        (problem("If there are multiple answers, print any of them."), "several_answers"),
        (problem("x" * 20_001), "long_statement"),
        (problem(inputs=["1", "1 "], outputs=["a", "b"]), "contradictory_tests"),
        (problem(inputs=["1", "1"], outputs=["a", " a\n"]), None),
        (problem("Print the image of the number under the function."), None),
        (problem("If there are many coins, give the number of them mod 7."), None),
    ],
)
def test_a_rule_of_code_removes_what_it_is_for(row, rule):
    removal = apply_rules(CODE_RULES, tuple(CODE_RULES), row, row.problem)
    assert (removal and removal.rule) == rule


def test_unusable_tests_go_and_an_even_spread_of_others_stays():
    inputs = ["0", "1" * 300 + "...", "0", "2" * 90, *map(str, range(10, 20))]
    kept, gone = CodeTests(most_tests=4, most_bytes=80).choose(inputs, ["x"] * len(inputs))
    assert [inputs[number] for number in kept] == ["0", "12", "15", "19"]
    assert gone == {
        "cut tests": 1,
        "repeated tests": 1,
        "tests too large": 1,
        "tests beyond the limits": 7,
    }
    inputs = ["a" * 40, "b" * 10, "c" * 40, "d" * 20]
    kept, _ = CodeTests(most_bytes_in_all=90).choose(inputs, [""] * 4)
    assert [inputs[number][0] for number in kept] == ["b", "d"]
    assert CodeTests(most_bytes=len(json.dumps(["é", ""]))).choose(["é"], [""])[0] == [0]


@given(st.integers(0, 60), st.integers(1, 20))
def test_spread_returns_at_most_k_ordered_places_with_both_ends(n, k):
    places = spread_evenly(n, k)
    assert len(places) == min(n, k) and places == sorted(set(places))
    if n and k > 1:
        assert places[0] == 0 and places[-1] == n - 1


def test_a_problem_without_tests_left_goes_and_says_why():
    removal = CodeTests(most_bytes=30).judge(problem(inputs=["1" * 50], outputs=["1"]))
    assert (
        isinstance(removal, Removal)
        and removal.rule == "no_tests"
        and "tests too large 1" in removal.evidence
    )
    assert CodeTests().judge(problem()) is None


def test_problems_without_programs_go_and_other_splits_stay_unchanged():
    rows = [problem(programs=()), CodeProblem("apps", "test", 0, "x", programs=("print(1)",))]
    results = CheckSolutions(without_solutions="remove").judge_all(rows, lambda pairs: [])
    assert results[0].rule == "no_solutions" and results[1] is None
