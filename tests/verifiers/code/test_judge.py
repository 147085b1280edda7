# SPDX-License-Identifier: Apache-2.0
"""When an output or a value counts as the expected one."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.code.judge import outputs_agree, values_agree

WORDS = st.text(alphabet=st.characters(categories=("L", "N", "P")), min_size=1, max_size=8)
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("got", "expected", "agrees"),
    [
        ("1  2 \r\n\n", "1 2\n", True),
        ("\n\n1\n\n2", "1\n2\n", True),
        ("", "\n", True),
        ("1 2", "1\n2", False),
        ("12", "1 2", False),
        ("1", "1 1", False),
        ("yes", "YES", False),
        # Integers are exact, however they are written.
        ("2.0", "2", True),
        ("+7", "7", True),
        ("0101", "101", False),
        ("101", "0101", False),
        ("-0.0", "0", True),
        ("2.000001", "2", False),
        ("1000001", "1000000", False),
        ("123456789012345678901234567891", "123456789012345678901234567890", False),
        ("1e99999999", "2", False),
        # Numbers with a point or an exponent may be off by a millionth.
        ("0.3333333", "0.33333333", True),
        ("1e3", "1000.0", True),
        ("1000000.5", "1000000.0", True),
        ("0.34", "0.33", False),
        # Other texts are not numbers.
        ("nan inf", "nan inf", True),
        ("nan", "0.0", False),
        ("inf", "1e300", False),
        ("1_000", "1000", False),
        ("١", "1", False),
        ("True", "1", False),
        ("\udcff", "1", False),
    ],
)
def test_outputs(got, expected, agrees):
    assert outputs_agree(got.encode("utf-8", "surrogateescape"), expected) is agrees


@given(LINES, st.data())
def test_white_space_does_not_count_but_lines_do(lines, data):
    expected = "\n".join(" ".join(words) for words in lines)
    spaces = st.sampled_from([" ", "  ", "\t", " \r "])
    got = "\n".join(
        data.draw(st.sampled_from(["", "\n", " \n"])) + data.draw(spaces).join(words)
        for words in lines
    )
    assert outputs_agree(got.encode(), expected)
    if lines:
        assert not outputs_agree((got + "\nmore").encode(), expected)


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.tuples(st.integers(), st.integers()) | st.tuples(FLOATS, FLOATS))
def test_integers_agree_exactly_and_floats_within_the_tolerance(pair):
    a, b = pair
    agree = a == b if isinstance(a, int) else math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
    assert outputs_agree(repr(a).encode(), repr(b)) == values_agree(a, b) == agree


@given(st.binary(max_size=60), st.text(max_size=60), JSON)
def test_any_output_can_be_judged_and_values_survive_json(got, expected, value):
    assert outputs_agree(got, expected) in (True, False)
    assert values_agree(json.loads(json.dumps(value)), value)


def test_values_of_different_kinds_or_deep_nesting_do_not_agree():
    pairs = [
        (True, 1),
        (1, True),
        ("1", 1),
        (None, 0),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (10**400, 1.0),
    ]
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for got, expected in [*pairs, (deep, deep)]:
        assert not values_agree(got, expected)


def test_time_is_linear():
    started = time.process_time()
    assert not outputs_agree(b"9" * 4_000_000, "1")
    assert not outputs_agree(b"9" * 400_000, "9" * 399_999 + "8")
    assert not outputs_agree(b"1 " * 500_000, "1 " * 499_999)
    assert not outputs_agree(b"0." + b"3" * 400_000, "0.3")
    assert time.process_time() - started < 60
