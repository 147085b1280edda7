# SPDX-License-Identifier: Apache-2.0
"""Test cases in the forms of the public data sets.

Input and output pairs (PRIME's Eurus-2-RL-Data, APPS, TACO, CodeContests), as a dict or its JSON text:

- ``{"inputs": [...], "outputs": [...]}``: each input is fed to standard input, each output is what must be printed. A
  list of strings stands for its lines.
- with ``"fn_name"``: each input holds the arguments of one call. A string holds one JSON value per line and its output
  is the JSON of the result (PRIME, LiveCodeBench). A list holds the arguments themselves, and its output is the result,
  or a list of one element that holds the result (APPS, TACO have both; see :class:`CallTest`).

Assertions, as a dict or its JSON text:

- ``{"prompt", "test", "entry_point"}``: HumanEval, whose test defines ``check(candidate)``;
- ``{"test_list", "test_imports"}``: MBPP, one assertion per test;
- ``{"test"}`` alone: LeetCode, a script whose assertions each count as one test.

Rows of benchmarks as they are published, see there:

- ``{"base_input", "plus_input", "canonical_solution", ...}``: HumanEval+ and MBPP+ (:mod:`.evalplus`);
- ``{"public_test_cases", "private_test_cases", "metadata"}``: LiveCodeBench (:mod:`.livecodebench`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.code import assertions, livecodebench
from prime_ext.verifiers.code.assertions import AssertionTests
from prime_ext.verifiers.code.evalplus import from_evalplus


class MalformedTests(ValueError):
    """Test cases from which no verdict can be had: the grader fails, not the response. The message says why."""


@dataclass(frozen=True)
class StdinTest:
    stdin: str
    expected: str


@dataclass(frozen=True)
class CallTest:
    """One call and its result.

    Attributes:
        arguments: the call's arguments, JSON data.
        expected: results of which one must be returned. There are two where the data set does not say whether a list
            of one element is the result or only holds it.
    """

    arguments: tuple[Any, ...]
    expected: tuple[Any, ...]


@dataclass(frozen=True)
class StdinProblem:
    tests: tuple[StdinTest, ...]


@dataclass(frozen=True)
class CallProblem:
    function: str
    tests: tuple[CallTest, ...]


@dataclass(frozen=True)
class AssertionProblem:
    tests: AssertionTests


Problem = StdinProblem | CallProblem | AssertionProblem
TestCases = Mapping[str, Any] | str | Problem


def parse_test_cases(test_cases: TestCases) -> Problem:
    """Return the problem that the test cases describe.

    Raises:
        MalformedTests: in none of the forms above, or without a single test.
    """
    if isinstance(test_cases, StdinProblem | CallProblem | AssertionProblem):
        return _with_tests(test_cases)
    if isinstance(test_cases, str):
        try:
            test_cases = json.loads(test_cases)
        except (ValueError, RecursionError) as error:
            raise MalformedTests(f"test cases are no JSON: {error}") from error
    if not isinstance(test_cases, Mapping):
        raise MalformedTests(f"test cases are a {type(test_cases).__name__}, not a dict")
    if "inputs" in test_cases or "outputs" in test_cases:
        return _with_tests(_pairs(test_cases))
    try:
        if "public_test_cases" in test_cases:
            return _with_tests(_pairs(livecodebench.to_pairs(test_cases)))
        if "base_input" in test_cases:
            return _with_tests(AssertionProblem(from_evalplus(test_cases)))
        if "test_list" in test_cases:
            return _with_tests(AssertionProblem(assertions.from_list(test_cases)))
        if "test" in test_cases:
            return _with_tests(AssertionProblem(assertions.from_code(test_cases)))
    except (assertions.UnreadableTests, livecodebench.UnreadableRow) as error:
        raise MalformedTests(str(error)) from error
    raise MalformedTests(f"test cases have keys {sorted(map(str, test_cases))[:10]}, neither inputs nor tests")


def _with_tests(problem: Problem) -> Problem:
    number = len(problem.tests.tests if isinstance(problem, AssertionProblem) else problem.tests)
    if number == 0:
        raise MalformedTests("there is no test")
    return problem


def _pairs(test_cases: Mapping[str, Any]) -> Problem:
    inputs, outputs = test_cases.get("inputs"), test_cases.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise MalformedTests("inputs and outputs must both be lists")
    if len(inputs) != len(outputs):
        raise MalformedTests(f"{len(inputs)} inputs but {len(outputs)} outputs")
    name = test_cases.get("fn_name")
    if name is None or name == "":
        pairs = zip(inputs, outputs, strict=True)
        return StdinProblem(
            tuple(StdinTest(_text(given, i), _text(wanted, i)) for i, (given, wanted) in enumerate(pairs))
        )
    if not isinstance(name, str):
        raise MalformedTests(f"fn_name is a {type(name).__name__}, not a string")
    pairs = zip(inputs, outputs, strict=True)
    return CallProblem(name, tuple(_call(given, wanted, i) for i, (given, wanted) in enumerate(pairs)))


def _text(value: Any, index: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise MalformedTests(f"test {index + 1}: {type(value).__name__} instead of text")


def _call(given: Any, wanted: Any, index: int) -> CallTest:
    if isinstance(given, str):
        try:
            arguments = tuple(json.loads(line) for line in given.split("\n") if line.strip())
            expected = json.loads(wanted) if isinstance(wanted, str) else wanted
        except (ValueError, RecursionError) as error:
            raise MalformedTests(f"test {index + 1}: no JSON: {error}") from error
        return CallTest(arguments, (expected,))
    if not isinstance(given, list):
        raise MalformedTests(f"test {index + 1}: {type(given).__name__} instead of arguments")
    if isinstance(wanted, list) and len(wanted) == 1:
        return CallTest(tuple(given), (wanted, wanted[0]))
    return CallTest(tuple(given), (wanted,))
