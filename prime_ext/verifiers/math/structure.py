# SPDX-License-Identifier: Apache-2.0
"""Reads a normalised answer as a tree: numbers, words, lists, tuples, sets, intervals, unions, matrices, equations.

What each form means:

- ``1,2`` or ``1;2`` or ``1 or 2``: a list. ``\\{1,2\\}``: a set. ``(1,2)``, ``[1,2)``: a tuple or interval with these
  brackets. A single member loses its brackets, so ``(5)``, ``\\{5\\}`` and ``5`` are the same.
- ``\\pm`` (at most twice in a member) stands for both signs: ``1\\pm\\sqrt{2}`` is a list of two.
- ``x<3``, ``2\\le x<5`` (one variable alone between the bounds) are intervals; ``\\mathbb{R}`` is
  ``(-\\infty,\\infty)``; intervals joined by ``\\cup`` or "or" are a union.
- ``x\\in S`` is ``S``; ``\\sqrt{2}\\approx1.41`` is its left side, unless that is a name.
- ``a:b:c``: a ratio. ``\\begin{pmatrix}...``: a matrix (determinants are left alone).
- A percent sign, and a trailing unit (``\\text{...}`` of up to five words after a value), are kept beside the value; a
  lone letter has no unit, so ``C\\text{ D}`` is not ``C``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
_UNIT = re.compile(r"(?:(?:/|\\cdot)?\\text\{[^{}\d]*\}(?:\^\{-?\d\})?)+")
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
    parts: list[str] = []
    found: list[str] = []
    current: list[str] = []
    depth = 0
    for token in _TOKEN.findall(text):
        depth += _OPEN.get(token, 0)
        if depth <= 0 and token in separators:
            parts.append("".join(current).strip())
            found.append(token)
            current = []
        else:
            current.append(token)
    return [*parts, "".join(current).strip()], found


def _unwrap(text: str, left: str, right: str) -> str | None:
    """Return what is inside if ``text`` is one bracketed whole."""
    if not (text.startswith(left) and text.endswith(right)) or len(text) < len(left) + len(right):
        return None
    depth = 0
    tokens = _TOKEN.findall(text)
    for index, token in enumerate(tokens):
        depth += _OPEN.get(token, 0)
        if depth <= 0 and index < len(tokens) - 1:
            return None
    return text[len(left) : -len(right)] if depth == 0 and tokens[0] == left and tokens[-1] == right else None


def read_answer(text: str) -> Node:
    """Read a normalised answer. Its nesting must have passed the gate, for this is recursive."""
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
    while (inner := _unwrap(text, "{", "}")) is not None:
        text = inner
    return text


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
    bracketed = _read_brackets(text)
    if bracketed is not None:
        return bracketed
    signs = text.count("\\pm")
    if 0 < signs <= 2 and "\\mp" not in text:
        return Group("list", _flat(read_answer(text.replace("\\pm", sign, 1).lstrip("+")) for sign in "+-"))
    parts, found = split(text, frozenset(":"))
    if found and all(parts) and "\\text" not in text:
        return Group("ratio", tuple(_leaf(part) for part in parts))
    return _leaf(text)


def _read_brackets(text: str) -> Node | None:
    for left, right in (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"), ("\\{", "\\}")):
        inside = _unwrap(text, left, right)
        if inside is None:
            continue
        if left == "\\{" and (conditions := split(inside, frozenset([":", "|"])))[1]:
            # Set-builder notation: the set is what its only condition says.
            (name, *rest), (bar, *_) = conditions
            condition = read_answer(inside[len(name) + len(bar) :])
            return condition if NAME.fullmatch(name) and isinstance(condition, Group | Relation) else None
        parts, _ = split(inside, frozenset([",", ";"]))
        if len(parts) > 1 and not all(parts):
            return None
        kind = "set" if left == "\\{" else "tuple"
        if len(parts) > 1:
            items = [read_answer(part) for part in parts]
            return Group(kind, _flat(items) if kind == "set" else tuple(items), left, right)
        if left + right in ("(]", "[)") or not inside:
            return None
        inner = read_answer(inside)
        return (
            Group("set", inner.items) if kind == "set" and isinstance(inner, Group) and inner.kind == "list" else inner
        )
    return None


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
        first, rest = sides[: cut + 1], sides[cut + 1]
        if cut == 0 and (not first[0] or NAME.fullmatch(first[0])):
            return read_answer(rest)
        return _read_relation(text, first, operators[:cut]) if cut else read_answer(first[0])
    if len(operators) == 1 and not sides[0]:
        return read_answer(sides[1]) if operators[0] == "=" else Relation(tuple(sides), tuple(operators))
    if operators == ["\\in"]:
        return read_answer(sides[1])
    if set(operators) == {"="}:
        return Equation(tuple(sides), read_answer(sides[-1])) if all(sides) else Leaf(text)
    if all(operator in _ORDER for operator in operators) and all(sides):
        interval = _read_interval(sides, operators)
        if interval is not None:
            return interval
    return Relation(tuple(sides), tuple(operators))


def _read_interval(sides: list[str], operators: list[str]) -> Group | None:
    ways = {_ORDER[operator][0] for operator in operators}
    if len(ways) != 1 or len(sides) > 3:
        return None
    closed = [_ORDER[operator][1] for operator in operators]
    relation = Relation(tuple(sides), tuple(operators))
    if ways == {">"}:
        sides, closed = sides[::-1], closed[::-1]
    places = [index for index, side in enumerate(sides) if NAME.fullmatch(side) and side not in _CONSTANTS]
    if places == [1] and len(sides) == 3:
        low, name, high = sides
        low_closed, high_closed = closed
    elif len(sides) == 2 and places == [0]:
        (name, high), low, low_closed, high_closed = sides, "-\\infty", False, closed[0]
    elif len(sides) == 2 and places == [1]:
        (low, name), high, low_closed, high_closed = sides, "\\infty", closed[0], False
    else:
        return None
    if name in low.replace("\\infty", "") or name in high.replace("\\infty", ""):
        return None
    items = (read_answer(low), read_answer(high))
    brackets = "[" if low_closed else "(", "]" if high_closed else ")"
    return Group("interval", items, *brackets, name=name, relation=relation)


def _leaf(text: str) -> Leaf:
    text = _strip(_QUALIFIER.sub("", text, count=1)).removeprefix("+")
    unit = None
    start = text.find("\\text{")
    if start > 0 and not (text.endswith("\\text{degrees}") and TRIGONOMETRIC.search(text)):
        # The unit is the longest run of text at the end; look for its start from the first \text.
        for match in re.finditer(r"(?:/|\\cdot)?\\text\{", text):
            if match.start() > 0 and _UNIT.fullmatch(text, match.start()):
                words = re.findall(r"[a-z]+", " ".join(_TEXT.findall(text[match.start() :])).lower())
                if len(words) <= 5 and not _NOT_UNITS & set(words) and not text[: match.start()].isalpha():
                    unit, text = text[match.start() :], text[: match.start()]
                break
    percent = text.endswith("%")
    text = _strip(text.removesuffix("%"))
    bare = _unwrap(text, "(", ")")
    if bare is not None and (unit or percent):
        text = bare
    return Leaf(text, read_number(text), percent, unit)
