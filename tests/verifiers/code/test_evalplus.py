# SPDX-License-Identifier: Apache-2.0
"""HumanEval+ and MBPP+: agreement with the reference solution, by EvalPlus' rules, in the sandbox."""

import json

import pytest

from prime_ext.verifiers.code import CodeVerifier, MalformedTests, evalplus_oracle, parse_test_cases
from prime_ext.verifiers.code.evalplus_oracle import agree, shape_of, shaped

ROW = {
    "task_id": "HumanEval/9000",
    "prompt": 'def twice(values):\n    """Every value twice."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return [2 * value for value in values]\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[]], [[0.1]]],
    "atol": 0,
}


@pytest.mark.parametrize(
    ("output", "expected", "atol", "right"),
    [
        ([1, 2], (1, 2), 0, False),
        # Floats have a tolerance of a millionth even where the problem has none, and of their type and length only.
        (0.3, 0.1 + 0.2, 0, True),
        (0.3001, 0.1 + 0.2, 0, False),
        (3, 3.0000001, 0, False),
        ([0.1, 0.2], [0.1, 0.2 + 1e-8], 0, True),
        ([0.1], [0.1, 0.2], 0, False),
        ((0.1, 0.2), [0.1, 0.2 + 1e-8], 0, False),
        # A list that holds anything but floats is exact.
        ([0.3, "a"], [0.1 + 0.2, "a"], 0, False),
        ([[10.005]], [[10.0]], 1e-2, True),
        ({"a": 10.005}, {"a": 10.0}, 1e-2, False),
        ("a", "b", 1e-2, False),
        (1 + 1e-9j, 1 + 0j, 1e-6, True),
    ],
)
def test_outputs_agree_by_the_rules_of_evalplus(output, expected, atol, right):
    assert agree(False, "f", [], output, expected, atol) is right


@pytest.mark.parametrize(
    ("entry_point", "arguments", "output", "expected", "right"),
    [
        ("similar_elements", [], [2, 1, 1], (1, 2), True),
        ("similar_elements", [], [2], (1, 2), False),
        ("check_str", [], "a match", "another", True),
        ("check_str", [], None, "a match", False),
        ("check_str", [], False, None, True),
        ("are_equivalent", [1, 2], True, False, True),
        ("sum_div", [3], 0, 1, True),
        ("sum_div", [3], 2, 1, False),
        ("digit_distance_nums", [1, 29], 10, 0, True),
        ("surface_Area", [3, 4], 35, 33, True),
        ("surface_Area", [3, 4], 34, 33, False),
    ],
)
def test_problems_of_mbpp_with_rules_of_their_own(entry_point, arguments, output, expected, right):
    assert agree(True, entry_point, arguments, output, expected, 0) == right
    # Elsewhere the same names mean nothing.
    assert not agree(False, entry_point, arguments, output, expected, 0)


def test_a_root_is_right_where_the_polynomial_is_zero():
    assert agree(False, "find_zero", [[1, 2]], -0.50001, None, 1e-4)
    assert not agree(False, "find_zero", [[1, 2]], -0.6, -0.5, 1e-4)


@pytest.mark.parametrize(
    ("number", "arguments", "wanted"),
    [
        (63, [[[1, 2], [3]]], [[(1, 2), (3,)]]),
        (1, [[1], 2], [[1], 2]),
        (106, [[1], [2, 3]], [[1], (2, 3)]),
        (115, [[[1, 1], [], 3]], [[{1}, {}, {}]]),
        (124, ["1.5", "2+1j"], [1.5, 2 + 1j]),
        (252, ["3j"], [3j]),
        (259, [[[1], [2]]], [((1,), (2,))]),
        (278, [[1, [2, 3]]], [(1, (2, 3))]),
        (307, [[1, []], 2, 50], [(1, []), 2, 50]),
        (580, [[1, [2, [3]]]], [(1, (2, (3,)))]),
        (722, [{"a": [1, 2]}, 3, 4], [{"a": (1, 2)}, 3, 4]),
    ],
)
def test_arguments_have_the_types_that_json_cannot_hold(number, arguments, wanted):
    found = shaped(arguments, shape_of(f"Mbpp/{number}"))
    assert found == wanted and repr(found) == repr(wanted)
    assert shape_of(f"HumanEval/{number}") == ""


