# SPDX-License-Identifier: Apache-2.0
"""Comparison of two answers by rules: docs/reference/verifier_rules.md.

The rules give sure results only; a comparison of leaves decides what needs algebra.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.structure import (
    NAME,
    VARIABLE,
    Equation,
    Group,
    Leaf,
    Node,
    Words,
    read_answer,
    read_names,
)

# True or False is certain, None is undecided. The gold answer comes first.
LeafComparison = Callable[[Node, Node], bool | None]

_FREE_LETTER = re.compile(
    r"(?<![\\a-zA-Z])[a-df-hj-zA-Z]|\\(?:alpha|beta|theta|phi|lambda|mu|omega|varepsilon)"
)
# Parts of a left side that hold no variable: subscripts, accents, arguments of functions, texts,
# commands.
_NO_VARIABLE = re.compile(
    rf"\A(?:{NAME.pattern})(?:[:/](?:{NAME.pattern}))*\Z|\A\\frac\{{(?:{NAME.pattern})\}}\{{(?:{NAME.pattern})\}}\Z"
    r"|[a-z]?_\{[^{}]*\}|\\(?:text|vec|overline|hat|bar)\{[^{}]*\}|(?<![\\a-zA-Z])[a-zA-Z]\([^()]*\)|\\[a-zA-Z]+"
    r"|max|min|[ei](?![a-z])"
)
_DECORATION = re.compile(r"\\(?:text|overline|angle|triangle)(?![a-zA-Z])|[{}|_$\s]")
_ARITHMETIC = re.compile(r"[a-zA-Z0-9+\-^*/().{}|\\' _]+")
_CONSTANT_LETTER = re.compile(r"(?<![\\a-zA-Z])[ei](?![a-zA-Z])|\\pi")
# Operators that do not commute and that algebra cannot handle: only the same text is equal.
_SYMBOLS = re.compile(
    r"\\(?:(?:not)?(?:sub|sup)set(?:n?eq)?q?|prec|succ|preceq|succeq|ll|gg|forall|exists|neg|lnot|vee|wedge|otimes|not|in|notin|ni"
    r"|(?<!\{[a-zA-Z]\\)rightarrow|Rightarrow|[lL]eftarrow|[lL]eftrightarrow|iff|implies|perp|parallel)(?![a-zA-Z])"
    r"|(?<![{a-zA-Z\\])[A-Z]\\(?:cap|setminus)(?![a-zA-Z])|\^\{(?:T|\\top)\}"
)
_CLOCK = re.compile(r"\d{1,2}:\d\d")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_INDEX = re.compile(r"_\{\d+\}")
_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?_\{(\d+)\}")
_KNOWN_UNITS = (
    "mm millimeter millimetre,cm centimeter centimetre,m meter metre,km kilometer kilometre,in inch"
    " inche,ft foot feet,yd yard,mile mi,mg milligram,g gram gm,kg kilogram,lb pound,oz"
    " ounce,ton,sec second s,min minute,hour hr h,day,week,month,year,cent,dollar usd,euro,pence"
    " penny,degree deg,radian rad,l liter litre,ml milliliter millilitre,gallon gal,quart,pint,hz"
    " hertz,khz kilohertz,mhz megahertz,ghz gigahertz,increase rise,decrease drop,profit"
    " gain,loss,am,pm,ad ce,bc bce,c celsius,f fahrenheit,k kelvin,n north,e east,w"
    " west,south,newton,joule j,watt,volt v"
)
_UNIT_NAMES = {
    name: group.split()[0] for group in _KNOWN_UNITS.split(",") for name in group.split()
}
# Words that say more about a unit. Often only one side has them.
_UNIT_REMARKS = frozenset("am pm ad bc c f n south e w".split())
_UNIT_WORD = re.compile(r"\s*(/|per\s)?\s*([a-z]+)")


def compare(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    """Compare two answers: True, False, or None if ``leaf`` left something undecided."""
    gold, wanted = _read_by_name(gold)
    answer, given = _read_by_name(answer)
    if wanted and given:
        same = wanted.keys() == given.keys()
        return (
            _match_members(list(wanted.values()), [given[name] for name in wanted], leaf)
            if same
            else False
        )
    if wanted and isinstance(answer, Group) and not given and _vector(answer):
        return _match_members(list(wanted.values()), answer.items, leaf)
    if given and isinstance(gold, Group) and gold.kind == "tuple" and _vector(gold):
        equal = [
            _match_members(gold.items, [given[name] for name in names], leaf)
            for names in (given, sorted(given))
        ]
        return True if True in equal else None if None in equal else False
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        return _compare_equations(gold, answer, leaf)
    if isinstance(answer, Equation):
        return False if _is_contradictory(answer) else compare(gold, answer.value, leaf)
    if isinstance(gold, Equation):
        return compare(gold.value, answer, leaf) if _names(gold.sides[0]) else False
    if isinstance(gold, Words) or isinstance(answer, Words):
        words = [
            node.text.lower() if isinstance(node, Words | Leaf) else None for node in (gold, answer)
        ]
        return words[0] == words[1]
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _compare_groups(gold, answer, leaf)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return _compare_leaves(gold, answer, leaf)
    if (
        isinstance(answer, Group)
        and answer.kind == "list"
        and not answer.name
        and not isinstance(gold, Group)
    ):
        # The same value in several forms, "1/2 or 50%".
        equal = (
            [compare(gold, item, leaf) for item in answer.items]
            if len(set(answer.items)) > 1
            else [False]
        )
        equal += [
            compare(answer.items[0], item, leaf) for item in answer.items[1:] if False not in equal
        ]
        return False if False in equal else None if None in equal else True
    if isinstance(answer, Group) and answer.kind == "congruence":
        return compare(gold, answer.items[0], leaf)
    # An inequality or a set, as in x \\ne 0 and \\mathbb{R}\\setminus\\{0\\}, against another one.
    group = next((node for node in (gold, answer) if isinstance(node, Group)), None)
    if group is answer and group.kind == "ratio" and len(group.items) == 2 and _number(gold):
        return leaf(gold, answer)
    if any(isinstance(node, Leaf) and _SYMBOLS.search(node.text) for node in (gold, answer)):
        return False
    several = group is not None and group.kind in ("list", "ratio", "matrix")
    return False if several or _number(gold) or _number(answer) else leaf(gold, answer)


def undecided(gold: Node, answer: Node) -> None:
    """Leave every comparison of leaves to algebra."""


def _names(text: str) -> bool:
    """Return whether a side is a name: ``x``, ``|PQ|``, ``P(X=2)``, ``m_1:m_2``, not ``x+y``."""
    return re.search("[a-z]", _NO_VARIABLE.sub("", text)) is None


def _read_by_name(node: Node) -> tuple[Node, dict[str, Node]]:
    """Return an answer and its values by name.

    ``a=2,b=9`` and ``(a,b)=(2,9)`` have names; ``x_1=2,x_2=9`` is the list ``2,9``.
    """
    values = read_names(node)
    members = len(values)
    if isinstance(node, Equation) and isinstance(node.value, Group) and node.value.left == "(":
        values = dict(zip(node.sides[0][1:-1].split(","), node.value.items, strict=False))
        members = len(node.value.items)
    different = {_INDEX.sub("", name) for name in values if NAME.fullmatch(name)}
    if len(different) == 1 and isinstance(node, Group):
        return Group("list", tuple(values.values())), {}
    return node, values if 1 < len(different) == len(values) == members else {}


def _number(node: Node) -> PlainNumber | None:
    return node.number if isinstance(node, Leaf) else None


def _is_contradictory(equation: Equation) -> bool:
    value = equation.value
    sides = [
        side for side in map(read_answer, equation.sides[:-1]) if _number(side) and _number(value)
    ]
    return any(compare(value, side, undecided) is False for side in sides)


def _compare_equations(gold: Equation, answer: Equation, leaf: LeafComparison) -> bool | None:
    if gold.sides == answer.sides:
        return True
    first = gold.sides[0]
    other = answer.sides[0]
    if not _FREE_LETTER.search("".join(gold.sides)) and not _CONSTANT_LETTER.search(first + other):
        return False if _is_contradictory(answer) else compare(gold.value, answer.value, leaf)
    if _names(first) and _names(other):
        if _DECORATION.sub("", first) == _DECORATION.sub("", other):
            return compare(gold.value, answer.value, leaf)
        arithmetic = _ARITHMETIC.fullmatch(first + other) and re.search(
            r"[+-]|\\[a-z]+\(", first + other
        )
        values = all(
            isinstance(value, Group) or _number(value) for value in (gold.value, answer.value)
        )
        if values and not arithmetic:
            return False
    return leaf(gold, answer)


def _compare_leaves(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    if not answer.text or not gold.text or _units_conflict(gold.unit, answer.unit):
        return False
    if gold.text == answer.text:
        return True
    if gold.unit and not answer.unit:
        # A unit in letters that a bare answer writes like variables, "5 m/s".
        bare = re.sub(r"\\text|[{}\s]", "", gold.unit)
        if bare and answer.text.endswith(bare):
            return compare(
                replace(gold, unit=None), read_answer(answer.text.removesuffix(bare)), leaf
            )
    alike = (all(map(kind.fullmatch, (gold.text, answer.text))) for kind in (_CLOCK, _CAPITALS))
    if _SYMBOLS.search(gold.text + answer.text) or any(alike):
        return False
    if gold.number and answer.number:
        # Percent signs are often left out.
        scale = Fraction(100) ** (gold.percent - answer.percent)
        values = [answer.number, PlainNumber(answer.number.value * scale)]
        rounded = [value.rounds_to(gold.number) and not value.terminates for value in values]
        return any(rounded) or any(value.value == gold.number.value for value in values)
    based = _BASE.fullmatch(gold.text)
    other = _BASE.fullmatch(answer.text)
    if based or other:
        digits = [
            match.group(1).upper() if match else node.text
            for match, node in ((based, gold), (other, answer))
        ]
        return digits[0] == digits[1] and not (based and other and based.group(2) != other.group(2))
    return leaf(gold, answer)


def _units_conflict(gold: str | None, answer: str | None) -> bool:
    """Return whether both units are known and differ, in a word or in a power."""
    if not (gold and answer):
        return False
    if not (gold + answer).isascii():
        return gold != answer
    sides = []
    for unit in (gold, answer):
        text = re.sub(r"mph", "miles per hour", re.sub(r"km?ph|kmh", "km per hour", unit.lower()))
        text = re.sub(
            r"\\text|\\cdot|[{}.]|\b(?:square|sq|cubic|cu)\b",
            " ",
            re.sub(r"([ap])\.\s?m\.?", r"\1m", text),
        )
        text = re.sub(r"(?<=degrees)\W+s\b", " south", text)
        words = [
            (per != "", _UNIT_NAMES.get(word, word.removesuffix("s")))
            for per, word in _UNIT_WORD.findall(text)
        ]
        known = {(below, _UNIT_NAMES.get(word)) for below, word in words}
        if not known or (False, None) in known or (True, None) in known:
            return False
        remarks = {name for _, name in known if name in _UNIT_REMARKS}
        sides.append(
            (
                {one for one in known if one[1] not in remarks},
                remarks,
                re.findall(r"\^ *(-?\d)", text),
            )
        )
    return any(left and right and left != right for left, right in zip(*sides, strict=True))


def _compare_groups(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    kinds = {gold.kind, answer.kind}
    if (
        kinds == {"list"}
        and (labels := _labels(gold))
        and labels.keys() == (others := _labels(answer)).keys()
    ):
        return _match_members(list(labels.values()), [others[label] for label in labels], leaf)
    union = gold if gold.kind == "union" else answer
    points = [
        item
        for item in (*gold.items, *answer.items)
        if isinstance(item, Group) and item.kind == "tuple"
    ]
    if (
        kinds in ({"union", "list"}, {"union", "set"})
        and union.name == "or"
        and len(points) == len(gold.items) * 2
    ):
        return _match_members(gold.items, answer.items, leaf, any_order=True)
    if kinds in ({"ratio"}, {"matrix"}, {"congruence"}):
        return (
            _match_members(gold.items, answer.items, leaf)
            if gold.columns == answer.columns
            else False
        )
    if kinds <= {"list", "set"}:
        members = [
            _drop_equal(group.items) if "set" in kinds else group.items for group in (gold, answer)
        ]
        return _match_members(members[0], members[1], leaf, any_order=True)
    if "union" in kinds and kinds <= {"union", "tuple", "interval", "set"}:
        if any(group.kind == "tuple" and len(group.items) > 2 for group in (gold, answer)):
            return False
        same = kinds == {"union"} and _match_members(gold.items, answer.items, leaf, any_order=True)
        # Overlapping or touching parts: another way to write the same set.
        return same or leaf(gold, answer)
    if kinds <= {"tuple", "interval"}:
        long = len(gold.items) > 2 and len(answer.items) > 2
        if not long and (gold.left, gold.right) != (answer.left, answer.right):
            return False
        if (
            gold.name != answer.name
            and VARIABLE.fullmatch(gold.name)
            and VARIABLE.fullmatch(answer.name)
        ):
            return False
        return _match_members(gold.items, answer.items, leaf)
    vectors = (
        kinds in ({"list", "tuple"}, {"tuple", "matrix"}) and _vector(gold) and _vector(answer)
    )
    return _match_members(gold.items, answer.items, leaf) if vectors else False


def _vector(group: Group) -> bool:
    """Return whether the members are in an order and the brackets do not say anything else."""
    if group.kind == "matrix":
        return group.columns in (1, len(group.items))
    groups = all(isinstance(item, Group) for item in group.items)
    return (
        group.kind == "list"
        or groups
        or len(group.items) > 2
        or (group.left, group.right) == ("(", ")")
    )


def _labels(group: Group) -> dict[str, Node]:
    """Return a list's members by unit (``3 nickels, 4 dimes``); {} if units do not differ."""
    units = [
        item.unit.lower() if isinstance(item, Leaf) and item.unit else "" for item in group.items
    ]
    return (
        dict(zip(units, group.items, strict=True))
        if len(set(units)) == len(units) and "" not in units
        else {}
    )


def _drop_equal(items: Sequence[Node]) -> Sequence[Node]:
    return [
        item
        for n, item in enumerate(items)
        if not any(compare(item, other, undecided) for other in items[:n])
    ]


def _match_members(
    gold: Sequence[Node], answer: Sequence[Node], leaf: LeafComparison, any_order: bool = False
) -> bool | None:
    """Match members one to one; equality is transitive, so in any order the first match will do."""
    if len(gold) != len(answer):
        return False
    rest = list(answer)
    sure: bool | None = True
    for wanted in gold:
        equal: bool | None = False
        for index, given in enumerate(rest if any_order else rest[:1]):
            same = compare(wanted, given, leaf)
            if same or not any_order:
                rest.pop(index)
                equal = same
                break
            equal = None if same is None else equal
        if equal is False:
            return False
        sure = sure and equal
    return sure
