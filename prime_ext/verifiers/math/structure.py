# SPDX-License-Identifier: Apache-2.0
"""Trees of normalized answers: numbers, words, lists, sets, intervals, matrices, equations.

All forms and their meanings: docs/reference/verifier_rules.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from prime_ext.verifiers.math.numbers import PlainNumber, read_number

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_OPEN = {
    "(": 1,
    "[": 1,
    "{": 1,
    "\\{": 1,
    "\\begin": 1,
    ")": -1,
    "]": -1,
    "}": -1,
    "\\}": -1,
    "\\end": -1,
}
_OR = frozenset(["\\lor", "\\vee"])
_RELATIONS = frozenset(["=", "<", ">", "\\le", "\\ge", "\\ne", "\\in", "\\approx"])
_CONSTANTS = frozenset(["\\pi", "\\infty", "e", "\\emptyset"])
_ORDER = {"<": ("<", False), "\\le": ("<", True), ">": (">", False), "\\ge": (">", True)}
_MATRIX = re.compile(
    r"(?s)\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}"
)
_SYSTEM = "cases|aligned|align|gathered|gather|split|equation|array"
_ROWS = re.compile(rf"(?s)(?:\\\{{)?\\begin\{{({_SYSTEM})\}}(?:\{{[clr|]*\}})?(.*)\\end\{{\1\}}")
_SCALED = re.compile(r"(?s)((?:(?!\\begin).)+?)(?:\\cdot)?(\\begin.*)")
_CONDITION = re.compile(r"\A(?:,|\\text\{\s*(?:,?\s*(?:if|for|when|where|as))?\s*\})*|,\Z")
_REALS = re.compile(
    r"(?i)\\text\{(?:the )?(?:set of )?(?:all )?reals?(?: numbers?)?\.?\}|\\mathbb\{R\}"
)
_EMPTY = re.compile(
    r"\\\{\\\}|\\emptyset|\\text\{(?:the )?(?:empty set|no (?:real )?solutions?)\.?\}", re.I
)
_ALL_BUT = re.compile(
    r"\\text\{all reals?(?: numbers?)? (?:except|but|other than)(?: for)?\}(?:[a-z]=)?(?=.)", re.I
)
_FORMULA = re.compile(r"(?:[a-zA-Z() ]|\\(?:neg|lnot|vee|wedge)(?![a-zA-Z]))+")
_PARTS = re.compile(r"[,;]?\(([a-z])\)")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?:\\text\{\s*([ap])\.?\s?m\.?\s*\})?", re.I)
_MONTHS = "(?:Jan|Febr)uary|March|April|May|June|July|August|(?:Septem|Octo|Novem|Decem)ber"
_MONTH = re.compile(rf"(?<![a-zA-Z])(?:{_MONTHS})(?![a-zA-Z])")
_LABEL_WORDS = (
    "so|hence|thus|therefore|the|an?|there|are|is|points?|interval|line|curve|circle|center|centre|vertex|focus|equation"
    r"|value|we|get|have|about|approximately|exactly|rs\.?|usd"
)
_LABEL = re.compile(
    rf"(?i)\A\\text\{{(?:(?:(?:{_LABEL_WORDS})(?:,? |,?(?=\}})))+\}}(?=.)"
    r"|all reals?(?: numbers?)?\}(?=[a-z](?:[<>]|\\[nlg]e(?![a-z]))))"
)
_POINT = re.compile(r"\A[A-Z](?:_\{\w+\}|')*(?=\(.*,.*\)\Z)")
_TRANSPOSED = re.compile(r"([(\[][^()\[\]]*,[^()\[\]]*[)\]])\^\{(?:T|\\top|\\text\{T\})\}")
_COMPONENT = re.compile(r"([+-]?)((?:[^+\-(]|\([^()]*\))*?)(?:\\cdot)?\\vec\{([ijk])\}")
_CONGRUENCE = re.compile(r"(?:.+?\\equiv ?)?(.+?)\\pmod\{(\w+)\}")
_SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_ONLY_TEXT = re.compile(r"(?:\\text\{[^{}]*\})+")
_UNIT = re.compile(r"(?:(?:/|\\cdot)?\\text\{[^{}\d]*\}(?:\^\{-?\d\})?)+\Z")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_TEXT_LIST = re.compile(r"[,;]|\b(?:and|or)\b|&")
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_NOT_UNITS = frozenset(
    "or and not no if for when to than is nor either but maybe except otherwise where with".split()
)
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
    """Several answers: list, tuple, interval, set, union, ratio, matrix, congruence with modulus.

    Intervals come from inequalities. ``left`` and ``right`` are the brackets of tuples and
    intervals; ``columns`` is the width of a matrix; ``name`` and ``relation`` are the variable and
    the whole of an inequality.
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
    """Inequalities that are not an interval, and "not equal"."""

    sides: tuple[str, ...]
    operators: tuple[str, ...]