def test_no_problem_has_two_shapes():
    numbers = [number for group in evalplus_oracle.SHAPES.values() for number in group]
    assert len(numbers) == len(set(numbers)) == 62


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": 3}, "task_id must be a text"),
        ({"entry_point": "f g"}, "entry_point 'f g' is no name"),
        ({"base_input": [1]}, "base_input must be a list of lists of arguments"),
        ({"atol": -1}, "atol must be a number of at least 0, got -1"),
        ({"prompt": "def f(:"}, "the prompt is no Python"),
    ],
)
def test_rows_that_are_not_of_evalplus_are_refused(change, message):
    with pytest.raises(MalformedTests, match=message):
        parse_test_cases({**ROW, **change})


def test_the_base_tests_may_stand_alone():
    row = {key: value for key, value in ROW.items() if key != "plus_input"}
    assert parse_test_cases(json.dumps(row)).parts == (("base", 1),)


@pytest.fixture(scope="module")
def verifier():
    return CodeVerifier()


IN_PLACE = """
def twice(values):
    for i in range(len(values)):
        values[i] += values[i]
    return values
"""
# Neither the reference solution's source nor its outputs are in the program's process.
LOOKS_FOR_THE_REFERENCE = """
import gc
def twice(values):
    found = [o for o in gc.get_objects() if isinstance(o, dict) and '_evalplus_check' in o]
    return 'found' if found or '_evalplus' in globals() else [value + value for value in values]
"""
ENDLESS_IF_EMPTY = """
def twice(values):
    while not values: pass
    return [2 * value for value in values]
"""


@pytest.mark.parametrize(
    ("program", "outcome", "plus"),
    [(IN_PLACE, "correct", 1.0), (LOOKS_FOR_THE_REFERENCE, "correct", 1.0), (ENDLESS_IF_EMPTY, "timeout", 0.0)],
)
def test_programs_and_their_parts(verifier, program, outcome, plus):
    verdict = verifier.with_limits(seconds=5.0).verify_program(program, ROW)
    assert (verdict.outcome, verdict.parts) == (outcome, {"base": 1.0, "plus": plus}), verdict.detail


def test_a_reference_solution_that_fails_is_the_graders_fault(verifier):
    row = {**ROW, "canonical_solution": "    return 1 / 0\n"}
    verdict = verifier.verify_program("def twice(values): return []", row)
    assert verdict.grader_failure and "ZeroDivisionError" in verdict.detail and not verdict.parts


def test_a_function_may_bear_a_name_of_the_oracle(verifier):
    solution = "def agree(x):\n    return x + 1\n"
    row = {**ROW, "prompt": '"""Add one."""\n', "canonical_solution": solution, "entry_point": "agree"}
    row |= {"base_input": [[1]], "plus_input": [[2]]}
    assert verifier.verify_program(solution, row).correct
    assert not verifier.verify_program("def agree(*x): return True", row).correct


def test_a_limit_that_makes_no_sense_is_refused(verifier):
    with pytest.raises(ValueError, match="seconds_per_problem=0"):
        verifier.with_limits(seconds_per_problem=0)


def test_a_method_without_its_class_is_put_into_it(verifier):
    """As the evaluation of PRIME does with LeetCode's."""
    cases = {"test": "assert Solution().double(2) == 4\nassert Solution().double(0) == 0"}
    assert verifier.verify_program("def double(self, x):\n    return 2 * x", cases).correct
    assert not verifier.verify_program("def double(self, x):\n    return 3 * x", cases).correct
