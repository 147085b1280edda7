# SPDX-License-Identifier: Apache-2.0
"""Comparison of two answers by rules: docs/reference/verifier_rules.md.

The rules give sure results only; a comparison of leaves decides what needs values.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from prime_ext.verifiers.math.expressions import KNOWN_CALLS, walk
from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.structure import (
    EMPTY,
    Equation,
    Group,
    Leaf,
    Node,
    Relation,
    Side,
    is_name,
    is_simple_name,
    read_names,
)
from prime_ext.verifiers.math.units import Unit

# True or False is certain, None is undecided. The gold answer comes first.
LeafComparison = Callable[[Node, Node], bool | None]

_DECORATION = re.compile(r"\\(?:overline|angle|triangle|measuredangle) |[{}|_$\s]")
# Names with an index that are roots of one equation, in any order.
_ROOTS = re.compile(r"[xyzrst]_\{?\w+\}?|\\(?:alpha|lambda) _\w")
_PI = ("symbol", "\\pi")
_STRAIGHT = ("number", Fraction(180))
_TRUTH = dict.fromkeys("t true yes 真 是 对 да sí vrai wahr ja".split(), True)
_TRUTH |= dict.fromkeys("f false no 假 否 错 нет faux falsch nein".split(), False)
_CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")


def compare(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    """Compare two answers: True, False, or None if ``leaf`` left something undecided."""
    if isinstance(gold, Leaf) != isinstance(answer, Leaf):
        gold, answer = map(_unwrap_single, (gold, answer))
    return _compare(gold, answer, leaf)


def _unwrap_single(node: Node) -> Node:
    """Return the only value of a set, which nobody writes as one."""
    if isinstance(node, Group) and node.kind == "set" and len(node.items) == 1:
        single = node.items[0]
        return single if isinstance(single, Leaf) and single != EMPTY else node
    return node


def _compare(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    gold, wanted = _read_by_name(gold)
    answer, given = _read_by_name(answer)
    if wanted and given:
        if wanted.keys() != given.keys():
            return False
        return _match_members(list(wanted.values()), [given[name] for name in wanted], leaf)
    if wanted and isinstance(answer, Group) and not given and _is_vector(answer):
        return _match_members(list(wanted.values()), answer.items, leaf)
    if given and isinstance(gold, Group) and gold.kind == "tuple" and _is_vector(gold):
        return _any(
            _match_members(gold.items, [given[name] for name in names], leaf)
            for names in (given, sorted(given))
        )
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        return _compare_equations(gold, answer, leaf)
    if isinstance(answer, Equation):
        return False if _is_contradictory(answer) else compare(gold, answer.value, leaf)
    if isinstance(gold, Equation):
        return compare(gold.value, answer, leaf) if is_name(gold.sides[0]) else False
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return _compare_leaves(gold, answer, leaf)
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        if gold == answer:
            return True
        if gold.operators == answer.operators and not _is_known(gold):
            return _match_sides(gold.sides, answer.sides, leaf)
        return leaf(gold, answer) if _is_known(gold) and _is_known(answer) else False
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _compare_groups(gold, answer, leaf)
    return _compare_kinds(gold, answer, leaf)


def undecided(gold: Node, answer: Node) -> None:
    """Leave every comparison of leaves to the worker."""


def _any(results: Iterable[bool | None]) -> bool | None:
    seen = list(results)
    return True if True in seen else None if None in seen else False


def _all(results: Iterable[bool | None]) -> bool | None:
    seen = list(results)
    return False if False in seen else None if None in seen else True


def _compare_kinds(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    """Compare answers of different kinds, one of which is a group or a relation."""
    if isinstance(answer, Group) and not isinstance(gold, Group):
        items = answer.items
        if answer.kind == "list" and not answer.name:
            # The same value in several forms, "1/2 or 50%".
            if len(set(items)) < 2:
                return False
            return _all(
                [compare(gold, item, leaf) for item in items]
                + [compare(items[0], item, leaf) for item in items[1:]]
            )
        if answer.kind == "congruence":
            return compare(gold, items[0], leaf)
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        return False
    # An inequality against a set, as in x \\ne 0 and \\mathbb{R}\\setminus\\{0\\}.
    group = next((node for node in (gold, answer) if isinstance(node, Group)), None)
    relation = next(node for node in (gold, answer) if isinstance(node, Relation))
    if not _is_known(relation) or group is None or group.kind in ("list", "ratio", "matrix"):
        return False
    return leaf(gold, answer)


def _is_known(relation: Relation) -> bool:
    """Return whether algebra knows all operators of a chain."""
    return {"=", "<", ">", "le", "ge", "ne"}.issuperset(relation.operators)


def _match_sides(gold: Sequence[Side], answer: Sequence[Side], leaf: LeafComparison) -> bool | None:
    return _all(
        _compare_leaves(Leaf(one.text, one.tree), Leaf(other.text, other.tree), leaf)
        for one, other in zip(gold, answer, strict=True)
    )


def _read_by_name(node: Node) -> tuple[Node, dict[str, Node]]:
    """Return an answer and its values by name.

    ``a=2,b=9`` and ``(a,b)=(2,9)`` have names; ``x_1=2,x_2=9`` is the list ``2,9``.
    """
    values = read_names(node)
    members = len(values)
    if isinstance(node, Equation) and isinstance(node.value, Group) and node.value.left == "(":
        values = dict(zip(node.sides[0].text[1:-1].split(","), node.value.items, strict=False))
        members = len(node.value.items)
    elif (
        isinstance(node, Group)
        and node.kind == "list"
        and all(
            isinstance(item, Group) and item.name and item.kind == "tuple" for item in node.items
        )
    ):
        values = {item.name: item for item in node.items if isinstance(item, Group)}
        members = len(node.items)
    if (
        isinstance(node, Group)
        and values
        and all(map(_ROOTS.fullmatch, values))
        and (len({name[0] for name in values}) == 1)
    ):
        return Group("list", tuple(values.values())), {}
    return node, values if 1 < len(values) == members else {}


def _number(node: Node) -> PlainNumber | None:
    return node.number if isinstance(node, Leaf) else None


def _is_contradictory(equation: Equation) -> bool:
    value = _number(equation.value)
    if value is None:
        return False
    for side in equation.sides[:-1]:
        if side.tree is not None and side.tree[0] == "number" and side.tree[1] != value.value:
            return True
    return False


def _compare_equations(gold: Equation, answer: Equation, leaf: LeafComparison) -> bool | None:
    if gold.sides == answer.sides:
        return True
    first = gold.sides[0]
    other = answer.sides[0]
    if is_name(first) and is_name(other):
        if _bare(first) == _bare(other):
            return compare(gold.value, answer.value, leaf)
        if not _has_letters(first) or not _has_letters(other):
            return False if _is_contradictory(answer) else compare(gold.value, answer.value, leaf)
        simple = is_simple_name(first) or is_simple_name(other)
        plain = all(
            isinstance(value, Group) or _number(value) for value in (gold.value, answer.value)
        )
        if (
            first.tree is None
            or other.tree is None
            or (
                plain
                and simple
                and not (_has_variables(gold.sides[1:]) or _has_variables(answer.sides[1:]))
            )
        ):
            return False
    return leaf(gold, answer)


def _bare(side: Side) -> str:
    return _DECORATION.sub("", side.text)


def _has_letters(side: Side) -> bool:
    return side.tree is None or any(
        (part[0] == "symbol" and part[1] != "\\pi")
        or (part[0] == "call" and part[1] not in KNOWN_CALLS)
        for part in walk(side.tree)
    )


def _has_variables(sides: Sequence[Side]) -> bool:
    return any(side.tree is None or re.search(r"(?<!\\)[a-z]", side.text) for side in sides)


def _compare_leaves(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    result = _compare_readings(gold, answer, leaf)
    if result is not True and (gold.reading or answer.reading):
        # Letters after a value are a unit, or variables; "8m" is only beside another unit.
        result = _any(
            _compare_readings(one, other, leaf)
            for one in (gold, gold.reading)
            for other in (answer, answer.reading)
            if one
            and other
            and not (one.unit and one.unit.glued and not other.unit)
            and not (other.unit and other.unit.glued and not one.unit)
        )
    if result is not True:
        result = _any([result, _in_radians(gold, answer, leaf)])
    return result


def _in_radians(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    """Compare an angle in degrees with one that has pi in it and no unit."""
    for degrees, other in ((gold, answer), (answer, gold)):
        if (
            degrees.unit
            and degrees.unit.powers == (("deg", 1),)
            and not other.unit
            and (other.tree is not None and degrees.tree is not None and _PI in walk(other.tree))
        ):
            converted = _convert(degrees, degrees.unit)
            pair = (converted, other) if degrees is gold else (other, converted)
            return leaf(*pair)
    return False


def _compare_readings(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    if not answer.text or not gold.text:
        return False
    if gold.unit and answer.unit and gold.unit.conflicts(answer.unit):
        return False
    if gold.text == answer.text and gold.unit == answer.unit:
        return True
    if gold.code and answer.code:
        return gold.text.casefold() == answer.text.casefold() if len(gold.text) > 2 else False
    bases = [node.tree[1:] for node in (gold, answer) if node.tree and node.tree[0] == "base"]
    if len(bases) == 1:
        digits = answer.text if gold.tree and gold.tree[0] == "base" else gold.text
        return bool(digits.upper() == bases[0][0])
    if gold.tree is None or answer.tree is None:
        return _spelled(gold) == _spelled(answer)
    if _CLOCK.fullmatch(gold.text) and _CLOCK.fullmatch(answer.text):
        return False
    if len(bases) == 2 and bases[0][1] == bases[1][1]:
        return bool(bases[0] == bases[1])
    if len(bases) == 2:
        return False
    gold, answer = _in_one_unit(gold, answer)
    if gold.number and answer.number:
        # Percent signs are often left out.
        scale = Fraction(100) ** (gold.percent - answer.percent)
        values = [answer.number, PlainNumber(answer.number.value * scale)]
        rounded = [value.rounds_to(gold.number) and not value.terminates for value in values]
        return any(rounded) or any(value.value == gold.number.value for value in values)
    return (
        True if gold.tree == answer.tree and gold.percent == answer.percent else leaf(gold, answer)
    )


def _spelled(node: Leaf) -> str:
    """Return an answer in words without what does not count in it."""
    text = node.text.replace("_", "") if node.tree and node.text[:1].isupper() else node.text
    # Two letters can be an element or a symbol.
    short = len(text) == 2 and text.lower() not in ("no", "ok", "am", "pm", "if", "up", "on")
    text = text.casefold() if len(text) > 1 and not short else text
    squeezed = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)
    squeezed = re.sub(r"\A(?:the|an?(?=[a-z]{4}))(?=[a-z])", "", squeezed.strip(".,;:"))
    return {"dne": "doesnotexist"}.get(squeezed, squeezed) or text


def _in_one_unit(gold: Leaf, answer: Leaf) -> tuple[Leaf, Leaf]:
    """Convert both values to base units if both have a unit."""
    if not (gold.unit and answer.unit and gold.unit.powers and answer.unit.powers):
        return gold, answer
    if gold.unit.factor == answer.unit.factor and gold.unit.powers == answer.unit.powers:
        return gold, answer
    if ("celsius", 1) in (gold.unit.powers + answer.unit.powers) or (
        "fahrenheit",
        1,
    ) in gold.unit.powers + answer.unit.powers:
        return gold, answer
    return _convert(gold, gold.unit), _convert(answer, answer.unit)


def _convert(node: Leaf, unit: Unit) -> Leaf:
    assert node.tree is not None
    if unit.powers == (("deg", 1),):
        return replace(node, number=None, tree=("divide", ("multiply", node.tree, _PI), _STRAIGHT))
    number = node.number and PlainNumber(node.number.value * unit.factor)
    return replace(node, number=number, tree=("multiply", node.tree, ("number", unit.factor)))


def _compare_groups(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    kinds = {gold.kind, answer.kind}
    if "parts" in kinds:
        return _compare_parts(gold, answer, leaf)
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
    if kinds in ({"pieces"}, {"oplus"}):
        return _match_members(gold.items, answer.items, leaf, any_order=True)
    if len(kinds) == 1 and kinds <= {"ratio", "matrix", "congruence"}:
        return (
            _match_members(gold.items, answer.items, leaf)
            if gold.columns == answer.columns
            else False
        )
    if kinds <= {"list", "set"}:
        members = [
            _drop_equal(group.items) if "set" in kinds else group.items for group in (gold, answer)
        ]
        truths = [[_TRUTH.get(text) for text in _texts(group)] for group in (gold, answer)]
        if kinds == {"list"} and None not in truths[0]:
            return truths[0] == truths[1]
        return _match_members(members[0], members[1], leaf, any_order=True)
    if kinds & {"union", "cap", "setminus"} and kinds <= {
        "union",
        "cap",
        "setminus",
        "tuple",
        "interval",
        "set",
    }:
        if any(group.kind == "tuple" and len(group.items) > 2 for group in (gold, answer)):
            return False
        commute = gold.kind != "setminus"
        same = len(kinds) == 1 and _match_members(gold.items, answer.items, leaf, any_order=commute)
        # Overlapping or touching parts: another way to write the same set.
        return same or leaf(gold, answer)
    if kinds <= {"tuple", "interval"}:
        return _compare_tuples(gold, answer, leaf)
    vectors = (
        kinds in ({"list", "tuple"}, {"tuple", "matrix"})
        and _is_vector(gold)
        and _is_vector(answer)
    )
    return _match_members(gold.items, answer.items, leaf) if vectors else False


def _compare_parts(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    """Compare numbered answers by their numbers, or in their order with a list."""
    if gold.kind == answer.kind:
        if gold.names != answer.names and {*gold.names} == {*answer.names}:
            return False
        return _match_members(gold.items, answer.items, leaf)
    other = answer if gold.kind == "parts" else gold
    if other.kind not in ("list", "tuple"):
        return False
    return _match_members(gold.items, answer.items, leaf)


def _compare_tuples(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    long = len(gold.items) > 2 and len(answer.items) > 2
    if not long and (gold.left, gold.right) != (answer.left, answer.right):
        return False
    if (
        gold.name
        and answer.name
        and gold.name != answer.name
        and (gold.kind == answer.kind == "interval")
    ):
        return False
    return _match_members(gold.items, answer.items, leaf)


def _is_vector(group: Group) -> bool:
    """Return whether the members are in an order and the brackets do not say anything else."""
    if group.kind == "matrix":
        return group.columns in (1, len(group.items))
    groups = all(isinstance(item, Group) for item in group.items)
    return (
        group.kind == "list"
        or (group.kind == "tuple" and (groups or len(group.items) > 2))
        or (group.left, group.right) == ("(", ")")
    )


def _labels(group: Group) -> dict[str, Node]:
    """Return a list's members by unit (``3 nickels, 4 dimes``); {} if units do not differ."""
    units = [
        f"{item.unit.powers} {item.unit.words}" if isinstance(item, Leaf) and item.unit else ""
        for item in group.items
    ]
    return (
        dict(zip(units, group.items, strict=True))
        if len(set(units)) == len(units) and "" not in units
        else {}
    )


def _texts(group: Group) -> list[str]:
    return [item.text.casefold() if isinstance(item, Leaf) else "" for item in group.items]


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
            same = _compare(wanted, given, leaf)
            if same or not any_order:
                rest.pop(index)
                equal = same
                break
            equal = None if same is None else equal
        if equal is False:
            return False
        sure = sure and equal
    return sure
