# SPDX-License-Identifier: Apache-2.0
"""Plain data as JSON and back: what may cross between a solution and its tests.

Only values of exact built-in types come out of :func:`decode`, so that nothing which the solution's side sends can
carry behaviour (an ``__eq__`` that always says yes). Never pickle or marshal: both can be made to do harm.
Lists, strings, booleans, None, finite floats and small integers are JSON's own; all else is a one-key object that names
its type. Linked lists and binary trees of the LeetCode form cross by value.
"""

import base64
import collections
import datetime
import decimal
import fractions
import json
import math
from collections.abc import Callable
from typing import Any

_JSON_INTEGER_BITS = 4096
MAX_NODES = 1_000_000


class NotPlainError(TypeError):
    """A value that cannot cross."""


class ListNode:
    """Node of a linked list as LeetCode defines it."""

    def __init__(self, val: Any = 0, next: "ListNode | None" = None) -> None:
        self.val = val
        self.next = next


class TreeNode:
    """Node of a binary tree as LeetCode defines it."""

    def __init__(self, val: Any = 0, left: "TreeNode | None" = None, right: "TreeNode | None" = None) -> None:
        self.val = val
        self.left = left
        self.right = right


def _reject(value: Any) -> Any:
    raise NotPlainError(f"{type(value).__name__} is not plain data")


def _list_values(node: Any) -> list[Any]:
    values: list[Any] = []
    while node is not None:
        values.append(node.val)
        node = node.next
        if len(values) > MAX_NODES:
            raise NotPlainError("linked list is circular or too long")
    return values


def _tree_values(root: Any) -> list[Any]:
    """Return [value, index of left, index of right] of each node, -1 for none."""
    rows: list[Any] = []
    nodes = [root]
    for node in nodes:
        row = [node.val, -1, -1]
        for side, child in ((1, node.left), (2, node.right)):
            if child is not None:
                row[side] = len(nodes)
                nodes.append(child)
        rows.append(row)
        if len(rows) > MAX_NODES:
            raise NotPlainError("tree is circular or too large")
    return rows


# What a type consists of, and how one without parts is written.
_PARTS: dict[type, Callable[[Any], Any]] = {
    tuple: iter, set: iter, frozenset: iter, collections.deque: iter,
    dict: lambda pairs: map(list, pairs.items()),
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step),
}  # fmt: skip
_TEXTS: dict[type, Callable[[Any], Any]] = {
    complex: lambda value: [repr(value.real), repr(value.imag)],
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
    decimal.Decimal: str, fractions.Fraction: str,
    datetime.date: datetime.date.isoformat, datetime.datetime: datetime.datetime.isoformat,
}  # fmt: skip


def encode(value: Any, other: Callable[[Any], Any] = _reject) -> Any:
    """Return ``value`` in the form that ``json.dumps`` takes; ``other`` encodes what is not plain data.

    Instances of subclasses (named tuples, counters, numpy's float64) become their built-in base.

    Raises:
        NotPlainError: by default, for anything that is not plain data.
        RecursionError: nested too deeply.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= _JSON_INTEGER_BITS else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [encode(item, other) for item in value]
    if kind in _PARTS:
        return {kind.__name__: [encode(part, other) for part in _PARTS[kind](value)]}
    if kind in _TEXTS:
        return {kind.__name__: _TEXTS[kind](value)}
    if value is NotImplemented or value is Ellipsis:
        return {"constant": repr(value)}
    return _encode_instance(value, kind, other)


def _encode_instance(value: Any, kind: type, other: Callable[[Any], Any]) -> Any:
    if kind.__name__ == "ListNode" and hasattr(value, "next"):
        return {"ListNode": [encode(item, other) for item in _list_values(value)]}
    if kind.__name__ == "TreeNode" and hasattr(value, "left"):
        return {"TreeNode": [[encode(item, other), left, right] for item, left, right in _tree_values(value)]}
    # The base class's own methods, since a subclass may have overridden them.
    for base in (int, float, str, list, tuple, dict, set, frozenset, complex, bytes):
        if isinstance(value, base):
            make: Any = base
            plain = dict(dict.items(value)) if isinstance(value, dict) else make(value)
            if type(plain) is not base:
                break
            return encode(plain, other)
    if kind.__module__.partition(".")[0] == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        scalar = value.item()
        if type(scalar) in (bool, int, float, complex, str, bytes):
            return encode(scalar, other)
    return other(value)


def _tree(rows: list[Any], node_class: type) -> Any:
    nodes = [node_class(item) for item, _, _ in rows]
    for index, (node, (_, left, right)) in enumerate(zip(nodes, rows, strict=True)):
        # Children come after their parents, which rules out circles.
        node.left = nodes[left] if left > index else None
        node.right = nodes[right] if right > index else None
    return nodes[0]


def _linked(values: list[Any], node_class: type) -> Any:
    node = None
    for value in reversed(values):
        node = node_class(value, node)
    return node


_CONSTANTS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}

_BUILD: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": tuple,
    "dict": lambda pairs: {key: value for key, value in pairs},
    "set": set,
    "frozenset": frozenset,
    "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "deque": collections.deque,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "constant": _CONSTANTS.__getitem__,
}


def decode(
    value: Any,
    other: Callable[[str, Any], Any] | None = None,
    list_node: type = ListNode,
    tree_node: type = TreeNode,
) -> Any:
    """Return what :func:`encode` was given. ``other`` decodes unknown type names.

    Raises:
        NotPlainError: not the form that :func:`encode` makes.
        RecursionError: nested too deeply.
    """
    if isinstance(value, list):
        return [decode(item, other, list_node, tree_node) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise NotPlainError("malformed value")
    ((name, content),) = value.items()
    try:
        content = decode(content, other, list_node, tree_node)
        if name in _BUILD:
            return _BUILD[name](content)
        if name == "ListNode":
            return _linked(content, list_node)
        if name == "TreeNode":
            return _tree(content, tree_node)
    except NotPlainError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
        raise NotPlainError(f"malformed {name}: {error}") from error
    if other is None:
        raise NotPlainError(f"malformed value of type {name}")
    return other(name, content)


def _integer(digits: str) -> int:
    # Reading decimal digits takes quadratic time, and Python before 3.10.7 has no limit of its own.
    if len(digits) > 4300:
        raise ValueError("integer of more than 4300 digits")
    return int(digits)


def loads(text: bytes | str) -> Any:
    """Return JSON from an untrusted side, in linear time.

    Raises:
        ValueError: not JSON, not UTF-8, or an integer of more than 4,300 digits.
        RecursionError: nested too deeply.
    """
    return json.loads(text, parse_int=_integer)
