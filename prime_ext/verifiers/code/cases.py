# SPDX-License-Identifier: Apache-2.0
"""Test cases in the forms of public data sets, which docs/reference/verifier_rules.md lists."""

import base64
import binascii
import functools
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.verifiers.code import assertions
from prime_ext.verifiers.code.assertions import AssertionProblem, MalformedTests

# A private test suite of LiveCodeBench is some hundred megabytes at most.
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class PairProblem:
    """Standard input and output as text; for a function, arguments and accepted results as JSON.

    Two results are accepted where a list of one element may be the result or hold it.
    """

    tests: tuple[tuple[Any, Any], ...]
    function: str | None = None


Problem = PairProblem | AssertionProblem
TestCases = Mapping[str, Any] | str


def parse_test_cases(test_cases: TestCases) -> Problem:
    """Read test cases. ``MalformedTests``: they have none of the forms above, or no test."""
    problem = _read(test_cases)
    if not problem.tests:
        raise MalformedTests("there is no test")
    return problem


def _read(test_cases: TestCases) -> Problem:
    if isinstance(test_cases, str):
        test_cases = _json(test_cases, "test cases")
    if not isinstance(test_cases, Mapping):
        raise MalformedTests(f"test cases are a {type(test_cases).__name__}, not a dict")
    if "inputs" in test_cases or "outputs" in test_cases:
        return _pairs(test_cases)
    if "public_test_cases" in test_cases:
        return _pairs(_livecodebench(test_cases))
    if "test_list" in test_cases:
        return assertions.read_test_list(test_cases)
    if "test" in test_cases:
        return assertions.read_test_code(test_cases)
    raise MalformedTests(
        f"test cases have keys {sorted(map(str, test_cases))[:10]}, neither inputs nor tests"
    )


def _json(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedTests(f"{key}: no JSON: {error}") from error


def _pairs(test_cases: Mapping[str, Any]) -> PairProblem:
    inputs = test_cases.get("inputs")
    outputs = test_cases.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise MalformedTests("inputs and outputs must both be lists")
    if len(inputs) != len(outputs):
        raise MalformedTests(f"{len(inputs)} inputs but {len(outputs)} outputs")
    name = test_cases.get("fn_name")
    pairs = enumerate(zip(inputs, outputs, strict=True), start=1)
    if name is None or name == "":
        return PairProblem(
            tuple((_text(test_input, n), _text(output, n)) for n, (test_input, output) in pairs)
        )
    if not isinstance(name, str):
        raise MalformedTests(f"fn_name is a {type(name).__name__}, not a string")
    return PairProblem(
        tuple(_call(test_input, output, n) for n, (test_input, output) in pairs), name
    )


def _text(value: Any, number: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise MalformedTests(f"test {number}: {type(value).__name__} instead of text")


def _call(test_input: Any, output: Any, number: int) -> tuple[Any, Any]:
    if isinstance(test_input, str):
        arguments = tuple(
            _json(line, f"test {number}") for line in test_input.split("\n") if line.strip()
        )
        expected = _json(output, f"test {number}") if isinstance(output, str) else output
        return arguments, (expected,)
    if not isinstance(test_input, list):
        raise MalformedTests(f"test {number}: {type(test_input).__name__} instead of arguments")
    held = output if isinstance(output, list) and len(output) == 1 else []
    return tuple(test_input), (output, *held)


def _livecodebench(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return LiveCodeBench's inputs and outputs, public ones first, and any function to call."""
    metadata = row.get("metadata") or {}
    metadata = _json(metadata, "metadata") if isinstance(metadata, str) else metadata
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    tests = [*_tests(row.get("public_test_cases"), "public_test_cases")]
    private = row.get("private_test_cases")
    if not isinstance(private, str):
        raise MalformedTests(f"private_test_cases must be a text, got {type(private).__name__}")
    tests += (
        _tests(private, "private_test_cases")
        if private.lstrip().startswith("[")
        else _unpack_tests(private)
    )
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


# Responses to a problem come one after the other, and unpacking may take longer than running them.
@functools.lru_cache(maxsize=2)
def _unpack_tests(value: str) -> list[dict[str, Any]]:
    try:
        packed = base64.b64decode(value, validate=True)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, MAX_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise MalformedTests(f"private_test_cases is neither JSON nor packed: {error}") from error
    if unpacking.unconsumed_tail:
        raise MalformedTests(f"private_test_cases has more than {MAX_BYTES} bytes")
    return _tests(unpickle_text(data), "private_test_cases")


class _TextUnpickler(pickle.Unpickler):
    """Unpickler of plain values that finds no name, so that a pickle can call nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def unpickle_text(data: bytes) -> str:
    """Read the one text in a pickle without running it, or raise ``MalformedTests``."""
    try:
        text = _TextUnpickler(io.BytesIO(data)).load()
        if isinstance(text, str):
            return text
        reason = f"it holds a {type(text).__name__}"
    except Exception as error:
        # A broken pickle may raise anything.
        reason = str(error) or type(error).__name__
    raise MalformedTests(f"private_test_cases is not the pickle of a text: {reason}")


def _tests(value: Any, key: str) -> list[dict[str, Any]]:
    tests = _json(value, key) if isinstance(value, str) else value
    if not isinstance(tests, list):
        raise MalformedTests(f"{key} must be a list of tests, got {type(tests).__name__}")
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, dict) or not all(
            isinstance(test.get(name), str) for name in ("input", "output")
        ):
            raise MalformedTests(f"{key}: test {number} has no input and output that are texts")
    return tests
