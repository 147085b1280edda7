# SPDX-License-Identifier: Apache-2.0
"""Trees of answers: numbers, texts, lists, sets, intervals, matrices, equations, named values.

All forms and their meanings: docs/reference/verifier_rules.md. What no form fits is a leaf without
a tree, a text that must be equal.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from prime_ext.verifiers.math.expressions import (
    KNOWN_CALLS,
    Expression,
    Unreadable,
    exact_value,
    read_expression,
    walk,
)
from prime_ext.verifiers.math.notation import CURRENCIES, FUNCTIONS, Token, Tokens, spell, tokenize
from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.units import OPERATIVE, PARTS, SCALES, Unit, read_unit

_MONEY = frozenset(CURRENCIES.values())
# What may begin the unit of a value, besides words and letters.
_SUFFIXES = _MONEY | frozenset("^ % permil min / ' \" mu Omega circ ( cdot frac".split())
_OPEN = {"(": 1, "[": 1, "{": 1, "\\{": 1, ")": -1, "]": -1, "}": -1, "\\}": -1}
_OPEN |= {"begin": 1, "end": -1, "lfloor": 1, "rfloor": -1, "lceil": 1, "rceil": -1}
_ORDER = {"<": ("<", False), "le": ("<", True), ">": (">", False), "ge": (">", True)}
# Relations that algebra does not know: their sides must be equal, one by one.
_OPAQUE = frozenset(
    "subset subseteq subsetneq supset supseteq supsetneq prec succ preceq succeq ll gg notin ni"
    " to Rightarrow Leftarrow leftarrow leftrightarrow Leftrightarrow perp parallel cong sim mid"
    " mapsto equiv propto nmid nparallel".split()
)
_RELATIONS = frozenset(["=", "<", ">", "le", "ge", "ne", "in", "approx"]) | _OPAQUE
_SYSTEMS = frozenset("cases aligned align gathered gather split equation array rcases".split())
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix array".split())
_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan,february feb,march mar,april apr,may,june jun,july jul,august aug,"
        "september sep sept,october oct,november nov,december dec".split(","),
        1,
    )
    for name in names.split()
}
_LABEL_WORDS = frozenset(
    "so hence thus therefore the an a there point points interval line curve circle equation value"
    " values we get have about approximately exactly approx roughly numbers number set solution"
    " solutions answer answers is are of".split()
)
_EMPTY_TEXTS = frozenset(
    ["nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset", "theemptyset"]
)
_REAL_TEXTS = frozenset(
    "reals realnumbers allreals allrealnumbers therealnumbers thesetofallrealnumbers allreal"
    " setofallrealnumbers thesetofrealnumbers setofrealnumbers".split()
)
_TRUTH = frozenset("t f true false yes no".split())
# Two letters that are a word; any other two are a product.
_TWO_LETTER_WORDS = frozenset(
    "am an as at be by do go he if in is it me my no of oh ok on or ox pi so to up us we".split()
)
_ROMAN = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"]
_DATE = re.compile(r"(\d{4})[-./](\d{1,2})[-./](\d{1,2})|(\d{1,2})[-./](\d{1,2})[-./](\d{4})")
_CODE = re.compile(r"\d+(?:\.\d+){2,}|\d+(?:-\d+)+|(?:\d{1,2}/){2}\d{2,4}")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d)){1,2}")


@dataclass(frozen=True)
class Leaf:
    """A value, or a text that must be equal if it has no tree.

    ``reading`` is the other reading of letters that are a unit or variables; ``code``: letters and digits alone,
    which another such leaf must spell the same.
    """

    text: str
    tree: Expression | None = None
    number: PlainNumber | None = None
    percent: bool = False
    unit: Unit | None = None
    code: bool = False
    reading: "Leaf | None" = None


@dataclass(frozen=True)
class Group:
    """Several answers, by kind.

    list, tuple, interval, set, union, cap, setminus, ratio, matrix, congruence with its modulus,
    pieces (of a function by cases), parts (with their names).

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
    names: tuple[str, ...] = ()
    relation: "Relation | None" = None


@dataclass(frozen=True)
class Side:
    """A side of a relation: its spelling, and its tree if it has one."""

    text: str
    tree: Expression | None


@dataclass(frozen=True)
class Relation:
    """A chain of sides and operators that is neither an interval nor an equation."""

    sides: tuple[Side, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Equation:
    """``a = b = c``, or a labeled value ("area 12"): its sides, and what the last one is."""

    sides: tuple[Side, ...]
    value: "Node"


Node = Leaf | Group | Equation | Relation
EMPTY = Leaf("\\emptyset")
INFINITY = Leaf("\\infty", ("symbol", "\\infty"))
_MINUS_INFINITY = Leaf("-\\infty", ("negate", ("symbol", "\\infty")))
REALS = Group("tuple", (_MINUS_INFINITY, INFINITY), "(", ")")


@lru_cache(maxsize=4096)
def read(text: str) -> Node:
    """Read an answer. Its nesting is limited; deeper ones are texts."""
    return read_answer(tokenize(text))


def _is(token: Token, *texts: str) -> bool:
    return token.kind in ("sign", "command") and token.text in texts


def _depths(tokens: Sequence[Token]) -> list[int]:
    """Return the depth of brackets after each token."""
    depth = 0
    depths = []
    for token in tokens:
        depth += _OPEN.get(token.text, 0) if token.kind in ("sign", "command") else 0
        depths.append(depth)
    return depths


def split(
    tokens: Tokens, is_separator: Callable[[Token], bool]
) -> tuple[list[Tokens], list[Token]]:
    """Split at separators outside of all brackets; return the parts and these separators."""
    parts: list[list[Token]] = [[]]
    between = []
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        if depth <= 0 and is_separator(token):
            between.append(token)
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts], between


def _unwrap(tokens: Tokens) -> tuple[str, Tokens, str]:
    """Return left bracket, inside and right bracket; no brackets unless they enclose it all."""
    if len(tokens) > 1 and tokens[0].text in ("(", "[", "{", "\\{") and tokens[-1].kind == "sign":
        depths = _depths(tokens)
        if tokens[-1].text in (")", "]", "}", "\\}") and depths[-1] == 0 and min(depths[:-1]) > 0:
            return tokens[0].text, tokens[1:-1], tokens[-1].text
    return "", tokens, ""


def _strip(tokens: Tokens) -> Tokens:
    while True:
        left, inside, right = _unwrap(tokens)
        if left + right != "{}":
            break
        tokens = inside
    while tokens and _is(tokens[-1], ".", ",", ";") and tokens[-1].kind == "sign":
        tokens = tokens[:-1]
    while tokens and _is(tokens[0], ",", ";", ":"):
        tokens = tokens[1:]
    return tokens


