# SPDX-License-Identifier: Apache-2.0
"""The rule filter of code, the choice of tests, and reference programs in the sandbox."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.check_solutions import SolutionOptions, close_sandboxes, stage
from data_preprocessing.code_problem import CodeProblem
from data_preprocessing.code_rules import CODE_RULES, code_filter
from data_preprocessing.code_tests import SizeLimits, chosen_tests, spread, within_limits
from data_preprocessing.stage import Changed, Removal
from prime_ext.verifiers.sandbox import SandboxUnavailable, find_protection


def problem(text="Print the sum.", inputs=("1\n",), outputs=("1\n",), **more):
    return CodeProblem("apps", "train", 0, text, tuple(inputs), tuple(outputs), **more)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("image", "Look: <img src='a'>"),
        ("image", "the board <image> shows"),
        ("image", "![a board](x)"),
        ("image", "see https://a.org/x.png for it"),
        ("image", "as in the picture below"),
        ("image", "The figure above is a tree."),
        ("interactive", "This is an interactive problem."),
        ("interactive", "Do not forget to flush the output."),
        ("interactive", "Use fflush(stdout) after that."),
        ("several_answers", "If there are multiple answers, print any of them."),
        ("several_answers", "You can output any."),
        ("several_answers", "If there is more than one solution, find any."),
        ("long_statement", "x" * 20_001),
    ],
)
def test_a_rule_removes_what_it_is_for(rule, text):
    found = code_filter(list(CODE_RULES))(problem(text))
    assert found is not None and found.rule == rule


@pytest.mark.parametrize(
    "text",
    [
        "Print the image of the number under the function.",
        "The figures of a number are its digits; figure out their sum.",
        "Count the interactions of the particles.",
        "If there are many coins, print their number mod 7.",
        "You may assume any order of the input. Print the answer.",
    ],
)
def test_words_that_only_sound_like_it_stay(text):
    assert code_filter(["image", "interactive"])(problem(text)) is None


def test_marks_of_the_source_and_tests_remove_as_well():
    filter_ = code_filter(list(CODE_RULES))
    assert filter_(problem(marks=("picture",))).rule == "image"
    assert filter_(problem(marks=("interactive",))).rule == "interactive"
    assert filter_(problem(marks=("file",))).rule == "files"
    assert filter_(problem(unreadable="no JSON")).rule == "unreadable_tests"
    assert filter_(problem(inputs=["1", "1 "], outputs=["a", "b"])).rule == "contradictory_tests"
    assert filter_(problem(inputs=["1", "1"], outputs=["a", " a\n"])) is None


def test_cut_repeated_and_large_tests_go_and_an_even_spread_of_the_others_stays():
    inputs = ["0", "1" * 300 + "...", "0", "2" * 90, *map(str, range(10, 20))]
    kept, gone = chosen_tests(inputs, ["x"] * len(inputs), SizeLimits(most_tests=4, most_bytes=80))
    assert [inputs[number] for number in kept] == ["0", "12", "15", "19"]
    assert gone == {"cut tests": 1, "repeated tests": 1, "tests too large": 1, "tests beyond the limits": 7}


def test_of_tests_that_are_too_large_together_the_largest_go():
    inputs = ["a" * 40, "b" * 10, "c" * 40, "d" * 20]
    kept, _ = chosen_tests(inputs, [""] * 4, SizeLimits(most_bytes_in_all=90))
    assert [inputs[number][0] for number in kept] == ["b", "d"]


@given(st.integers(0, 60), st.integers(1, 20))
def test_a_spread_has_no_more_than_asked_in_order_with_both_ends(n, k):
    places = spread(n, k)
    assert len(places) == min(n, k) and places == sorted(set(places))
    if n and k > 1:
        assert places[0] == 0 and places[-1] == n - 1


def test_a_problem_without_tests_left_goes_and_says_why():
    found = within_limits(SizeLimits(most_bytes=30))(problem(inputs=["1" * 50], outputs=["1"]))
    assert isinstance(found, Removal) and found.rule == "no_tests" and "tests too large 1" in found.evidence
    assert within_limits(SizeLimits())(problem()) == problem()


def sandbox_works():
    try:
        find_protection()
    except SandboxUnavailable:
        return False
    return True


needs_sandbox = pytest.mark.skipif(not sandbox_works(), reason="this machine cannot confine programs")
LOOP, RIGHT = "while True:\n    pass\n", "print(len(input()))\n"
HOSTILE = "import os, socket\nopen('/tmp/prime_ext_was_here', 'w')\nos.kill(os.getppid(), 9)\nprint(3)\n"


@needs_sandbox
def test_programs_are_tried_in_order_in_the_sandbox_until_one_passes():
    rows = [
        problem(inputs=["abc\n"], outputs=["3\n"], programs=(LOOP, HOSTILE, RIGHT)),
        problem(inputs=["abc\n"], outputs=["3\n"], programs=(RIGHT,)),
        problem(inputs=["abc\n"], outputs=["4\n"], programs=(RIGHT, HOSTILE)),
        problem(programs=()),
        problem(inputs=[[2]], outputs=[[4]], function="double", programs=("def double(x):\n    return 2 * x\n",)),
    ]
    options = SolutionOptions(seconds=3.0, sandbox_workers=2)
    try:
        found = stage(options, None)(rows)
    finally:
        close_sandboxes()
    assert [type(result) for result in found] == [Changed, Changed, Removal, Changed, Changed]
    assert [found[place].notes for place in (0, 1, 3, 4)] == [
        {"passed by program 3": 1},
        {"passed by program 1": 1},
        {"kept without a Python program": 1},
        {"passed by program 1": 1},
    ]
    assert found[2].rule == "solutions_fail" and "2 of 2 programs tried: wrong" in found[2].evidence


def test_problems_without_a_program_can_be_removed_and_other_splits_stay_as_published():
    rows = [problem(programs=()), CodeProblem("apps", "test", 0, "x", programs=("print(1)",))]
    found = stage(SolutionOptions(without_solutions="remove"), None)(rows)
    assert found[0].rule == "no_solutions" and found[1] is rows[1]


def test_the_limits_of_tests_count_bytes_as_json():
    kept, _ = chosen_tests(["é"], [""], SizeLimits(most_bytes=len(json.dumps(["é", ""]))))
    assert kept == [0]
