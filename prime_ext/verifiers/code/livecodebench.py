# SPDX-License-Identifier: Apache-2.0
"""The tests of LiveCodeBench's rows (``code_generation_lite``) as pairs of input and output.

``public_test_cases`` is JSON; ``private_test_cases`` is JSON, or its pickled text, compressed and in base64. A pickle
can run anything, so it is not unpickled: its operations are read, and only those of a single text are admitted.
"""

import base64
import binascii
import functools
import json
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

# A private test suite of LiveCodeBench is some hundred megabytes at most.
MAX_BYTES = 1 << 30
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"})
_MOST_OPERATIONS = 8


class UnreadableRow(ValueError):
    """Tests that are not in LiveCodeBench's form; the message says why."""


def to_pairs(row: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs and outputs, the public ones first, and the function that is called, if any.

    Args:
        row: ``public_test_cases``, ``private_test_cases`` and ``metadata``.

    Raises:
        UnreadableRow: see there.
    """
    metadata = row.get("metadata") or {}
    metadata = _json(metadata, "metadata") if isinstance(metadata, str) else metadata
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    tests = [*_tests(row.get("public_test_cases"), "public_test_cases")]
    tests += _private_tests(row.get("private_test_cases"))
    kind = "functional" if name else "stdin"
    other = next((test for test in tests if test.get("testtype", kind) != kind), None)
    if other is not None:
        function = f"calls of {name}" if name else "no func_name"
        raise UnreadableRow(f"a test is {other['testtype']!r}, but metadata has {function}")
    return {
        "inputs": [test["input"] for test in tests],
        "outputs": [test["output"] for test in tests],
        "fn_name": name,
    }


def _private_tests(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, str):
        raise UnreadableRow(f"private_test_cases must be a text, got {type(value).__name__}")
    if value.lstrip().startswith("["):
        return _tests(value, "private_test_cases")
    return _packed_tests(value)


# Responses to one problem are judged one after the other, and unpacking its tests takes longer than some of them.
@functools.lru_cache(maxsize=2)
def _packed_tests(value: str) -> list[dict[str, Any]]:
    try:
        packed = base64.b64decode(value, validate=True)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, MAX_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise UnreadableRow(f"private_test_cases is neither JSON nor packed: {error}") from error
    if unpacking.unconsumed_tail:
        raise UnreadableRow(f"private_test_cases has more than {MAX_BYTES} bytes")
    return _tests(pickled_text(data), "private_test_cases")


def pickled_text(data: bytes) -> str:
    """The text in a pickle that holds nothing else. Nothing in it is run or looked up.

    Raises:
        UnreadableRow: it is no pickle, or holds anything else.
    """
    found: list[str] = []
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if operation.name == "STOP" and len(found) == 1:
                return found[0]
            if operation.name in _TEXTS:
                found.append(str(argument))
            elif operation.name not in _AROUND:
                raise UnreadableRow(f"the pickle of private_test_cases holds {operation.name}, not just a text")
            if len(found) > 1 or number >= _MOST_OPERATIONS:
                raise UnreadableRow("the pickle of private_test_cases holds more than a text")
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, UnreadableRow):
            raise
        raise UnreadableRow(f"private_test_cases holds no pickle: {error}") from error
    raise UnreadableRow("the pickle of private_test_cases has no end")


def _json(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRow(f"{key} is no JSON: {error}") from error


def _tests(value: Any, key: str) -> list[dict[str, Any]]:
    tests = _json(value, key) if isinstance(value, str) else value
    if not isinstance(tests, list):
        raise UnreadableRow(f"{key} must be a list of tests, got {type(tests).__name__}")
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, dict) or not all(isinstance(test.get(name), str) for name in ("input", "output")):
            raise UnreadableRow(f"{key}: test {number} has no input and output that are texts")
    return tests