def read_answer(tokens: Tokens, depth: int = 0) -> Node:
    """Read tokens recursively."""
    tokens = _strip(tokens)
    if not tokens or depth > 9:
        return Leaf(spell(tokens))
    if (special := _read_date(tokens)) is not None:
        return special
    if _is(tokens[0], "begin") or (
        _is(tokens[0], "\\{") and len(tokens) > 1 and _is(tokens[1], "begin")
    ):
        if (rows := _read_rows(tokens, depth)) is not None:
            return rows
    if (parts := _read_parts(tokens, depth)) is not None:
        return parts
    tokens = _drop_parameter(tokens)
    separators: tuple[Callable[[Token], bool], ...] = (
        lambda token: token.kind == "sign" and token.text in (";", "\\\\"),
        lambda token: token.kind == "word" and token.text == "or",
        lambda token: (
            (token.kind == "sign" and token.text in (",", "&"))
            or (token.kind == "word" and token.text == "and")
        ),
    )
    if any(token.text in _RELATIONS or token.text in ("infty", ",") for token in tokens):
        tokens = tuple(
            Token("word", {"vee": "or", "wedge": "and"}[token.text])
            if _is(token, "vee", "wedge")
            else token
            for token in tokens
        )
    for index, is_separator in enumerate(separators):
        parts_, between = split(tokens, is_separator)
        parts_ = [part for part in parts_ if part]
        if len(parts_) > 1:
            items = _flatten(_solution(read_answer(part, depth + 1)) for part in parts_)
            if index == 1 and all(isinstance(item, Group) and item.left for item in items):
                return Group("union", items, name="or")
            compound = _join_compound(items) if index == 2 else None
            return compound or (index != 1 and _intersection(items)) or Group("list", items)
        tokens = parts_[0] if parts_ else ()
    equations = _split_equations(tokens)
    if len(equations) > 1:
        return Group("list", tuple(read_answer(part, depth + 1) for part in equations))
    return _read_one(tokens, depth + 1)


