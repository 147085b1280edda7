# SPDX-License-Identifier: Apache-2.0
"""What crosses between a solution and its tests, and what does not."""

import collections
import datetime
import decimal
import enum
import fractions
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.sandbox.plain_data import NotPlainError, decode, encode, loads
from prime_ext.verifiers.sandbox.prelude import ListNode, TreeNode

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(pow, st.just(10), st.just(5000)),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(allow_nan=False),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
)
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(ATOMS, max_size=3)
        | st.frozensets(ATOMS, max_size=3)
        | st.dictionaries(ATOMS | st.tuples(ATOMS), inner, max_size=3)
        | st.lists(inner, max_size=3).map(collections.deque)
    ),
    max_leaves=10,
)


def there_and_back(value):
    return decode(loads(json.dumps(encode(value))))


@given(PLAIN)
def test_plain_data_comes_back_equal_and_of_the_same_type(value):
    back = there_and_back(value)
    assert back == value and type(back) is type(value)
    assert math.isnan(there_and_back(math.nan))


class Colour(enum.IntEnum):
    RED = 3


class LyingInt(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    "value, plain",
    [
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(x=1), {"x": 1}),
        (collections.namedtuple("P", "x y")(1, 2), (1, 2)),
        (Colour.RED, 3),
        (LyingInt(3), 3),
    ],
)
def test_subclasses_become_their_base(value, plain):
    back = there_and_back(value)
    assert type(back) is type(plain) and plain == back


def test_linked_lists_and_trees_cross_by_value():
    head = there_and_back(ListNode(1, ListNode(2)))
    assert (head.val, head.next.val, head.next.next) == (1, 2, None)
    root = there_and_back(TreeNode(1, None, TreeNode(3, TreeNode(4))))
    assert (root.val, root.left, root.right.val, root.right.left.val) == (1, None, 3, 4)


def test_a_long_list_does_not_recurse_and_a_circle_is_refused():
    head = None
    for value in range(100_000):
        head = ListNode(value, head)
    assert there_and_back(head).val == 99_999
    head.next = head
    with pytest.raises(NotPlainError, match="circular"):
        encode(head)


@pytest.mark.parametrize("value", [object(), lambda: 0, iter([]), len, type])
def test_what_has_behaviour_does_not_cross(value):
    with pytest.raises(NotPlainError):
        encode(value)


NAMES = st.sampled_from("tuple set dict int float complex bytes range ListNode TreeNode object Decimal x".split())
MESSAGES = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=8,
)
PLAIN_TYPES = (
    int, str, list, tuple, dict, set, frozenset, bool, float, complex, bytes, bytearray, range, slice,
    collections.deque, decimal.Decimal, fractions.Fraction, datetime.date, ListNode, TreeNode, type(None), type(...),
    type(NotImplemented),
)  # fmt: skip


@given(MESSAGES)
def test_anything_from_the_other_side_is_plain_or_refused(message):
    try:
        value = decode(message)
    except NotPlainError:
        return
    assert isinstance(value, PLAIN_TYPES)


def test_a_long_integer_is_refused_before_it_is_read():
    with pytest.raises(ValueError, match="4300"):
        loads("9" * 100_000)
