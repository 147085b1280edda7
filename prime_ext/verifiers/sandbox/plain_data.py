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

from prime_ext.verifiers.sandbox.prelude import ListNode, TreeNode

_JSON_INTEGER_BITS = 4096
MAX_NODES = 1_000_000
_CONSTANTS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}
_CHILDREN = {"ListNode": ("next",), "TreeNode": ("left", "right")}


class NotPlainError(TypeError):
    """A value that cannot cross."""


def _reject(value: Any) -> Any:
    raise NotPlainError(f"{type(value).__name__} is not plain data")


def _bounds(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


# By type: what it consists of, as a list of plain data or as a text, and how it is made of that again.
_TYPES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    collections.deque: (list, collections.deque),
    dict: (lambda value: list(map(list, value.items())), lambda pairs: {key: item for key, item in pairs}),
    range: (_bounds, lambda bounds: range(*bounds)),
    slice: (_bounds, lambda bounds: slice(*bounds)),
    float: (repr, float),
    int: (hex, lambda text: int(text, 16)),
    complex: (
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(float(parts[0]), float(parts[1])),
    ),
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    bytearray: (lambda value: base64.b64encode(value).decode(), lambda text: bytearray(base64.b64decode(text))),
    decimal.Decimal: (str, decimal.Decimal),
    fractions.Fraction: (str, fractions.Fraction),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
}
_BUILD = {kind.__name__: build for kind, (_, build) in _TYPES.items()} | {"constant": _CONSTANTS.__getitem__}


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
    if kind is int and value.bit_length() <= _JSON_INTEGER_BITS or kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [encode(item, other) for item in value]
    if kind in _TYPES:
        content = _TYPES[kind][0](value)
        return {kind.__name__: content if isinstance(content, str) else encode(content, other)}
    if value is NotImplemented or value is Ellipsis:
        return {"constant": repr(value)}
    children = _CHILDREN.get(kind.__name__, ())
    if children and hasattr(value, children[0]):
        return {kind.__name__: encode(_rows(value, children), other)}
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


def _rows(root: Any, children: tuple[str, ...]) -> list[Any]:
    """Return [value, places of the children] of each node, the root first, -1 for no child."""
    rows: list[Any] = []
    nodes = [root]
    for node in nodes:
        row = [node.val]
        for child in (getattr(node, name) for name in children):
            row.append(-1 if child is None else len(nodes))
            if child is not None:
                nodes.append(child)
        rows.append(row)
        if len(rows) > MAX_NODES:
            raise NotPlainError("a list or tree is circular or too large")
    return rows


def _linked(rows: list[Any], node_class: type, children: tuple[str, ...]) -> Any:
    nodes = [node_class(value) for value, *_ in rows]
    for index, (node, (_, *places)) in enumerate(zip(nodes, rows, strict=True)):
        for name, place in zip(children, places, strict=True):
            # Children come after their parents, which rules out circles.
            setattr(node, name, nodes[place] if place > index else None)
    return nodes[0]


def decode(
    value: Any,
    other: Callable[[str, Any], Any] | None = None,
    nodes: tuple[type, type] = (ListNode, TreeNode),
) -> Any:
    """Return what :func:`encode` was given. ``other`` decodes unknown type names, ``nodes`` are the node classes.

    Raises:
        NotPlainError: not the form that :func:`encode` makes.
        RecursionError: nested too deeply.
    """
    if isinstance(value, list):
        return [decode(item, other, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise NotPlainError("malformed value")
    ((name, content),) = value.items()
    try:
        content = decode(content, other, nodes)
        if name in _BUILD:
            return _BUILD[name](content)
        if name in _CHILDREN:
            return _linked(content, nodes[list(_CHILDREN).index(name)], _CHILDREN[name])
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