def _split_equations(tokens: Tokens) -> list[Tokens]:
    """Split ``x=5 y=3``: a name after white space begins an equation."""
    starts = [0]
    signs = [index for index, token in enumerate(tokens) if token.text == "="]
    for sign in signs[1:]:
        name, before = tokens[sign - 1], tokens[sign - 2]
        if (
            name.kind == "letters"
            and len(name.text) == 1
            and name.space
            and (before.kind in ("number", "letters") or before.text in (")", "}"))
        ):
            starts.append(sign - 1)
    return [tokens[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _read_date(tokens: Tokens) -> Leaf | None:
    """Read dates and codes, whose digits and hyphens are not arithmetic."""
    text = spell(tokens)
    bare = "".join(token.text for token in tokens)
    if match := _DATE.fullmatch(bare):
        year, month, day, first, second, last = match.groups()
        if year and int(month) < 13 and int(day) < 32:
            return Leaf(f"{year}-{int(month)}-{int(day)}")
        return Leaf(bare) if first else None
    if _CODE.fullmatch(bare) and not any(token.space for token in tokens[1:]):
        return Leaf(bare)
    months = [
        _MONTHS[token.text.lower()]
        for token in tokens
        if token.text.lower() in _MONTHS and (token.kind in ("word", "letters"))
    ]
    numbers = [token.text for token in tokens if token.kind == "number"]
    rest = {
        token.text.lower()
        for token in tokens
        if token.kind != "number" and token.text.lower() not in _MONTHS
    }
    if (
        len(months) == 1
        and 1 <= len(numbers) <= 2
        and rest <= {",", ".", "th", "st", "nd", "rd", "the", "of", "s", "t", "h", "n", "r", "d"}
    ):
        years = [number for number in numbers if len(number) == 4]
        days = [number for number in numbers if len(number) < 3]
        if len(years) == len(days) == 1:
            return Leaf(f"{years[0]}-{months[0]}-{int(days[0])}")
        return Leaf(f"month {months[0]} {' '.join(numbers)}")
    return Leaf(text) if len(months) == 1 and not numbers and len(tokens) == 1 else None


def _environment(tokens: Tokens) -> tuple[str, Tokens] | None:
    """Return name and content of an environment that is all of the tokens."""
    texts = [token.text for token in tokens]
    if texts[:2] != ["begin", "{"] or "}" not in texts:
        return None
    name = "".join(texts[2 : texts.index("}")])
    ends = [index for index, one in enumerate(texts) if one == "end" and index]
    close = ["end", "{", *texts[2 : texts.index("}")], "}"]
    if len(ends) != 1 or texts[ends[0] :] != close:
        return None
    content = tokens[texts.index("}") + 1 : ends[0]]
    if name == "array" and content and content[0].text == "{":
        end = next((index for index, one in enumerate(content) if one.text == "}"), 0)
        content = content[end + 1 :]
    return name, content


def _read_rows(tokens: Tokens, depth: int) -> Node | None:
    braced = tokens[0].text == "\\{"
    environment = _environment(tokens[1:] if braced else tokens)
    if environment is None or environment[0] not in _SYSTEMS:
        return None
    name, content = environment
    rows = [row for row in split(content, lambda token: token.text == "\\\\")[0] if row]
    if (name == "cases" or braced) and rows:
        cells = [split(row, lambda token: _is(token, "&"))[0] for row in rows]
        if all(len(row) == 2 and row[1] and row[1][0].text not in _RELATIONS for row in cells):
            return Group(
                "pieces",
                tuple(
                    Group(
                        "tuple",
                        tuple(read_answer(_strip_condition(cell), depth + 1) for cell in row),
                    )
                    for row in cells
                ),
                columns=2,
            )
    if name == "array" and not braced:
        return None
    joined: list[Token] = []
    for row in rows:
        joined += [token for token in row if not _is(token, "&")]
        while joined and _is(joined[-1], ",", ";", "."):
            joined.pop()
        joined.append(Token("sign", ","))
    return read_answer(tuple(joined), depth + 1)


def _strip_condition(tokens: Tokens) -> Tokens:
    tokens = _strip(tokens)
    while tokens and tokens[0].text.lower() in ("if", "for", "when", "where", "as", ","):
        tokens = tokens[1:]
    return tokens


def _read_parts(tokens: Tokens, depth: int) -> Node | None:
    """Read ``(1) 5 (2) 7``, ``(a) 3, (b) 4``, ``1) 5 2) 7``, ``A. 3 B. 8``, ``Part 1: 5; ...``."""
    starts: list[tuple[int, int]] = []
    depths = [0, *_depths(tokens)]
    name_index = 0
    names: list[str] = []
    for index in range(len(tokens)):
        for begin, width in (("(", 3), ("Part", 3), ("", 2)):
            end = index + width
            if end > len(tokens) or depths[index] > 0:
                continue
            label = tokens[end - 2]
            first, close = tokens[index].text, tokens[end - 1].text
            if begin == "(" and not (first == "(" and close == ")"):
                continue
            if begin == "Part" and not (
                first.lower() in ("part", "question", "q", "problem") and close == ":"
            ):
                continue
            if not begin and not (
                close == ")"
                and label.kind in ("number", "letters", "word")
                or close in (".", ":")
                and label.text in ("ABCDEFGH"[name_index : name_index + 1], _ROMAN[name_index % 10])
                and end < len(tokens)
            ):
                continue
            if label.text.lower() in {
                str(name_index + 1),
                "abcdefghij"[name_index : name_index + 1],
                _ROMAN[name_index] if name_index < 10 else "",
            } and (not starts or starts[-1][1] < index):
                if names and names[0].isdigit() != label.text.isdigit():
                    continue
                starts.append((index, end))
                names.append(label.text.lower())
                name_index += 1
                break
        if not starts:
            return None
    if len(starts) == 1 and tokens[0].text == "(" and len(tokens) > 3 and tokens[3].space:
        return read_answer(tokens[3:], depth + 1)
    if len(starts) < 2:
        return None
    ends = [start for start, _ in starts[1:]] + [len(tokens)]
    items = tuple(
        read_answer(tokens[start:end], depth + 1)
        for (_, start), end in zip(starts, ends, strict=True)
    )
    return Group("parts", items, names=tuple(names))


def _drop_parameter(tokens: Tokens) -> Tokens:
    r"""Drop ``k\in\mathbb{Z}`` and name the integer ``k``: that letter alone means any integer."""
    texts = [token.text for token in tokens]
    content: Tokens | None = None
    letter = ""
    left = _unwrap(tokens)[0]
    text = spell(tokens)
    if match := re.search(
        r"(?<=.)[,;(:|]?(?:\\mid )?(?:for|where|with)?(?:any|all|some)?"
        r"([a-zA-Z])\\in (?:\\mathbb Z|Z)\)?(?:\\})?\Z",
        text,
    ):
        letter = match.group(1)
        index = len(texts) - 1 - texts[::-1].index("in") - 1
        content = tokens[1:index] if left == "\\{" else tokens[:index]
        while content and content[-1].text in (
            ",",
            ";",
            "(",
            ":",
            "|",
            "mid",
            "for",
            "where",
            "with",
        ):
            content = content[:-1]
    else:
        where = next((i for i, one in enumerate(texts) if one in _PARAMETER_WORDS and i), 0)
        rest = tokens[where:]
        letters = [
            token.text
            for index, token in enumerate(rest)
            if token.kind == "letters" and "is" not in (token.text, rest[index - 1].text)
        ]
        if (
            where
            and _PARAMETER_KINDS & set(texts[where:])
            and len(letters) == 1
            and all(token.kind in ("word", "letters") for token in rest)
        ):
            letter = letters[0] if {"integer", "integers"} & set(texts[where:]) else "k"
            content = tokens[:where]
    if content is None or not content:
        return tokens
    if letter != "k" and not any("k" in token.text for token in content if token.kind == "letters"):
        content = tuple(
            token._replace(text=token.text.replace(letter, "k"))
            if token.kind == "letters"
            else token
            for token in content
        )
    return content


def read_names(node: Node) -> dict[str, Node]:
    """Return the values of a list of equations ``x=1,y=2`` by name; {} for any other answer."""
    if not (isinstance(node, Group) and node.kind == "list"):
        return {}
    values = {
        item.sides[0].text: item.value
        for item in node.items
        if isinstance(item, Equation) and len(item.sides) == 2 and is_simple_name(item.sides[0])
    }
    return values if len(values) == len(node.items) else {}


def is_simple_name(side: Side) -> bool:
    """Return whether a side is one name: ``x``, ``x_1``, ``f(x)``, ``AB``, a word."""
    if side.tree is None:
        return re.fullmatch(r"[^\W\d_]+|\([a-zA-Z](?:,[a-zA-Z])+\)", side.text) is not None
    if side.tree[0] == "call":
        return side.tree[1] not in KNOWN_CALLS or side.text in ("\\max", "\\min")
    return (
        side.tree[0] == "symbol"
        and not is_constant(side.tree)
        or (re.fullmatch(r"[A-Z]{2,4}'*", side.text) is not None)
    )


def is_constant(tree: Expression | None) -> bool:
    return tree in (("symbol", "e"), ("symbol", "i"), ("symbol", "\\pi"), ("symbol", "\\infty"))


def is_name(side: Side) -> bool:
    """Return whether a side stands for a quantity: ``|PQ|``, ``P(X=2)``, not ``x+y``."""
    tree = side.tree
    if tree is None:
        return not re.search(r"(?<![\\a-zA-Z(=|])[a-z]\s*[+\-^]|[+\-^]\s*[a-z]", side.text)
    if tree[0] in ("symbol", "call") and tree[1] not in FUNCTIONS | {"abs"}:
        return not is_constant(tree)
    if tree[0] == "divide" and all(part[0] in ("symbol", "call") for part in tree[1:]):
        return True
    return all(not re.match(r"[a-z](?![a-z])", name) for name in _free_names(tree))


def _free_names(tree: Expression) -> Iterator[str]:
    """Yield the names in an expression that are not arguments of unknown functions."""
    if tree[0] == "symbol" and not is_constant(tree):
        yield tree[1]
    elif tree[0] != "call" or tree[1] in KNOWN_CALLS:
        for part in tree[1:]:
            if isinstance(part, tuple):
                yield from _free_names(part)


def _solution(node: Node) -> Node:
    """Turn the solution ``x=1,y=2`` into the pair of its values, in the order of the names."""
    values = read_names(node)
    return (
        Group("tuple", tuple(values[name] for name in sorted(values)), "(", ")") if values else node
    )


def _flatten(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Put the members of lists, also of assigned ones (``x=\\pm3``), in the place of the lists."""
    flat: list[Node] = []
    for node in nodes:
        inner = node.value if isinstance(node, Equation) and is_simple_name(node.sides[0]) else node
        flat += inner.items if isinstance(inner, Group) and inner.kind == "list" else [node]
    return tuple(flat)


def _intersection(items: Sequence[Node]) -> Node | None:
    """Join ``x>1,x\\le3`` to an interval; of ``x\\in\\mathbb{R},x\\ne2`` return the second part."""
    parts = [item for item in items if item != REALS]
    if len(parts) == 1 and len(items) > 1 and isinstance(parts[0], Relation | Group):
        return parts[0]
    bounds = [part for part in parts if isinstance(part, Group) and part.kind == "interval"]
    if len(bounds) != len(parts) or len(bounds) != 2 or bounds[0].name != bounds[1].name:
        return None
    low, high = bounds if bounds[0].items[1] == INFINITY else bounds[::-1]
    if low.items[1] != INFINITY or high.items[0] != _MINUS_INFINITY:
        return None
    return Group("interval", (low.items[0], high.items[1]), low.left, high.right, name=low.name)


def _join_compound(items: Sequence[Node]) -> Leaf | None:
    """Add ``2 h`` and ``30 min``: values of one kind in units that get smaller."""
    leaves = [item for item in items if isinstance(item, Leaf) and item.unit and item.number]
    units = [leaf.unit for leaf in leaves if leaf.unit]
    if (
        len(leaves) != len(items)
        or len({unit.powers for unit in units}) != 1
        or any(unit.words or not unit.powers for unit in units)
    ):
        return None
    factors = [unit.factor for unit in units]
    if any(left <= right for left, right in zip(factors, factors[1:], strict=False)):
        return None
    total = sum(
        leaf.number.value * leaf.unit.factor for leaf in leaves if leaf.number and leaf.unit
    )
    number = PlainNumber(total / factors[0])
    text = " ".join(leaf.text for leaf in leaves)
    return Leaf(text, ("number", number.value), number, unit=replace(units[0], bare=False))


def _read_one(tokens: Tokens, depth: int) -> Node:
    tokens = _strip_label(_strip(tokens))
    if not tokens:
        return Leaf("")
    text = spell(tokens)
    words = (
        re.sub(r"[^\w]", "", text.lower())
        if all(token.kind == "word" or token.text in ("a", "-") for token in tokens)
        else ""
    )
    if words in _REAL_TEXTS or text == "\\mathbb R":
        return REALS
    if words in _EMPTY_TEXTS or text in ("\\emptyset", "\\{\\}"):
        return EMPTY
    if match := re.match(
        r"all?(?:the)?real(?:s|numbers?)(?:except|but|otherthan)", text.replace(" ", "")
    ):
        rest = [token for token in tokens if token.kind != "word"]
        if rest and match:
            prefix = () if any(one.text == "=" for one in rest) else _NOT_EQUAL_X
            rest = [Token("command", "ne") if one.text == "=" else one for one in rest]
            return read_answer((*prefix, *rest), depth)
    if (power := re.fullmatch(r"\\mathbb R(?:\^|_)([+-]|\{[+-]\})", text)) is not None:
        zero = Leaf("0", ("number", Fraction(0)), PlainNumber(Fraction(0)))
        ends = (zero, INFINITY) if "+" in power.group(1) else (_MINUS_INFINITY, zero)
        return Group("tuple", ends, "(", ")")
    for operator in ("cup", "cap", "setminus", "oplus"):
        parts, between = split(tokens, lambda token: _is(token, operator))
        if not between and operator == "cup" and tokens[-1].text in (")", "]"):
            parts, between = split(
                tokens, lambda token: token.text == "U" and token.kind == "letters"
            )
        if between and all(parts):
            items = tuple(read_answer(part, depth) for part in parts)
            if operator == "cap" and (common := _intersection(items)):
                return common
            kind = {"cup": "union"}.get(operator, operator)
            return Group(kind, items)
    if (congruence := _read_congruence(tokens, depth)) is not None:
        return congruence
    parts, between = split(
        tokens, lambda token: token.text in _RELATIONS and (token.kind in ("sign", "command"))
    )
    if between:
        return _read_relation(tokens, parts, [token.text for token in between], depth)
    if (labeled := _read_labeled(tokens, depth)) is not None:
        return labeled
    for reader in (
        _read_cycles,
        _read_matrix,
        _read_scaled,
        _read_components,
        _read_clock,
        _read_brackets,
    ):
        if (node := reader(tokens, depth)) is not None:
            return node
    signs = [index for index, token in enumerate(tokens) if _is(token, "pm", "mp")]
    if 0 < sum(tokens[index].text == "pm" for index in signs) and len(signs) <= 2:
        return _read_signs(tokens, signs, depth)
    parts, between = split(_replace_ratio_words(tokens), lambda token: _is(token, ":"))
    if between and all(parts):
        leaves = [_read_leaf(part) for part in parts]
        if all(leaf.tree is not None and not leaf.unit for leaf in leaves):
            return _read_ratio(leaves)
    return _read_leaf(tokens)


_NUMBER_WORDS = {
    name: Fraction(value)
    for value, name in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
        " fifteen sixteen seventeen eighteen nineteen".split()
    )
} | {
    name: Fraction(10 * value)
    for value, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_PARAMETER_WORDS = frozenset("for where with any".split())
_PARAMETER_KINDS = frozenset("integer integers constant all every each any real".split())
_MATHEMATICS = re.compile(r"\\(?!emptyset|mathbb|triangle|begin)|[{}^_=+|<>]")
_NOT_EQUAL_X = (Token("letters", "x"), Token("command", "ne"))
_ROUND = re.compile(r"[a-zA-Z](?:_\w+|')*")


def _strip_label(tokens: Tokens) -> Tokens:
    """Drop words before an answer that only announce it: "so the answer is about"."""
    index = 0
    while (
        index < len(tokens)
        and tokens[index].kind in ("word", "letters", "sign")
        and (
            tokens[index].text.lower() in _LABEL_WORDS
            or (index and tokens[index].text in (",", ":"))
        )
        and (tokens[index].roman or tokens[index].kind == "sign")
    ):
        index += 1
    rest = tokens[index:]
    if [token.text.lower() for token in rest[:2]] in (["all", "real"], ["all", "reals"]):
        after = next((i for i, token in enumerate(rest) if token.kind != "word"), 0)
        if after and after + 1 < len(rest) and rest[after + 1].text in _RELATIONS - {"=", "in"}:
            rest = rest[after:]
    return rest if rest and any(token.kind != "word" for token in rest) else tokens


def _read_congruence(tokens: Tokens, depth: int) -> Group | None:
    index = next(
        (i for i, token in enumerate(tokens) if token.text in ("pmod", "mod", "modulo") and i), 0
    )
    if not index:
        return None
    modulus = tuple(token for token in tokens[index + 1 :] if token.text not in "(){}")
    residue = tokens[: index - 1] if tokens[index - 1].text == "(" else tokens[:index]
    sides, between = split(residue, lambda token: _is(token, "equiv", "="))
    residue = sides[-1]
    if len(modulus) != 1 or not residue or not re.fullmatch(r"\d+|[a-z]", modulus[0].text):
        return None
    leaf = _read_leaf(residue)
    below = modulus[0].text
    if leaf.number and below.isdigit() and int(below) and leaf.number.value.denominator == 1:
        value = leaf.number.value % int(below)
        leaf = Leaf(str(value), ("number", value), PlainNumber(value))
    return Group("congruence", (leaf, _read_leaf(modulus)))


def _read_relation(tokens: Tokens, sides: list[Tokens], operators: list[str], depth: int) -> Node:
    if "approx" in operators:
        cut = operators.index("approx")
        if cut:
            parts, _ = split(tokens, lambda token: _is(token, "approx"))
            return _read_one(parts[0], depth)
        name = not sides[0] or is_simple_name(_side(sides[0]))
        return read_answer(sides[1] if name else sides[0], depth)
    if operators == ["="] and not sides[0]:
        return read_answer(sides[1], depth)
    if (
        operators == ["="]
        and len(sides[0]) == 1
        and sides[0][0].kind == "number"
        and (is_simple_name(_side(sides[1])))
    ):
        sides = sides[::-1]
    first = _side(sides[0])
    if operators == ["in"] and (not sides[0] or is_simple_name(first)):
        return read_answer(sides[1], depth)
    if operators == ["ne"] and sum(_is(token, "pm") for token in sides[1]) == 1:
        variants = [
            tuple(
                token._replace(kind="sign", text=sign) if _is(token, "pm") else token
                for token in tokens
            )
            for sign in "+-"
        ]
        return Group("list", tuple(_read_one(variant, depth) for variant in variants))
    if set(operators) == {"="} and all(sides):
        value = read_answer(sides[-1], depth)
        return Equation(tuple(map(_side, sides)), value)
    relation = Relation(tuple(map(_side, sides)), tuple(operators))
    if set(operators) <= _ORDER.keys() and (interval := _read_interval(sides, relation, depth)):
        return interval
    if "in" in operators or "notin" in operators or not all(sides) and operators != ["="]:
        if not (len(sides) == 2 and not sides[0] and operators[0] in (*_ORDER, "ne")):
            return Leaf(spell(tokens))
        named = (Token("letters", "x"), *tokens)
        return _read_one(named, depth)
    return relation


def _side(tokens: Tokens) -> Side:
    try:
        tree = read_expression(tokens)
    except Unreadable:
        tree = None
        words = [token.text.casefold() for token in tokens if token.kind == "word"]
        if len(words) == len(tokens):
            return Side(" ".join(word for word in words if word not in ("the", "a")), None)
    return Side(spell(tokens), tree)


def _read_interval(sides: list[Tokens], relation: Relation, depth: int) -> Group | None:
    orders = [_ORDER[operator] for operator in relation.operators]
    names = [
        index
        for index, side in enumerate(relation.sides)
        if is_simple_name(side) or (side.tree and side.tree[0] == "call" and is_name(side))
    ]
    ways = {way for way, _ in orders}
    closed = [closed for _, closed in orders]
    if len(ways) != 1 or not all(sides):
        return None
    if ways == {">"}:
        sides = sides[::-1]
        closed = closed[::-1]
        names = [len(sides) - 1 - index for index in names]
    bounds: list[Node | None] = [
        None if index in names else read_answer(side, depth) for index, side in enumerate(sides)
    ]
    places = [index for index, bound in enumerate(bounds) if bound is None]
    if len(sides) == 2 and places == [0]:
        bounds = [_MINUS_INFINITY, *bounds]
        closed = [False, *closed]
        places = [1]
    elif len(sides) == 2:
        bounds = [*bounds, INFINITY]
        closed = [*closed, False]
    if len(bounds) != 3 or places != [1]:
        return None
    name = next(
        side.text
        for index, side in enumerate(relation.sides)
        if index in (names if ways == {"<"} else [len(sides) - 1 - place for place in names])
    )
    low, _, high = bounds
    if not (isinstance(low, Leaf) and isinstance(high, Leaf)):
        return None
    if any(leaf.tree is None or ("symbol", name) in walk(leaf.tree) for leaf in (low, high)):
        return None
    brackets = "[" if closed[0] else "(", "]" if closed[1] else ")"
    return Group("interval", (low, high), *brackets, name=name, relation=relation)


def _read_labeled(tokens: Tokens, depth: int) -> Node | None:
    """Read a value after words that name it: "area 12", "Alice: 3", ``\\text{center }(1,2)``."""
    index = 0
    while index < len(tokens) and (
        tokens[index].kind == "word"
        or tokens[index].kind == "letters"
        and (
            (tokens[index].roman and index)
            or (len(tokens[index].text) > 2 and _is((*tokens, tokens[0])[index + 1], ":"))
        )
    ):
        index += 1
    words = [token.text.lower() for token in tokens[:index]]
    if not 0 < index < len(tokens) or len(words) > 4 or OPERATIVE & set(words):
        return None
    rest = tokens[index:]
    if _is(rest[0], ":"):
        rest = rest[1:]
    elif rest[0].text in ("(", "["):
        if not isinstance(_read_brackets(rest, depth), Group):
            return None
    elif rest[0].kind != "number" and rest[0].text not in ("frac", "sqrt", "-", *_MONEY):
        return None
    if not rest or words[0] in ("rs", "usd", "eur", "gbp", "inr"):
        return None
    name = " ".join(word for word in words if word not in ("the", "is", "a"))
    return Equation((Side(name, None), _side(rest)), read_answer(rest, depth))


def _read_matrix(tokens: Tokens, depth: int) -> Node | None:
    begin = next((index for index, token in enumerate(tokens) if _is(token, "begin")), None)
    if begin is None:
        return None
    factor = tokens[:begin]
    rest = tokens[begin:]
    if factor and rest and factor[-1].text in ("(", "[") and rest[-1].text in (")", "]"):
        factor, rest = factor[:-1], rest[:-1]
    factor = factor[:-1] if factor and _is(factor[-1], "cdot") else factor
    if len(factor) == 1 and _is(factor[0], "-"):
        factor = (*factor, Token("number", "1"))
    environment = _environment(rest)
    if environment is None:
        return None
    name, content = environment
    rows = [
        split(row, lambda token: _is(token, "&"))[0]
        for row in split(content, lambda token: token.text == "\\\\")[0]
        if row
    ]
    if (
        name not in _MATRICES | {"vmatrix"}
        or not rows
        or len({len(row) for row in rows}) != 1
        or (not all(all(row) for row in rows) or sum(map(len, rows)) > 36)
    ):
        return Leaf(spell(tokens))
    try:
        scale = read_expression(factor) if factor else None
    except Unreadable:
        return Leaf(spell(tokens))
    cells = [read_answer(cell, depth) for row in rows for cell in row]
    if name == "vmatrix":
        return _read_determinant(tokens, rows)
    if scale is not None:
        cells = [_scale(scale, cell) for cell in cells]
    return Group("matrix", tuple(cells), columns=len(rows[0])) if cells[1:] else cells[0]


def _read_determinant(tokens: Tokens, rows: list[list[Tokens]]) -> Leaf:
    try:
        trees = [[read_expression(cell) for cell in row] for row in rows]
    except Unreadable:
        return Leaf(spell(tokens))
    if len(trees) != len(trees[0]) or len(trees) > 4:
        return Leaf(spell(tokens))
    return _value_leaf(spell(tokens), _expand_determinant(trees))


def _expand_determinant(rows: list[list[Expression]]) -> Expression:
    if len(rows) == 1:
        return rows[0][0]
    total: Expression = ("number", Fraction(0))
    for column, cell in enumerate(rows[0]):
        minor = _expand_determinant([row[:column] + row[column + 1 :] for row in rows[1:]])
        total = ("subtract" if column % 2 else "add", total, ("multiply", cell, minor))
    return total


def _scale(factor: Expression, node: Node) -> Node:
    if isinstance(node, Leaf) and node.tree is not None:
        return _value_leaf(f"{node.text}*{factor}", ("multiply", factor, node.tree))
    return Leaf(f"scaled {factor} {node}")


def _read_cycles(tokens: Tokens, depth: int) -> Leaf | None:
    """Read a permutation ``(1\\;4)(2\\;3)``: each cycle begins with its least member."""
    cycles: list[list[str]] = []
    last = ""
    for token in tokens:
        if _is(token, "(") and last in ("", ")"):
            cycles.append([])
        elif token.kind == "number" and cycles and (last == "(" or token.space):
            cycles[-1].append(token.text)
        elif not (_is(token, ")") and cycles):
            return None
        last = token.text
    members = [member for cycle in cycles for member in cycle]
    if last != ")" or len(members) < 2 or len(members) == len(cycles):
        return None
    turned = [cycle[(first := cycle.index(min(cycle))) :] + cycle[:first] for cycle in cycles]
    disjoint = len(set(members)) == len(members)
    texts = [" ".join(cycle) for cycle in turned]
    return Leaf("cycles " + "; ".join(sorted(texts) if disjoint else texts))


def _read_scaled(tokens: Tokens, depth: int) -> Node | None:
    """Read ``\\frac13(1,2,2)``, ``(1,2)+t(3,4)``, ``(3,4)^T``, and a point with its name."""
    if tokens[-1].text not in (")", "]", "T", "top", "}") or len(tokens) < 5:
        return None
    depths = _depths(tokens)
    if tokens[-1].text in ("T", "top", "}"):
        cut = len(tokens) - (4 if tokens[-1].text == "}" else 2)
        if cut > 0 and _is(tokens[cut], "^") and spell(tokens[cut:]) in ("^T", "^\\top"):
            inner = _read_brackets(tokens[:cut], depth)
            if isinstance(inner, Group) and inner.kind == "tuple":
                return replace(inner, left="(", right=")")
            return None
    start = max((index for index, level in enumerate(depths[:-1]) if level == 0), default=-1) + 1
    if tokens[start].text not in ("(", "[") or start == 0:
        return None
    inner = _read_brackets(tokens[start:], depth)
    if not (isinstance(inner, Group) and inner.kind == "tuple"):
        return None
    head = tokens[:start]
    if _is(head[-1], "cdot"):
        head = head[:-1]
    if _ROUND.fullmatch(spell(head)) and head[0].text[0].isupper() and len(head) < 5:
        return replace(inner, name=spell(head))
    plus = next(
        (i for i in range(start - 1, 0, -1) if _is(tokens[i], "+", "-") and depths[i] == 0), 0
    )
    if plus and tokens[plus - 1].text in (")", "]"):
        first = _read_brackets(tokens[:plus], depth)
        second = _read_scaled((*tokens[plus + 1 :],), depth) or _read_brackets(
            tokens[plus + 1 :], depth
        )
        if (
            isinstance(first, Group)
            and isinstance(second, Group)
            and (
                len(first.items) == len(second.items)
                and all(isinstance(item, Leaf) and item.tree for item in first.items + second.items)
            )
        ):
            operation = "add" if tokens[plus].text == "+" else "subtract"
            return replace(
                first,
                items=tuple(
                    _value_leaf(
                        f"{one.text}{operation}{other.text}", (operation, one.tree, other.tree)
                    )
                    for one, other in zip(first.items, second.items, strict=True)
                    if isinstance(one, Leaf) and isinstance(other, Leaf)
                ),
            )
        return None
    minus = head == (Token("sign", "-", head[0].space),) or spell(head) == "-"
    try:
        factor: Expression = ("number", Fraction(-1)) if minus else read_expression(head)
    except Unreadable:
        return None
    if (
        factor[0] == "symbol"
        and factor[1][0] in "fghFGHP"
        or any(not isinstance(item, Leaf) or item.tree is None for item in inner.items)
    ):
        return None
    return replace(inner, items=tuple(_scale(factor, item) for item in inner.items))


def _read_components(tokens: Tokens, depth: int) -> Group | None:
    """Read ``2\\mathbf{i}-3\\mathbf{j}``: decorated unit vectors."""
    text = spell(tokens)
    if not re.search(r"\\(?:vec|hat|widehat) \{?[ijk]|(?<![a-z])[ijk]\b", text):
        return None
    sizes: dict[str, Tokens] = {}
    current: list[Token] = []
    index = 0
    decorated = False
    while index < len(tokens):
        token = tokens[index]
        name = ""
        if _is(token, "vec", "hat", "widehat", "overrightarrow"):
            width = 4 if index + 1 < len(tokens) and tokens[index + 1].text == "{" else 2
            inside = [one.text for one in tokens[index : index + width]][-2 if width == 4 else -1]
            name = inside if inside in ("i", "j", "k") else ""
            index += width
            decorated = True
        elif token.kind == "letters" and token.roman and token.text in ("i", "j", "k"):
            name = token.text
            index += 1
            decorated = True
        else:
            if _is(token, "+", "-") and current and not sizes:
                return None
            current.append(token)
            index += 1
            continue
        if not name or name in sizes:
            return None
        sizes[name] = tuple(current)
        current = []
    if current or not decorated or not (len(sizes) > 1 or "j" in sizes or "k" in sizes):
        return None
    items = []
    for name in "ijk" if "k" in sizes else "ij":
        size = sizes.get(name, (Token("number", "0"),))
        size = size[1:] if size and _is(size[0], "+") else size
        size = size[:-1] if size and _is(size[-1], "cdot") else size
        if spell(size) in ("", "-"):
            size = (*size, Token("number", "1"))
        items.append(read_answer(size, depth))
    return Group("tuple", tuple(items), "(", ")")


def _read_clock(tokens: Tokens, depth: int) -> Leaf | None:
    half = ""
    body = tokens
    letters = [token.text.lower() for token in tokens]
    if letters[-1:] == ["am"] or letters[-1:] == ["pm"]:
        half, body = letters[-1], tokens[:-1]
    elif len(letters) > 3 and letters[-1] in ("m", ".") and "m" in letters:
        where = len(letters) - 1 - letters[::-1].index("m")
        if where > 1 and letters[where - 2 : where] in (["a", "."], ["p", "."]):
            half, body = letters[where - 2] + "m", tokens[: where - 2]
    text = "".join(token.text for token in body)
    clock = _CLOCK.fullmatch(text)
    if not clock and not (half and re.fullmatch(r"\d{1,2}", text)):
        return None
    hour, _, minutes = text.partition(":")
    first = (minutes or "0").partition(":")[0]
    if clock and not int(first):
        return Leaf(f"{int(hour)}:{minutes}", unit=Unit(words=(half,)) if half else None)
    number = PlainNumber(Fraction(int(hour), int(first)) if clock else Fraction(int(hour)))
    text = f"{int(hour)}:{minutes or '00'}"
    if half:
        tree = None if clock else ("number", number.value)
        full = f"{int(hour) % 12 + 12 * (half == 'pm')}:{minutes or '00'}"
        return Leaf(
            text,
            tree,
            None if clock else number,
            unit=Unit(words=(half,)),
            reading=Leaf(full, unit=Unit(words=("24 h",))),
        )
    return Leaf(text, ("number", number.value), number)


def _read_brackets(tokens: Tokens, depth: int) -> Node | None:
    left, inside, right = _unwrap(tokens)
    if left + right not in ("()", "(]", "[)", "[]", "\\{\\}"):
        return None
    kind = "set" if left == "\\{" else "tuple"
    if kind == "set" and (built := _read_set_builder(inside, depth)) is not None:
        return built
    parts, _ = split(inside, lambda token: token.kind == "sign" and token.text in (",", ";"))
    if len(parts) > 1:
        items = [read_answer(part, depth) for part in parts]
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
    if (
        left == "["
        and len(inside) > 1
        and all(token.kind == "number" and (token.space or token is inside[0]) for token in inside)
    ):
        return Group("tuple", tuple(_read_leaf((token,)) for token in inside), left, right)
    inner = read_answer(inside, depth)
    if kind == "set":
        members = inner.items if isinstance(inner, Group) and inner.kind == "list" else (inner,)
        return Group(kind, tuple(members), left, right)
    if isinstance(inner, Group | Equation | Relation):
        return inner
    # Brackets around one value say nothing, but those of (x+1)(x-1) are read with it.
    return inner if inner.tree is not None or left == "(" else None


def _read_set_builder(inside: Tokens, depth: int) -> Node | None:
    """Read ``\\{x\\in\\mathbb{R}:x>2\\}`` as its only condition, ``\\{x:x=3\\}`` as its value."""
    parts, between = split(inside, lambda token: _is(token, ":", "|", "mid"))
    if not between or not all(parts) or len(parts[0]) > 6:
        return None
    name = parts[0]
    position = next((i for i, token in enumerate(name) if token.text == "in"), len(name))
    if spell(name[position:]) not in ("", "\\in \\mathbb R", "\\in R"):
        return None
    if not is_simple_name(_side(name[:position])):
        return None
    condition = read_answer(inside[len(name) + 1 :], depth)
    if isinstance(condition, Equation):
        return condition.value
    return condition if isinstance(condition, Group | Relation) else None


def _read_signs(tokens: Tokens, signs: list[int], depth: int) -> Node:
    """Read both signs of ``\\pm``, and with it those of ``\\mp``."""
    together = any(tokens[index].text == "mp" for index in signs)
    variants = []
    for upper in "+-":
        changed = list(tokens)
        for index in signs if together else signs[:1]:
            lower = {"+": "-", "-": "+"}[upper]
            sign = upper if tokens[index].text == "pm" else lower
            changed[index] = Token("sign", sign)
        if changed[0].text == "+":
            changed = changed[1:]
        variants.append(read_answer(tuple(changed), depth + 1))
    return Group("list", _flatten(variants), name="\\pm")


def _replace_ratio_words(tokens: Tokens) -> Tokens:
    return tuple(
        Token("sign", ":")
        if token.text == "to"
        and 0 < index < len(tokens) - 1
        and tokens[index - 1].kind == tokens[index + 1].kind == "number"
        else token
        for index, token in enumerate(tokens)
    )


def _read_ratio(terms: list[Leaf]) -> Node:
    """Divide by the last term: proportional ratios become equal, those of two terms fractions."""
    last = terms[-1]
    if last.tree is None or (last.number and last.number.value == 0):
        return Group("ratio", tuple(terms))
    quotients = tuple(
        _value_leaf(f"{term.text}:{last.text}", ("divide", term.tree, last.tree)) for term in terms
    )
    return quotients[0] if len(quotients) == 2 else Group("ratio", quotients)


def _value_leaf(text: str, tree: Expression) -> Leaf:
    value = exact_value(tree)
    return Leaf(text, tree, PlainNumber(value) if value is not None else None)


def _read_number_words(tokens: Tokens) -> Fraction | None:
    """Read an English number: "forty-two", "minus six thousand", "two and a half", "three quarters"."""
    words = [word for token in tokens for word in token.text.lower().split("-")]
    negative = words[:1] in (["minus"], ["negative"])
    total = group = Fraction(0)
    last = ""
    for word in words[negative:]:
        if word in _NUMBER_WORDS:
            group += _NUMBER_WORDS[word]
        elif word in SCALES and len(word) > 3 and last:
            group = (group or Fraction(1)) * SCALES[word]
            if SCALES[word] > 100:
                total, group = total + group, Fraction(0)
        elif word in PARTS and last:
            group = group / PARTS[word]
        elif word not in ("and", "a") or not last:
            return None
        last = word
    return (total + group) * (-1 if negative else 1) if last else None


def _read_leaf(tokens: Tokens) -> Leaf:
    """Read one value with its unit; a text if it is none."""
    text = spell(tokens)
    if (
        all(token.kind == "word" for token in tokens)
        and (value := _read_number_words(tokens)) is not None
    ):
        return _value_leaf(text, ("number", value))
    money = ""
    body = tokens
    sign = body[:1] if body and _is(body[0], "-") else ()
    currency = body[len(sign)] if len(body) > len(sign) + 1 else None
    if currency is not None and currency.text in CURRENCIES.values() and currency.kind == "command":
        money, body = currency.text, sign + body[len(sign) + 1 :]
    elif (
        currency is not None
        and currency.text.lower() in ("rs", "usd", "eur", "gbp", "inr")
        and (body[len(sign) + 1].kind == "number" or body[len(sign) + 1].text == ".")
    ):
        money = {"rs": "INR"}.get(currency.text.lower(), currency.text.upper())
        body = tuple(token for token in body if token is not currency and token.text != ".")
    body = _drop_remark(body)
    leaf = _read_quantity(body) or _read_compound(body) or _read_value(body)
    if leaf and not leaf.unit and body[0].kind == "number":
        quantity = _read_quantity(body, glued=True)
        if quantity and quantity.unit and quantity.unit.bare:
            leaf = replace(leaf, reading=replace(quantity, text=text, reading=None))
    if leaf is None or leaf.tree is None:
        return leaf or Leaf(_spell_text(tokens))
    if money:
        unit = leaf.unit or Unit()
        leaf = replace(leaf, unit=replace(unit, powers=unit.powers or ((money, 1),)), reading=None)
    return replace(leaf, text=text, code=leaf.code and not money)


def _spell_text(tokens: Tokens) -> str:
    text = re.sub(r"(?<=\d)\^(?=(?:st|nd|rd|th)\Z)", "", spell(tokens))
    # Chemical formulas are written with and without indices.
    return text.replace("_", "") if re.fullmatch(r"[A-Za-z][A-Za-z0-9_^+\-{}() ]+", text) else text


def _drop_remark(tokens: Tokens) -> Tokens:
    """Drop words in brackets after a value: ``12 (units)``, ``3 (the only solution)``."""
    if len(tokens) > 3 and tokens[-1].text == ")":
        start = max((index for index, token in enumerate(tokens) if token.text == "("), default=0)
        inside = tokens[start + 1 : -1]
        if (
            start
            and inside
            and all(token.kind == "word" for token in inside)
            and not ((OPERATIVE - {"only"}) & {token.text.lower() for token in inside})
        ):
            return tokens[:start]
    return tokens


def _read_value(tokens: Tokens) -> Leaf | None:
    try:
        tree = read_expression(tokens)
    except Unreadable:
        return None
    value = exact_value(tree)
    places = 0
    if len(tokens) - (tokens[0].text in "+-") == 1 and "." in tokens[-1].text:
        digits = tokens[-1].text
        if len(digits.replace(".", "").lstrip("0")) >= 2:
            places = len(digits.partition(".")[2])
    number = PlainNumber(value, places) if value is not None else None
    return Leaf(spell(tokens), tree, number, code=_is_code(tokens))


def _is_code(tokens: Tokens) -> bool:
    """Return whether letters and digits stand together as a name does, not as a product."""
    text = "".join(token.text for token in tokens)
    if any(token.kind not in ("letters", "number") for token in tokens) or not re.search(
        "[a-zA-Z]", text
    ):
        return False
    if len(tokens) == 1:
        return (
            len(text) > 2 or text.lower() in _TWO_LETTER_WORDS or (len(text) > 1 and text.isupper())
        )
    return re.search(r"[a-zA-Z]\d|\d[A-Z]|\A0x", text) is not None and not re.fullmatch(
        r"[\d.]+[eE]\d+", text
    )


def _read_quantity(tokens: Tokens, glued: bool = False) -> Leaf | None:
    """Read a value, what scales it, and its unit: the longest unit that leaves a value."""
    for index in range(1, len(tokens)):
        token = tokens[index]
        starts = token.kind in ("word", "letters") or token.text in _SUFFIXES
        if not starts or (token.text in "'\"" and not (index == 1 and tokens[0].kind == "number")):
            continue
        if token.text in ("^", "circ") and any(one.text in FUNCTIONS for one in tokens[:index]):
            continue
        value = _read_value(tokens[:index])
        if value is not None and (
            leaf := _apply_suffix(value, tokens[:index], tokens[index:], glued)
        ):
            return leaf
    return None


def _apply_suffix(value: Leaf, tokens: Tokens, suffix: Tokens, glued: bool) -> Leaf | None:
    tree = value.tree
    assert tree is not None
    percent = False
    changed = False
    while suffix:
        word = suffix[0].text.lower()
        texts = [token.text.lower() for token in suffix[:2]]
        if word in ("%", "percent", "percentage", "pct") or texts == ["per", "cent"]:
            percent = True
            suffix = suffix[2 if texts == ["per", "cent"] else 1 :]
            suffix = (
                suffix[1:] if suffix and suffix[0].text.lower() in ("point", "points") else suffix
            )
            continue
        scale: Fraction | None = None
        if word == "permil" or texts == ["per", "mille"]:
            scale = Fraction(1, 1000)
        elif suffix[0].kind == "command":
            break
        elif word in SCALES and (suffix[0].roman or len(word) > 1):
            scale = Fraction(SCALES[word])
        elif word in PARTS and len(suffix) == 1:
            scale = Fraction(1, PARTS[word])
        elif word in ("squared", "cubed", "factorial") and len(suffix) == 1:
            exponent = Fraction(2 if word == "squared" else 3)
            tree = (
                ("call", "factorial", tree)
                if word == "factorial"
                else ("power", tree, ("number", exponent))
            )
            suffix = ()
            changed = True
            break
        elif texts in (["basis", "point"], ["basis", "points"]):
            suffix = (suffix[0]._replace(text="per"), *suffix[1:])
            scale = Fraction(1, 10_000)
            word = "per"
        elif (
            texts == ["out", "of"]
            and len(suffix) > 2
            or (texts[0] == "in" and len(suffix) == 2 and suffix[1].kind == "number")
        ):
            below = _read_value(suffix[2 if len(suffix) > 2 else 1 :])
            return (
                _value_leaf(spell(tokens), ("divide", tree, below.tree))
                if (below and below.tree)
                else None
            )
        elif (
            word in ("r", "remainder")
            and len(suffix) == 2
            and suffix[1].kind == "number"
            and (suffix[0].roman or suffix[0].kind == "word")
        ):
            return Leaf(f"{value.text} remainder {suffix[1].text}")
        if scale is None:
            break
        tree = ("multiply", tree, ("number", scale))
        suffix = suffix[2 if word == "per" else 1 :]
        changed = True
    unit = read_unit(suffix, glued) if suffix else Unit()
    if unit is None or (
        unit.words and len(tokens) > 1 and any(_is(token, "cdot") for token in tokens)
    ):
        return None
    if (
        unit.bare
        and not changed
        and any(token.kind != "number" and token.text not in "+-." for token in tokens)
        and any(len(token.text) == 1 and token.kind == "letters" for token in suffix)
    ):
        return None
    if suffix and unit == Unit():
        return None
    leaf = _value_leaf(value.text, tree) if changed else value
    product = _read_value((*tokens, *suffix)) if unit.bare else None
    has_unit = bool(unit.powers or unit.words)
    return replace(
        leaf, percent=percent, unit=unit if has_unit else None, code=False, reading=product
    )


def _read_compound(tokens: Tokens) -> Leaf | None:
    """Read ``5 ft 9 in``, ``2 h 30 min``, ``30^\\circ 15'``."""
    starts = [
        index
        for index, token in enumerate(tokens)
        if token.kind == "number" and (index == 0 or tokens[index - 1].text not in ("^", "{", "/"))
    ]
    if not 1 < len(starts) < 5 or starts[0] != 0:
        return None
    ends = [*starts[1:], len(tokens)]
    degrees = any(token.text == "circ" for token in tokens)
    leaves = []
    for start, end in zip(starts, ends, strict=True):
        part = tokens[start:end]
        if degrees and start and part[-1].text == "'":
            second = len(part) > 2
            unit = "arcsecond" if second else "arcminute"
            part = (part[0], Token("word", unit, True, True))
        elif part[-1].text == "'" and len(part) == 3:
            part = (part[0], Token("word", "inch", True, True))
        leaf = _read_quantity(part)
        if leaf is None:
            return None
        leaves.append(leaf)
    return _join_compound(leaves)


def find_unread(node: Node) -> str | None:
    """Return the first text with signs of mathematics in an answer, which nothing understands."""
    if isinstance(node, Leaf):
        return node.text if node.tree is None and _MATHEMATICS.search(node.text) else None
    if isinstance(node, Group):
        return next(filter(None, map(find_unread, node.items)), None)
    if isinstance(node, Equation):
        return find_unread(node.value)
    unread = (side.text for side in node.sides if side.tree is None)
    return next((text for text in unread if _MATHEMATICS.search(text)), None)
