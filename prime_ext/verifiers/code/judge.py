# SPDX-License-Identifier: Apache-2.0
"""Comparison of results with expected ones in linear time: docs/reference/verifier_rules.md."""

import math
import re
from typing import Any

# Leading zeros mean something: 0101 is not 101.
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)\Z")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?\Z")
# Reading decimal digits takes quadratic time.
_MOST_DIGITS = 400
# A much longer output than the expected one is wrong.
_LENGTH_FACTOR = 32
_LENGTH_MARGIN = 1 << 16
# Relative and absolute, of floating-point results.
_TOLERANCE = 1e-6


def _is_close(got: float, expected: float) -> bool:
    return math.isclose(got, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def words_agree(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if len(got) > _MOST_DIGITS or len(expected) > _MOST_DIGITS:
        return False
    if not (_NUMBER.match(got) and _NUMBER.match(expected)):
        return False
    if _INTEGER.match(expected):
        if _INTEGER.match(got):
            return int(got) == int(expected)
        number = float(got)
        return number.is_integer() and int(number) == int(expected)
    return _is_close(float(got), float(expected))


def outputs_agree(got: bytes, expected: str) -> bool:
    if len(got) > _LENGTH_FACTOR * len(expected) + _LENGTH_MARGIN:
        return False
    got_lines = _lines(got.decode("utf-8", "surrogateescape"))
    expected_lines = _lines(expected)
    if len(got_lines) != len(expected_lines):
        return False
    return all(_line_agrees(*pair) for pair in zip(got_lines, expected_lines, strict=True))


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _line_agrees(got: str, expected: str) -> bool:
    if got == expected:
        return True
    got_words = got.split()
    expected_words = expected.split()
    alike = len(got_words) == len(expected_words)
    return alike and all(words_agree(*pair) for pair in zip(got_words, expected_words, strict=True))


def values_agree(got: Any, expected: Any) -> bool:
    """Return whether two JSON values agree; those nested beyond Python's recursion limit do not."""
    try:
        return _values_agree(got, expected)
    except RecursionError:
        return False


def _values_agree(got: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        alike = isinstance(got, list) and len(got) == len(expected)
        return alike and all(_values_agree(*pair) for pair in zip(got, expected, strict=True))
    if isinstance(expected, dict):
        alike = isinstance(got, dict) and got.keys() == expected.keys()
        return alike and all(_values_agree(got[key], value) for key, value in expected.items())
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, float) and isinstance(got, int | float):
        try:
            return (math.isnan(expected) and math.isnan(got)) or _is_close(got, expected)
        except OverflowError:
            return False  # an integer beyond the range of floats
    if isinstance(expected, int) and isinstance(got, int | float):
        return got == expected
    return type(got) is type(expected) and got == expected