Node = Leaf | Words | Group | Equation | Relation


def split(text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """Split at separators outside of all brackets; return the parts and these separators."""
    if not any(separator in text for separator in separators):
        return [text.strip()], []
    parts = [""]
    between = []
    depth = 0
    for token in _TOKEN.findall(text):
        depth += _OPEN.get(token, 0)
        if depth <= 0 and token in separators:
            parts.append("")
            between.append(token)
        else:
            parts[-1] += token
    return [part.strip() for part in parts], between


def _unwrap(text: str) -> tuple[str, str, str]:
    """Return left bracket, inside and right bracket; no brackets unless they enclose it all."""
    whole = text.startswith(("(", "[", "{", "\\{")) and text.endswith((")", "]", "}"))
    tokens = _TOKEN.findall(text) if whole else []
    depths = list(accumulate(_OPEN.get(token, 0) for token in tokens))
    if len(tokens) > 1 and depths[-1] == 0 and min(depths[:-1]) > 0:
        return tokens[0], "".join(tokens[1:-1]), tokens[-1]
    return "", text, ""


def read_answer(text: str) -> Node:
    """Read a normalized answer recursively: its nesting must be within the limits of complexity."""
    text = _strip(text)
    if _MONTH.search(text):
        return Words(" ".join(re.findall(r"[a-z]+|[0-9]+", text.replace("\\text", "").lower())))
    if rows := _ROWS.fullmatch(text):
        if (rows.group(1) == "cases" or text.startswith("\\{")) and (
            pieces := _read_pieces(rows.group(2))
        ):
            return pieces
        if rows.group(1) != "array" or text.startswith("\\{"):
            return read_answer(
                ",".join(row.strip(" ,.;") for row in rows.group(2).replace("&", "").split("\\\\"))
            )
    if text.startswith("(a)") and "(b)" in text:
        text = _PARTS.sub(r",\1=", text)
    if _FORMULA.fullmatch(text) and re.search(r"\\(?:vee|wedge)", text):
        return Leaf(text)
    for separators in (frozenset([";", "\\\\"]), _OR, frozenset([",", "\\wedge"])):
        parts, _ = split(text, separators)
        parts = [part for part in parts if part]
        if len(parts) > 1:
            items = _flatten(_solution(read_answer(part)) for part in parts)
            if separators == _OR and all(isinstance(item, Group) and item.left for item in items):
                return Group("union", items, name="or")
            return (separators != _OR and _intersection(items)) or Group("list", items)
        text = parts[0] if parts else ""
    return _read_one(text)


def _read_pieces(content: str) -> Group | None:
    """Read the values and conditions of a function that is defined by cases."""
    rows = [split(row, frozenset("&"))[0] for row in content.strip("\\ ").split("\\\\")]
    if any(len(row) != 2 or row[1][:1] in "=<>" for row in rows):
        return None
    cells = [
        _CONDITION.sub("", _CONDITION.sub("", cell.rstrip(".;"))) for row in rows for cell in row
    ]
    return Group("matrix", tuple(map(read_answer, cells)), columns=2)


def read_names(node: "Node") -> "dict[str, Node]":
    """Return the values of a list of equations ``x=1,y=2`` by name; {} for any other answer."""
    if not (isinstance(node, Group) and node.kind == "list"):
        return {}
    values = {
        item.sides[0]: item.value
        for item in node.items
        if isinstance(item, Equation) and len(item.sides) == 2
    }
    return values if len(values) == len(node.items) and all(map(NAME.fullmatch, values)) else {}


def _solution(node: "Node") -> "Node":
    """Turn the solution ``x=1,y=2`` into the pair of its values, in the order of the names."""
    values = read_names(node)
    return (
        Group("tuple", tuple(values[name] for name in sorted(values)), "(", ")") if values else node
    )


def _intersection(items: Iterable["Node"]) -> "Node | None":
    """Join ``x>1,x\\le3`` to an interval; of ``x\\in\\mathbb{R},x\\ne2`` return the second part."""
    parts = [item for item in items if item != REALS]
    if len(parts) == 1 and isinstance(parts[0], Relation | Group):
        return parts[0]
    bounds = [part for part in parts if isinstance(part, Group) and part.kind == "interval"]
    if len(bounds) != len(parts) or len(bounds) != 2 or bounds[0].name != bounds[1].name:
        return None
    low, high = bounds if bounds[0].items[1] == _INFINITY else bounds[::-1]
    if low.items[1] != _INFINITY or high.items[0] != Leaf("-\\infty"):
        return None
    return Group("interval", (low.items[0], high.items[1]), low.left, high.right, name=low.name)


def _strip(text: str) -> str:
    left, inside, right = _unwrap(text)
    return _strip(inside) if left + right == "{}" else text


def _flatten(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Put the members of lists, also of assigned ones (``x=\\pm3``), in the place of the lists."""
    flat: list[Node] = []
    for node in nodes:
        inner = node.value if isinstance(node, Equation) and NAME.fullmatch(node.sides[0]) else node
        flat += inner.items if isinstance(inner, Group) and inner.kind == "list" else [node]
    return tuple(flat)


_INFINITY = Leaf("\\infty")
REALS = Group("tuple", (Leaf("-\\infty"), _INFINITY), "(", ")")


def _read_one(text: str) -> Node:
    if _REALS.fullmatch(text):
        return REALS
    if (rest := _ALL_BUT.sub("x\\\\ne ", text, count=1)) != text:
        return read_answer(rest)
    text = _LABEL.sub("", text)
    text = transposed.group(1) if (transposed := _TRANSPOSED.fullmatch(text)) else text
    if _EMPTY.fullmatch(text):
        return Leaf("\\emptyset")
    if _ONLY_TEXT.fullmatch(text):
        parts = [
            part for part in _TEXT_LIST.split("".join(_TEXT.findall(text))) if part.strip(" ()")
        ]
        if len(parts) > 1:
            return Group(
                "list", tuple(_read_one(rf"\text{{{part.strip(' ()')}}}") for part in parts)
            )
        words = re.sub(r"[^a-z0-9]+", " ", " ".join(_TEXT.findall(text)).lower()).strip()
        return Leaf(_TEXT.findall(text)[0].strip()) if len(words) == 1 else Words(words)
    parts, separators = split(text, frozenset(["\\cup"]))
    if separators:
        return Group("union", tuple(read_answer(part) for part in parts))
    parts, separators = split(text, frozenset(["\\cap"]))
    if separators and (common := _intersection(tuple(read_answer(part) for part in parts))):
        return common
    if congruence := _CONGRUENCE.fullmatch(text):
        residue, modulus = congruence.groups()
        if modulus.isdigit() and int(modulus) and re.fullmatch(r"-?\d{1,40}", residue):
            residue = str(int(residue) % int(modulus))
        return Group("congruence", (read_answer(residue), _leaf(modulus)))
    parts, separators = split(text, _RELATIONS)
    if separators:
        return _read_relation(text, parts, separators)
    scaled = _SCALED.fullmatch(text)
    matrix = _MATRIX.fullmatch(scaled.group(2) if scaled else text)
    if matrix is not None and "\\begin" not in matrix.group(2):
        return _read_matrix(text, matrix.group(2), scaled.group(1) if scaled else "")
    if (components := list(_COMPONENT.finditer(text))) and "".join(
        part.group() for part in components
    ) == text:
        sizes = {
            name: sign.strip("+") + (size or "1")
            for sign, size, name in (part.groups() for part in components)
        }
        names = "ijk" if "k" in sizes else "ij"
        return Group("tuple", tuple(read_answer(sizes.get(name, "0")) for name in names), "(", ")")
    if (clock := _CLOCK.fullmatch(text)) and (clock.group(2) or clock.group(3)):
        hour, minute, half = clock.groups()
        number = read_number(f"{hour}/{minute}" if minute and not half else hour)
        return Leaf(f"{int(hour)}:{minute or '00'}", number, unit=half and rf"\text{{{half}m}}")
    if (bracketed := _read_brackets(text)) is not None:
        return bracketed
    signs = text.count("\\pm")
    if 0 < signs <= 2 and "\\mp" not in text:
        both = _flatten(read_answer(text.replace("\\pm", sign, 1).lstrip("+")) for sign in "+-")
        return Group("list", both, name="\\pm")
    parts, separators = split(text, frozenset(":"))
    if separators and all(parts) and "\\text" not in text:
        return _read_ratio([_leaf(part) for part in parts])
    return _leaf(text)


def _read_ratio(terms: list[Leaf]) -> Node:
    """Divide by the last term: proportional ratios become equal, those of two terms fractions."""
    values = [term.number.value for term in terms if term.number]
    if len(values) < len(terms) or values[-1] == 0:
        return Group("ratio", tuple(terms))
    quotients = [value / values[-1] for value in values]
    leaves = tuple(Leaf(str(quotient), PlainNumber(quotient)) for quotient in quotients)
    return leaves[0] if len(leaves) == 2 else Group("ratio", leaves)


def _read_brackets(text: str) -> Node | None:
    left, inside, right = _unwrap(_POINT.sub("", text))
    if left + right not in ("()", "(]", "[)", "[]", "\\{\\}"):
        return None
    kind = "set" if left == "\\{" else "tuple"
    if kind == "set" and (conditions := split(inside, frozenset([":", "|"])))[1]:
        # Set-builder notation: the set is what its only condition says.
        (name, *_), (bar, *_) = conditions
        condition = read_answer(inside[len(name) + len(bar) :])
        name = name.removesuffix("\\in\\mathbb{R}")
        return (
            condition if NAME.fullmatch(name) and isinstance(condition, Group | Relation) else None
        )
    parts, _ = split(inside, frozenset([",", ";"]))
    if len(parts) > 1:
        items = [read_answer(part) for part in parts]
        rows = [
            item.items
            for item in items
            if isinstance(item, Group) and item.left + item.right == "[]"
        ]
        if left == "[" and len(rows) == len(items) and len({len(row) for row in rows}) == 1:
            return Group(
                "matrix", tuple(cell for row in rows for cell in row), columns=len(rows[0])
            )
        return (
            Group(kind, _flatten(items) if kind == "set" else tuple(items), left, right)
            if all(parts)
            else None
        )
    if left + right in ("(]", "[)") or not inside:
        return None
    inner = read_answer(inside)
    if kind == "set" and isinstance(inner, Group) and inner.kind == "list":
        return Group(kind, inner.items, left, right)
    return inner


def _read_matrix(text: str, content: str, factor: str = "") -> Node:
    rows = [split(row, frozenset("&"))[0] for row in split(content, frozenset(["\\\\"]))[0]]
    if rows and rows[-1] == [""]:
        rows.pop()
    if not rows or len({len(row) for row in rows}) != 1 or not all(all(row) for row in rows):
        return Leaf(text)
    cells = [f"({factor})\\cdot({cell})" if factor else cell for row in rows for cell in row]
    return (
        Group("matrix", tuple(map(read_answer, cells)), columns=len(rows[0]))
        if cells[1:]
        else read_answer(cells[0])
    )


def _read_relation(text: str, sides: list[str], operators: list[str]) -> Node:
    if "\\approx" in operators:
        cut = operators.index("\\approx")
        if cut:
            return _read_relation(text, sides[: cut + 1], operators[:cut])
        return read_answer(sides[1] if not sides[0] or NAME.fullmatch(sides[0]) else sides[0])
    if operators == ["="] and not sides[0]:
        return read_answer(sides[1])
    if "\\in" in operators:
        element = operators == ["\\in"] and (
            not sides[0] or NAME.fullmatch(sides[0]) and sides[0] not in _CONSTANTS
        )
        return read_answer(sides[1]) if element else Leaf(text)
    if operators == ["\\ne"] and sides[1].count("\\pm") == 1:
        return Group("list", tuple(_read_one(text.replace("\\pm", sign)) for sign in ("", "-")))
    if set(operators) == {"="}:
        return Equation(tuple(sides), read_answer(sides[-1])) if all(sides) else Leaf(text)
    relation = Relation(tuple(sides), tuple(operators))
    return _read_interval(relation) or relation


def _read_interval(relation: Relation) -> Group | None:
    sides = list(relation.sides)
    orders = [_ORDER.get(operator, ("", False)) for operator in relation.operators]
    ways = {way for way, _ in orders}
    closed = [closed for _, closed in orders]
    if ways not in ({"<"}, {">"}) or not all(sides):
        return None
    if ways == {">"}:
        sides = sides[::-1]
        closed = closed[::-1]
    places = [
        index for index, side in enumerate(sides) if NAME.fullmatch(side) and side not in _CONSTANTS
    ]
    if len(sides) == 2 and places == [0]:
        sides = ["-\\infty", *sides]
        closed = [False, *closed]
        places = [1]
    elif len(sides) == 2:
        sides = [*sides, "\\infty"]
        closed = [*closed, False]
    if len(sides) != 3 or places != [1]:
        return None
    low, name, high = sides
    if name in low.replace("\\infty", "") or name in high.replace("\\infty", ""):
        return None
    brackets = "[" if closed[0] else "(", "]" if closed[1] else ")"
    return Group(
        "interval", (read_answer(low), read_answer(high)), *brackets, name=name, relation=relation
    )


def _leaf(text: str) -> Leaf:
    text = _strip(text).removeprefix("+")
    angle = text.endswith("\\text{degrees}") and TRIGONOMETRIC.search(text)
    unit_match = None if angle or text.startswith("\\text") else _UNIT.search(text, 1)
    unit = None
    scale = 1
    if unit_match and not text[: unit_match.start()].isalpha():
        words = re.findall(r"[a-z]+", " ".join(_TEXT.findall(unit_match.group())).lower())
        if len(words) <= 5 and not _NOT_UNITS & set(words):
            unit = unit_match.group()
            text = text[: unit_match.start()]
            if words[:1] == ["factorial"]:
                text = f"({text})!"
                unit = None
            while words and words[0] in _SCALES:
                scale *= _SCALES[words.pop(0)]
                unit = rf"\text{{{' '.join(words)}}}"
    percent = text.endswith("%")
    text = _strip(text.removesuffix("%"))
    left, inside, right = _unwrap(text)
    if left + right == "()" and (unit or percent):
        text = inside
    number = read_number(text)
    if scale > 1:
        text = f"({text})\\cdot{scale}"
        number = PlainNumber(number.value * scale) if number else None
    return Leaf(text, number, percent, unit)
