# SPDX-License-Identifier: Apache-2.0
"""Reads a normalised answer as a tree: numbers, words, lists, tuples, sets, intervals, unions, matrices, equations.

What each form means: docs/reference/verifier_rules.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from prime_ext.verifiers.math.numbers import PlainNumber, read_number

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_OPEN = {"(": 1, "[": 1, "{": 1, "\\{": 1, ")": -1, "]": -1, "}": -1, "\\}": -1}
_RELATIONS = frozenset(["=", "<", ">", "\\le", "\\ge", "\\ne", "\\in", "\\approx"])
_CONSTANTS = frozenset(["\\pi", "\\infty", "e", "\\emptyset"])
_ORDER = {"<": ("<", False), "\\le": ("<", True), ">": (">", False), "\\ge": (">", True)}
_MATRIX = re.compile(
    r"\\begin\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{(?:[pbB]?matrix|smallmatrix|array)\}",
    re.DOTALL,
)
_ONLY_TEXT = re.compile(r"(?:\\text\{[^{}]*\})+")
_UNIT = re.compile(r"(?:(?:/|\\cdot)?\\text\{[^{}\d]*\}(?:\^\{-?\d\})?)+\Z")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_TEXT_LIST = re.compile(r"[,;]|\b(?:and|or)\b|&")
_QUALIFIER = re.compile(r"\\text\{\s*(?:about|approximately|exactly|rs|usd|is)\.?\s*\}(?=.)", re.IGNORECASE)
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_NOT_UNITS = frozenset("or and not no if for when to than is nor either but maybe except otherwise where with".split())
VARIABLE = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{[^{}]*\})?'*")
NAME = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+|\\text\{[^{}]*\})(?:_\{[^{}]*\}|'|\^\{-1\})*(?:\([a-zA-Z,]*\))?|\([a-zA-Z](?:,[a-zA-Z])+\)"
)


@dataclass(frozen=True)
class Leaf:
    """An expression that is compared as a whole."""

    text: str
    number: PlainNumber | None = None
    percent: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words, in lower case and without punctuation."""

    text: str


@dataclass(frozen=True)
class Group:
    """Several answers: ``list``, ``tuple``, ``interval`` (from inequalities), ``set``, ``union``, ``ratio``,
    ``matrix``.

    ``left`` and ``right`` are the brackets of tuples and intervals; ``columns`` is the width of a matrix; ``name`` and
    ``relation`` are the variable and the whole of an inequality.
    """

    kind: str
    items: "tuple[Node, ...]"
    left: str = ""
    right: str = ""
    columns: int = 0
    name: str = ""
    relation: "Relation | None" = None


@dataclass(frozen=True)
class Equation:
    """``a = b = c``: its sides as text, and what the last one is."""

    sides: tuple[str, ...]
    value: "Node"


@dataclass(frozen=True)
class Relation:
    """Inequalities that are no interval, and "not equal"."""

    sides: tuple[str, ...]
    operators: tuple[str, ...]


Node = Leaf | Words | Group | Equation | Relation


