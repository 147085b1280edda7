# SPDX-License-Identifier: Apache-2.0
"""Test cases in the forms of the public data sets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.code.cases import (
    AssertionProblem,
    MalformedTests,
    PairProblem,
    parse_test_cases,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["inputs", "outputs", "fn_name", "test", "test_list", "test_imports", "prompt", "entry_point"]
)


def test_standard_input_as_dict_or_as_json():
    cases = {"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", ["4"]]}
    expected = PairProblem((("1\n", "1\n"), ("2\n3", "4")))
    assert parse_test_cases(cases) == parse_test_cases(json.dumps(cases)) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "tests"),
    [
        (['[1, 2]\n"x"'], ["[3]"], [(([1, 2], "x"), ([3],))]),
        # [3] may be the result or hold it: either counts.
        ([[1, 2], [3, 4]], [[3], 7], [((1, 2), ([3], 3)), ((3, 4), (7,))]),
    ],
)
def test_calls_with_json_lines_or_lists_of_arguments(inputs, outputs, tests):
    problem = parse_test_cases({"fn_name": "f", "inputs": inputs, "outputs": outputs})
    assert problem == PairProblem(tuple(tests), "f")


@pytest.mark.parametrize(
    "cases, message",
    [
        ({"test": "x = 1\ndef f(): assert x\nf(g())"}, "no test"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "int instead of text"),
        ({"fn_name": "f", "inputs": ["{"], "outputs": ["1"]}, "no JSON"),
        ({}, "neither inputs nor tests"),
        (None, "NoneType"),
        ({"test": "assert f()", "entry_point": "f"}, "no check"),
        ({"test_list": ["assert abs(max(1)) == 1"]}, "entry_point"),
        ({"test_list": [3]}, "list of strings"),
    ],
)
def test_malformed_cases_say_what_is_wrong(cases, message):
    with pytest.raises(MalformedTests, match=message):
        parse_test_cases(cases)


@pytest.mark.parametrize(
    "tests, entry_points",
    [
        (["assert f(1) == 2"], ("f",)),
        (["assert set(f(1)) == set([1])", "assert not f(2)"], ("f",)),
        (["assert sum(10, 15) == 6"], ("sum",)),
        (["assert count(3) == gcd(1, 2)"], ("count", "gcd")),
        (["import math\nassert math.isclose(f(2), 1.0)"], ("f",)),
        (["a = make(3)\nassert use(a) == [x for x in range(3)]"], ("make", "use")),
    ],
)
def test_the_tests_alone_show_what_is_tested(tests, entry_points):
    problem = parse_test_cases({"test_list": tests})
    assert isinstance(problem, AssertionProblem) and problem.entry_points == entry_points


def test_an_open_prompt_is_completed():
    for prompt in ("def f(x):\n", 'import math\n\ndef f(x):\n    """Say."""\n', ""):
        cases = {
            "prompt": prompt,
            "entry_point": "f",
            "test": "def check(candidate):\n    assert candidate(1)",
        }
        tests = parse_test_cases(cases)
        assert tests.tests == "check(f)" and tests.entry_points == ("f",)
        compile(tests.setup, "setup", "exec")


@given(st.dictionaries(KEYS | st.text(max_size=5), JSON, max_size=5) | JSON)
def test_any_cases_are_a_problem_with_tests_or_malformed(cases):
    try:
        problem = parse_test_cases(cases)
    except MalformedTests as error:
        assert str(error)
    else:
        assert problem.tests
