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

- ``{"base_input", "plus_input", "canonical_solution", ...}``: HumanEval+ and MBPP+ (EvalPlus);
- ``{"public_test_cases", "private_test_cases", "metadata"}``: LiveCodeBench's ``code_generation_lite``. The public
  tests are JSON; the private ones JSON, or its pickled text, compressed and in base64. A pickle can run anything, so it
  is not unpickled: its operations are read, and only those of a single text are admitted.
"""

import base64
import binascii
import functools
import json
import pickletools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.code import assertions
from prime_ext.verifiers.code.assertions import AssertionProblem, MalformedTests

# A private test suite of LiveCodeBench is some hundred megabytes at most.
MAX_BYTES = 1 << 30
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"})
_MOST_OPERATIONS = 8


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


Problem = StdinProblem | CallProblem | AssertionProblem
TestCases = Mapping[str, Any] | str | Problem


def parse_test_cases(test_cases: TestCases) -> Problem:
    """Return the problem that the test cases describe.

    Raises:
        MalformedTests: in none of the forms above, or without a single test.
    """
    problem = test_cases if isinstance(test_cases, StdinProblem | CallProblem | AssertionProblem) else _read(test_cases)
    if not problem.tests:
        raise MalformedTests("there is no test")
    return problem


def _read(test_cases: Mapping[str, Any] | str) -> Problem:
    if isinstance(test_cases, str):
        test_cases = _json(test_cases, "test cases")
    if not isinstance(test_cases, Mapping):
        raise MalformedTests(f"test cases are a {type(test_cases).__name__}, not a dict")
    if "inputs" in test_cases or "outputs" in test_cases:
        return _pairs(test_cases)
    if "public_test_cases" in test_cases:
        return _pairs(_livecodebench(test_cases))
    if "base_input" in test_cases:
        return assertions.from_evalplus(test_cases)
    if "test_list" in test_cases:
        return assertions.from_list(test_cases)
    if "test" in test_cases:
        return assertions.from_code(test_cases)
    raise MalformedTests(f"test cases have keys {sorted(map(str, test_cases))[:10]}, neither inputs nor tests")


def _json(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedTests(f"{key}: no JSON: {error}") from error


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
        arguments = tuple(_json(line, f"test {index + 1}") for line in given.split("\n") if line.strip())
        expected = _json(wanted, f"test {index + 1}") if isinstance(wanted, str) else wanted
        return CallTest(arguments, (expected,))
    if not isinstance(given, list):
        raise MalformedTests(f"test {index + 1}: {type(given).__name__} instead of arguments")
    if isinstance(wanted, list) and len(wanted) == 1:
        return CallTest(tuple(given), (wanted, wanted[0]))
    return CallTest(tuple(given), (wanted,))


def _livecodebench(row: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs and outputs of LiveCodeBench, the public ones first, and the function that is called, if any."""
    metadata = row.get("metadata") or {}
    metadata = _json(metadata, "metadata") if isinstance(metadata, str) else metadata
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    tests = [*_tests(row.get("public_test_cases"), "public_test_cases")]
    private = row.get("private_test_cases")
    if not isinstance(private, str):
        raise MalformedTests(f"private_test_cases must be a text, got {type(private).__name__}")
    tests += _tests(private, "private_test_cases") if private.lstrip().startswith("[") else _packed_tests(private)
    kind = "functional" if name else "stdin"
    other = next((test for test in tests if test.get("testtype", kind) != kind), None)
    if other is not None:
        function = f"calls of {name}" if name else "no func_name"
        raise MalformedTests(f"a test is {other['testtype']!r}, but metadata has {function}")
    return {
        "inputs": [test["input"] for test in tests],
        "outputs": [test["output"] for test in tests],
        "fn_name": name,
    }


# Responses to one problem are judged one after the other, and unpacking its tests takes longer than some of them.
@functools.lru_cache(maxsize=2)
def _packed_tests(value: str) -> list[dict[str, Any]]:
    try:
        packed = base64.b64decode(value, validate=True)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, MAX_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise MalformedTests(f"private_test_cases is neither JSON nor packed: {error}") from error
    if unpacking.unconsumed_tail:
        raise MalformedTests(f"private_test_cases has more than {MAX_BYTES} bytes")
    return _tests(pickled_text(data), "private_test_cases")


def pickled_text(data: bytes) -> str:
    """The text in a pickle that holds nothing else. Nothing in it is run or looked up.

    Raises:
        MalformedTests: it is no pickle, or holds anything else.
    """
    found: list[str] = []
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if operation.name == "STOP" and len(found) == 1:
                return found[0]
            if operation.name in _TEXTS:
                found.append(str(argument))
            elif operation.name not in _AROUND:
                raise MalformedTests(f"the pickle of private_test_cases holds {operation.name}, not just a text")
            if len(found) > 1 or number >= _MOST_OPERATIONS:
                raise MalformedTests("the pickle of private_test_cases holds more than a text")
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, MalformedTests):
            raise
        raise MalformedTests(f"private_test_cases holds no pickle: {error}") from error
    raise MalformedTests("the pickle of private_test_cases has no end")


def _tests(value: Any, key: str) -> list[dict[str, Any]]:
    tests = _json(value, key) if isinstance(value, str) else value
    if not isinstance(tests, list):
        raise MalformedTests(f"{key} must be a list of tests, got {type(tests).__name__}")
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, dict) or not all(isinstance(test.get(name), str) for name in ("input", "output")):
            raise MalformedTests(f"{key}: test {number} has no input and output that are texts")
    return tests
