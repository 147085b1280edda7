# SPDX-License-Identifier: Apache-2.0
"""Trees of answers: their nodes, the splitting of tokens outside of brackets, and names."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from prime_ext.verifiers.math.expressions import (
    KNOWN_CALLS,
    Expression,
    Unreadable,
    exact_value,
    read_expression,
)
from prime_ext.verifiers.math.notation import FUNCTIONS, Token, Tokens, spell
from prime_ext.verifiers.math.units import Unit

_OPEN = {"(": 1, "[": 1, "{": 1, "\\{": 1, ")": -1, "]": -1, "}": -1, "\\}": -1}
_OPEN |= {"begin": 1, "end": -1, "lfloor": 1, "rfloor": -1, "lceil": 1, "rceil": -1}


@dataclass(frozen=True)
class PlainNumber:
    """A rational number as it was written."""

    value: Fraction
    # digits after the point of a plain decimal with at least two significant digits
    places: int = 0

    @property
    def terminates(self) -> bool:
        """Return whether finitely many decimals suffice."""
        return pow(10, self.value.denominator.bit_length(), self.value.denominator) == 0

    def rounds_to(self, decimal: "PlainNumber") -> bool:
        """Return whether this number rounds to a decimal with places; half way does not count."""
        return decimal.places > 0 and abs(self.value - decimal.value) * 2 * 10**decimal.places < 1


@dataclass(frozen=True)
class Leaf:
    """A value, or a text that must be equal if it has no tree.

    ``reading`` is the other reading of letters that are a unit or variables; ``code``: letters and
    digits alone, which another such leaf must spell the same.
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

    list, tuple, interval, set, cup, cap, setminus, ratio, matrix, congruence with its modulus,
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
class Relation:
    """A chain of sides and operators that is neither an interval nor an equation."""

    sides: tuple[Leaf, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Equation:
    """``a = b = c``, or a labeled value ("area 12"): its sides, and what the last one is."""

    sides: tuple[Leaf, ...]
    value: "Node"


Node = Leaf | Group | Equation | Relation
EMPTY = Leaf("\\emptyset")
INFINITY = Leaf("\\infty", ("symbol", "\\infty"))
MINUS_INFINITY = Leaf("-\\infty", ("negate", ("symbol", "\\infty")))
REALS = Group("tuple", (MINUS_INFINITY, INFINITY), "(", ")")


def make_leaf(text: str, tree: Expression) -> Leaf:
    """Return a leaf with the exact value of its tree."""
    value = exact_value(tree)
    return Leaf(text, tree, PlainNumber(value) if value is not None else None)


def make_number(value: Fraction) -> Leaf:
    """Return a leaf of a rational number."""
    return make_leaf(str(value), ("number", value))


def is_sign(token: Token, *texts: str) -> bool:
    """Return whether a token is one of some signs, commands or words that join answers."""
    joins = token.kind in ("sign", "command") or token.text in ("and", "or")
    return joins and token.text in texts


def find_depths(tokens: Sequence[Token]) -> list[int]:
    """Return the depth of brackets after each token."""
    depth = 0
    depths = []
    for token in tokens:
        depth += _OPEN.get(token.text, 0) if token.kind in ("sign", "command") else 0
        depths.append(depth)
    return depths


def split(tokens: Tokens, *texts: str) -> tuple[list[Tokens], list[Token]]:
    """Split at signs and commands outside of all brackets; return the pieces and these signs."""
    pieces: list[Tokens] = []
    separators = []
    start = 0
    for index, depth in enumerate(find_depths(tokens)):
        if depth <= 0 and is_sign(tokens[index], *texts):
            pieces.append(tokens[start:index])
            separators.append(tokens[index])
            start = index + 1
    return [*pieces, tokens[start:]], separators


def split_at(tokens: Tokens, *texts: str) -> list[Tokens]:
    """Return the pieces of :func:`split`."""
    return split(tokens, *texts)[0]


def unwrap(tokens: Tokens) -> tuple[str, Tokens, str]:
    """Return left bracket, inside and right bracket; no brackets unless they enclose it all."""
    if len(tokens) > 1 and is_sign(tokens[0], "(", "[", "{", "\\{", "begin"):
        depths = find_depths(tokens)
        if is_sign(tokens[-1], ")", "]", "}", "\\}", "end") and depths[-1] == 0 < min(depths[:-1]):
            return tokens[0].text, tokens[1:-1], tokens[-1].text
    return "", tokens, ""


def strip(tokens: Tokens) -> Tokens:
    """Return tokens without braces around them and punctuation at their ends."""
    while tokens and unwrap(tokens)[0] == "{":
        tokens = tokens[1:-1]
    while tokens and is_sign(tokens[-1], ".", ",", ";"):
        tokens = tokens[:-1]
    while tokens and is_sign(tokens[0], ",", ";", ":"):
        tokens = tokens[1:]
    return tokens


def join(tokens: Iterable[Token]) -> str:
    """Return tokens as a text for patterns, in which a space follows each of them."""
    return "".join(f"{token.text} " for token in tokens)


def read_side(tokens: Tokens) -> Leaf:
    """Read a side of a relation."""
    try:
        return Leaf(spell(tokens), read_expression(tokens))
    except Unreadable:
        words = [token.text.casefold() for token in tokens if token.kind == "word"]
        if len(words) < len(tokens):
            return Leaf(spell(tokens))
        return Leaf(" ".join(word for word in words if word not in ("the", "a")))


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


def is_constant(tree: Expression | None) -> bool:
    """Return whether a tree is a symbol with a value."""
    return tree in (("symbol", "e"), ("symbol", "i"), ("symbol", "\\pi"), ("symbol", "\\infty"))


def is_simple_name(side: Leaf) -> bool:
    """Return whether a side is one name: ``x``, ``x_1``, ``f(x)``, ``AB``, a word."""
    if side.tree is None:
        return re.fullmatch(r"[^\W\d_]+|\([a-zA-Z](?:,[a-zA-Z])+\)", side.text) is not None
    if side.tree[0] == "call":
        return side.tree[1] not in KNOWN_CALLS or side.text in ("\\max", "\\min")
    is_variable = side.tree[0] == "symbol" and not is_constant(side.tree)
    return is_variable or re.fullmatch(r"[A-Z]{2,4}'*", side.text) is not None


def is_name(side: Leaf) -> bool:
    """Return whether a side stands for a quantity: ``|PQ|``, ``P(X=2)``, not ``x+y``."""
    tree = side.tree
    if tree is None:
        return not re.search(r"(?<![\\a-zA-Z(=|])[a-z]\s*[+\-^]|[+\-^]\s*[a-z]", side.text)
    if tree[0] in ("symbol", "call") and tree[1] not in FUNCTIONS | {"abs"}:
        return not is_constant(tree)
    if tree[0] == "divide" and all(operand[0] in ("symbol", "call") for operand in tree[1:]):
        return True
    return all(not re.match(r"[a-z](?![a-z])", name) for name in _find_free_names(tree))


def _find_free_names(tree: Expression) -> Iterator[str]:
    """Yield the names in an expression that are not arguments of unknown functions."""
    if tree[0] == "symbol" and not is_constant(tree):
        yield tree[1]
    elif tree[0] != "call" or tree[1] in KNOWN_CALLS:
        for operand in tree[1:]:
            if isinstance(operand, tuple):
                yield from _find_free_names(operand)