def split(text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """Split at separators outside of all brackets. Return the parts and the separators between them."""
    if not any(separator in text for separator in separators):
        return [text.strip()], []
    parts, found, depth = [""], [], 0
    for token in _TOKEN.findall(text):
        depth += _OPEN.get(token, 0)
        if depth <= 0 and token in separators:
            parts.append("")
            found.append(token)
        else:
            parts[-1] += token
    return [part.strip() for part in parts], found


def _unwrap(text: str) -> tuple[str, str, str]:
    """Return the left bracket, what is inside, and the right one; no brackets if they do not go round all of it."""
    whole = text.startswith(("(", "[", "{", "\\{")) and text.endswith((")", "]", "}"))
    tokens = _TOKEN.findall(text) if whole else []
    depths = list(accumulate(_OPEN.get(token, 0) for token in tokens))
    if len(tokens) > 1 and depths[-1] == 0 and min(depths[:-1]) > 0:
        return tokens[0], "".join(tokens[1:-1]), tokens[-1]
    return "", text, ""


def read_answer(text: str) -> Node:
    """Read a normalised answer. Its nesting must be within the limits of complexity, for this is recursive."""
    text = _strip(text)
    for separators in (frozenset(";"), frozenset([",", "\\lor"])):
        parts, found = split(text, separators)
        parts = [part for part in parts if part]
        if len(parts) > 1:
            items = _flat(read_answer(part) for part in parts)
            union = set(found) == {"\\lor"} and all(isinstance(item, Group) and item.left for item in items)
            return Group("union" if union else "list", items)
        text = parts[0] if parts else ""
    return _read_one(text)


def _strip(text: str) -> str:
    left, inside, right = _unwrap(text)
    return _strip(inside) if left + right == "{}" else text


def _flat(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Put the members of lists, also of assigned ones (``x=\\pm3``), in the place of the lists."""
    flat: list[Node] = []
    for node in nodes:
        inner = node.value if isinstance(node, Equation) and NAME.fullmatch(node.sides[0]) else node
        flat += inner.items if isinstance(inner, Group) and inner.kind == "list" else [node]
    return tuple(flat)


def _read_one(text: str) -> Node:
    if text in ("\\mathbb{R}", "\\text{all real numbers}", "\\text{all reals}"):
        return Group("tuple", (Leaf("-\\infty"), Leaf("\\infty")), "(", ")")
    if text in ("\\{\\}", "\\emptyset", "\\text{empty set}"):
        return Leaf("\\emptyset")
    if _ONLY_TEXT.fullmatch(text):
        parts = [part for part in _TEXT_LIST.split("".join(_TEXT.findall(text))) if part.strip(" ()")]
        if len(parts) > 1:
            return Group("list", tuple(_read_one(rf"\text{{{part.strip(' ()')}}}") for part in parts))
        words = re.sub(r"[^a-z0-9]+", " ", " ".join(_TEXT.findall(text)).lower()).strip()
        return Leaf(_TEXT.findall(text)[0].strip()) if len(words) == 1 else Words(words)
    parts, found = split(text, frozenset(["\\cup"]))
    if found:
        return Group("union", tuple(read_answer(part) for part in parts))
    parts, found = split(text, _RELATIONS)
    if found:
        return _read_relation(text, parts, found)
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None and "\\begin" not in matrix.group(1):
        return _read_matrix(text, matrix.group(1))
    if (bracketed := _read_brackets(text)) is not None:
        return bracketed
    signs = text.count("\\pm")
    if 0 < signs <= 2 and "\\mp" not in text:
        return Group("list", _flat(read_answer(text.replace("\\pm", sign, 1).lstrip("+")) for sign in "+-"))
    parts, found = split(text, frozenset(":"))
    if found and all(parts) and "\\text" not in text:
        return _read_ratio([_leaf(part) for part in parts])
    return _leaf(text)


def _read_ratio(terms: list[Leaf]) -> Node:
    """Divide by the last term, so that proportional ratios are the same and one of two terms is a fraction."""
    values = [term.number.value for term in terms if term.number]
    if len(values) < len(terms) or values[-1] == 0:
        return Group("ratio", tuple(terms))
    quotients = [value / values[-1] for value in values]
    leaves = tuple(Leaf(str(quotient), PlainNumber(quotient)) for quotient in quotients)
    return leaves[0] if len(leaves) == 2 else Group("ratio", leaves)


def _read_brackets(text: str) -> Node | None:
    left, inside, right = _unwrap(text)
    if left + right not in ("()", "(]", "[)", "[]", "\\{\\}"):
        return None
    kind = "set" if left == "\\{" else "tuple"
    if kind == "set" and (conditions := split(inside, frozenset([":", "|"])))[1]:
        # Set-builder notation: the set is what its only condition says.
        (name, *_), (bar, *_) = conditions
        condition = read_answer(inside[len(name) + len(bar) :])
        return condition if NAME.fullmatch(name) and isinstance(condition, Group | Relation) else None
    parts, _ = split(inside, frozenset([",", ";"]))
    if len(parts) > 1:
        items = [read_answer(part) for part in parts]
        return Group(kind, _flat(items) if kind == "set" else tuple(items), left, right) if all(parts) else None
    if left + right in ("(]", "[)") or not inside:
        return None
    inner = read_answer(inside)
    if kind == "set" and isinstance(inner, Group) and inner.kind == "list":
        return Group(kind, inner.items, left, right)
    return inner


def _read_matrix(text: str, content: str) -> Node:
    rows = [split(row, frozenset("&"))[0] for row in split(content, frozenset(["\\\\"]))[0]]
    if rows and rows[-1] == [""]:
        rows.pop()
    if not rows or len({len(row) for row in rows}) != 1 or not all(all(row) for row in rows):
        return Leaf(text)
    return Group("matrix", tuple(read_answer(cell) for row in rows for cell in row), columns=len(rows[0]))


def _read_relation(text: str, sides: list[str], operators: list[str]) -> Node:
    if "\\approx" in operators:
        cut = operators.index("\\approx")
        if cut:
            return _read_relation(text, sides[: cut + 1], operators[:cut])
        return read_answer(sides[1] if not sides[0] or NAME.fullmatch(sides[0]) else sides[0])
    if operators == ["\\in"] or (operators == ["="] and not sides[0]):
        return read_answer(sides[1])
    if set(operators) == {"="}:
        return Equation(tuple(sides), read_answer(sides[-1])) if all(sides) else Leaf(text)
    relation = Relation(tuple(sides), tuple(operators))
    return _read_interval(relation) or relation


def _read_interval(relation: Relation) -> Group | None:
    sides, orders = list(relation.sides), [_ORDER.get(operator, ("", False)) for operator in relation.operators]
    ways, closed = {way for way, _ in orders}, [closed for _, closed in orders]
    if ways not in ({"<"}, {">"}) or not all(sides):
        return None
    if ways == {">"}:
        sides, closed = sides[::-1], closed[::-1]
    places = [index for index, side in enumerate(sides) if NAME.fullmatch(side) and side not in _CONSTANTS]
    if len(sides) == 2 and places == [0]:
        sides, closed, places = ["-\\infty", *sides], [False, *closed], [1]
    elif len(sides) == 2:
        sides, closed = [*sides, "\\infty"], [*closed, False]
    if len(sides) != 3 or places != [1]:
        return None
    low, name, high = sides
    if name in low.replace("\\infty", "") or name in high.replace("\\infty", ""):
        return None
    brackets = "[" if closed[0] else "(", "]" if closed[1] else ")"
    return Group("interval", (read_answer(low), read_answer(high)), *brackets, name=name, relation=relation)


def _leaf(text: str) -> Leaf:
    text = _strip(_QUALIFIER.sub("", text, count=1)).removeprefix("+")
    angle = text.endswith("\\text{degrees}") and TRIGONOMETRIC.search(text)
    found = None if angle or text.startswith("\\text") else _UNIT.search(text, 1)
    unit = None
    if found and not text[: found.start()].isalpha():
        words = re.findall(r"[a-z]+", " ".join(_TEXT.findall(found.group())).lower())
        if len(words) <= 5 and not _NOT_UNITS & set(words):
            unit, text = found.group(), text[: found.start()]
    percent = text.endswith("%")
    text = _strip(text.removesuffix("%"))
    left, inside, right = _unwrap(text)
    if left + right == "()" and (unit or percent):
        text = inside
    return Leaf(text, read_number(text), percent, unit)
