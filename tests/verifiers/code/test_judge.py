# SPDX-License-Identifier: Apache-2.0
"""When an output or a value counts as the expected one."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.code.judge import Tolerance, outputs_agree, values_agree

WORDS = st.text(alphabet=st.characters(categories=("L", "N", "P")), min_size=1, max_size=8)
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "got, expected",
    [
        ("1 2\n", "1 2"),
        ("1  2 \r\n\n", "1 2\n"),
        ("\n\n1\n\n2", "1\n2\n"),
        ("2.0", "2"),
        ("+7", "7"),
        ("007", "7"),
        ("0.3333333", "0.33333333"),
        ("1e3", "1000.0"),
        ("1000000.5", "1000000.0"),
        ("-0.0", "0"),
        ("YES", "YES"),
        ("nan inf", "nan inf"),
        ("", "\n"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_these_agree(got, expected):
    assert outputs_agree(got.encode(), expected)


@pytest.mark.parametrize(
    "got, expected",
    [
        ("1 2", "1\n2"),
        ("12", "1 2"),
        ("1", "1 1"),
        ("", "1"),
        ("1", ""),
        ("yes", "YES"),
        ("2.000001", "2"),
        ("1000001", "1000000"),
        ("0.34", "0.33"),
        ("nan", "0.0"),
        ("inf", "1e300"),
        ("1_000", "1000"),
        ("١", "1"),
        ("0x10", "16"),
        ("123456789012345678901234567891", "123456789012345678901234567890"),
        ("1e400", "2"),
        ("1e99999999", "2"),
        ("True", "1"),
    ],
)
def test_these_do_not(got, expected):
    assert not outputs_agree(got.encode(), expected)


def test_bytes_that_are_no_text_agree_with_nothing():
    assert not outputs_agree(b"\xff\xfe", "1")


def test_the_tolerance_can_be_chosen():
    assert outputs_agree(b"0.34", "0.33", Tolerance(0.1, 0.1))
    assert not outputs_agree(b"0.3333333", "0.33333333", Tolerance(0.0, 0.0))


@given(LINES, st.data())
def test_white_space_does_not_count_but_lines_do(lines, data):
    expected = "\n".join(" ".join(words) for words in lines)
    spaces = st.sampled_from([" ", "  ", "\t", " \r "])
    got = "\n".join(data.draw(st.sampled_from(["", "\n", " \n"])) + data.draw(spaces).join(words) for words in lines)
    assert outputs_agree(got.encode(), expected)
    if lines:
        assert not outputs_agree((got + "\nmore").encode(), expected)


@given(st.integers(), st.integers())
def test_integers_agree_exactly(a, b):
    assert outputs_agree(str(a).encode(), str(b)) == (a == b)
    assert values_agree(a, b) == (a == b)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_floats_agree_within_the_tolerance(a, b):
    close = math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
    assert outputs_agree(repr(a).encode(), repr(b)) == close
    assert values_agree(a, b) == close


@given(st.binary(max_size=60), st.text(max_size=60))
def test_any_output_can_be_judged(got, expected):
    assert outputs_agree(got, expected) in (True, False)


@given(JSON)
def test_a_value_agrees_with_itself_through_json(value):
    assert values_agree(json.loads(json.dumps(value)), value)


@given(JSON, JSON)
def test_any_two_values_can_be_judged(a, b):
    assert values_agree(a, b) in (True, False)


@pytest.mark.parametrize(
    "got, expected",
    [
        (True, 1),
        (1, True),
        (0, False),
        ("1", 1),
        ([1], 1),
        (None, 0),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (10**400, 1.0),
    ],
)
def test_values_of_different_kinds_do_not_agree(got, expected):
    assert not values_agree(got, expected)


def test_deep_nesting_is_no_crash():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert not values_agree(deep, deep)


@pytest.mark.parametrize(
    "got, expected",
    [
        ("9" * 4_000_000, "1"),
        ("9" * 400_000, "9" * 399_999 + "8"),
        ("1 " * 500_000, "1 " * 499_999),
        ("0." + "3" * 400_000, "0.3"),
    ],
)
def test_time_is_linear(got, expected):
    started = time.process_time()
    assert not outputs_agree(got.encode(), expected)
    assert time.process_time() - started < 60
