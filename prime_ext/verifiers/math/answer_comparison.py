# SPDX-License-Identifier: Apache-2.0
"""Comparison of two answers by rules: docs/reference/verifier_rules.md.

The rules give sure results only; a comparison of leaves decides what needs values.
"""

import calendar
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from prime_ext.verifiers.math.answer_tree import (
    EMPTY,
    Equation,
    Group,
    Leaf,
    Node,
    PlainNumber,
    Relation,
    is_name,
    is_simple_name,
    read_names,
)
from prime_ext.verifiers.math.expressions import KNOWN_CALLS, walk
from prime_ext.verifiers.math.notation import fold_case
from prime_ext.verifiers.math.units import DEGREES, Unit

# True or False is certain, None is undecided. The gold answer comes first.
LeafComparison = Callable[[Node, Node], bool | None]

_DECORATION = re.compile(r"\\(?:overline|angle|triangle|measuredangle) |[{}|_$\s]")
# Names with an index that are roots of one equation, in any order.
_ROOTS = re.compile(r"[xyzrst]_\{?\w+\}?|\\(?:alpha|lambda) _\w")
_PI = ("symbol", "\\pi")
_STRAIGHT = ("number", Fraction(180))
_TRUTH = dict.fromkeys("t true yes 真 是 对 да sí vrai wahr ja".split(), True)
_TRUTH |= dict.fromkeys("f false no 假 否 错 нет faux falsch nein".split(), False)
_SHORT_FORMS = {"dne": "doesnotexist"} | {
    day[:length].lower(): day.lower() for day in calendar.day_name for length in (3, 4, 5)
}
_CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")
_KNOWN_OPERATORS = frozenset(["=", "<", ">", "le", "ge", "ne"])
_OPERATIONS = {"cup", "cap", "setminus"}
_TEMPERATURES = {("celsius", 1), ("fahrenheit", 1)}


def compare(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    """Compare two answers: True, False, or None if ``leaf`` left something undecided."""
    if isinstance(gold, Leaf) != isinstance(answer, Leaf):
        gold, answer = map(_unwrap_single, (gold, answer))
    return _compare(gold, answer, leaf)


def _unwrap_single(node: Node) -> Node:
    """Return the only value of a set, which nobody writes as one."""
    match node:
        case Group(kind="set", items=(Leaf() as single,)) if single != EMPTY:
            return single
    return node


def _compare(gold: Node, answer: Node, leaf: LeafComparison) -> bool | None:
    gold, gold_names = _read_by_name(gold)
    answer, names = _read_by_name(answer)
    if gold_names and names:
        if gold_names.keys() != names.keys():
            return False
        return _match([*gold_names.values()], [names[name] for name in gold_names], leaf)
    if gold_names and isinstance(answer, Group) and _is_vector(answer):
        return _match([*gold_names.values()], answer.items, leaf)
    if names and isinstance(gold, Group) and gold.kind == "tuple" and _is_vector(gold):
        orders = (names, sorted(names))
        return _any(_match(gold.items, [names[name] for name in order], leaf) for order in orders)
    match gold, answer:
        case Equation(), Equation():
            return _compare_equations(gold, answer, leaf)
        case _, Equation():
            return False if _is_contradictory(answer) else compare(gold, answer.value, leaf)
        case Equation(), _:
            return compare(gold.value, answer, leaf) if is_name(gold.sides[0]) else False
        case Leaf(), Leaf():
            return _compare_leaves(gold, answer, leaf)
        case Relation(), Relation() if gold.operators == answer.operators and not _is_set(gold):
            return _match(gold.sides, answer.sides, leaf)
        case Group(), Group():
            return _compare_groups(gold, answer, leaf)
        case _, Group(kind="list", items=items, name=""):
            # The same value in several forms, "1/2 or 50%".
            first = [gold] * len(items) + [items[0]] * (len(items) - 1)
            return len(set(items)) > 1 and _match(first, [*items, *items[1:]], leaf)
        case _, Group(kind="congruence", items=items):
            return compare(gold, items[0], leaf)
        # An inequality against a set, as in x \ne 0 and \mathbb{R}\setminus\{0\}.
        case (Relation(), Relation() | Group()) | (Group(), Relation()):
            known = _is_set(gold) and _is_set(answer)
            return known and (gold == answer or leaf(gold, answer))
    return False


def undecided(gold: Node, answer: Node) -> None:
    """Leave every comparison of leaves to the worker."""


def _any(results: Iterable[bool | None]) -> bool | None:
    seen = list(results)
    return True if True in seen else None if None in seen else False


def _is_set(node: Node) -> bool:
    """Return whether algebra knows which numbers an answer allows: all signs of a chain, a set."""
    if isinstance(node, Relation):
        return _KNOWN_OPERATORS.issuperset(node.operators)
    return isinstance(node, Group) and node.kind not in ("list", "ratio", "matrix")


def _read_by_name(node: Node) -> tuple[Node, dict[str, Node]]:
    """Return an answer and its values by name.

    ``a=2,b=9`` and ``(a,b)=(2,9)`` have names; ``x_1=2,x_2=9`` is the list ``2,9``.
    """
    match node:
        case Equation(sides=(names, *_), value=Group(left="(", items=items)):
            values = dict(zip(names.text[1:-1].split(","), items, strict=False))
        case Group(kind="list", items=items):
            values = read_names(node) or {
                item.name: item for item in items if isinstance(item, Group) and _is_tuple(item)
            }
            if all(map(_ROOTS.fullmatch, values)) and len({name[0] for name in values}) == 1:
                return Group("list", tuple(values.values())), {}
        case _:
            return node, {}
    return node, values if 1 < len(values) == len(items) and all(values) else {}


def _is_contradictory(equation: Equation) -> bool:
    """Return whether a chain has a plain number other than its last one."""
    if not isinstance(equation.value, Leaf) or equation.value.number is None:
        return False
    trees = [side.tree for side in equation.sides[:-1] if side.tree]
    return any(tree[0] == "number" and tree[1] != equation.value.number.value for tree in trees)


def _compare_equations(gold: Equation, answer: Equation, leaf: LeafComparison) -> bool | None:
    if gold.sides == answer.sides:
        return True
    first, other = gold.sides[0], answer.sides[0]
    if not (is_name(first) and is_name(other)):
        return leaf(gold, answer)
    if _DECORATION.sub("", first.text) == _DECORATION.sub("", other.text):
        return compare(gold.value, answer.value, leaf)
    if not _has_letters(first) or not _has_letters(other):
        return False if _is_contradictory(answer) else compare(gold.value, answer.value, leaf)
    sides = (*gold.sides[1:], *answer.sides[1:])
    variables = any(side.tree is None or re.search(r"(?<!\\)[a-z]", side.text) for side in sides)
    plain = all(
        isinstance(value, Group) or (isinstance(value, Leaf) and value.number)
        for value in (gold.value, answer.value)
    )
    if plain and not variables and (is_simple_name(first) or is_simple_name(other)):
        return False
    return leaf(gold, answer)


def _has_letters(side: Leaf) -> bool:
    return side.tree is None or any(
        (node[0] == "symbol" and node != _PI) or (node[0] == "call" and node[1] not in KNOWN_CALLS)
        for node in walk(side.tree)
    )


def _compare_leaves(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    result = _compare_readings(gold, answer, leaf)
    if result or not (gold.reading or answer.reading):
        return result
    # Letters after a value are a unit, or variables; "8m" is only against another unit.
    return _any(
        _compare_readings(reading, other, leaf)
        for reading in (gold, gold.reading)
        for other in (answer, answer.reading)
        if reading and other and not _is_one_glued(reading.unit, other.unit)
    )


def _is_one_glued(unit: Unit | None, other: Unit | None) -> bool:
    return (unit is None) != (other is None) and (unit or other or Unit()).glued


def _compare_readings(gold: Leaf, answer: Leaf, leaf: LeafComparison) -> bool | None:
    if not answer.text or not gold.text:
        return False
    if gold.unit and answer.unit and gold.unit.conflicts(answer.unit):
        return False
    if gold.text == answer.text and gold.unit == answer.unit:
        return True
    if gold.code and answer.code:
        return len(gold.text) > 2 and gold.text.casefold() == answer.text.casefold()
    bases = [node.tree[1:] for node in (gold, answer) if node.tree and node.tree[0] == "base"]
    if len(bases) == 2:
        return bases[0] == bases[1]
    if bases:
        plain = answer if gold.tree and gold.tree[0] == "base" else gold
        return bool(plain.text.upper() == bases[0][0])
    if gold.tree is None or answer.tree is None:
        return _spell_words(gold) == _spell_words(answer)
    if _CLOCK.fullmatch(gold.text) and _CLOCK.fullmatch(answer.text):
        return False
    if _needs_conversion(gold, answer):
        gold, answer = _convert(gold), _convert(answer)
    if gold.number and answer.number:
        # Percent signs are often left out.
        scale = Fraction(100) ** (gold.percent - answer.percent)
        values = [answer.number, PlainNumber(answer.number.value * scale)]
        rounded = [value.rounds_to(gold.number) and not value.terminates for value in values]
        return any(rounded) or any(value.value == gold.number.value for value in values)
    return (gold.tree == answer.tree and gold.percent == answer.percent) or leaf(gold, answer)


def _spell_words(node: Leaf) -> str:
    """Return an answer in words without what does not count in it."""
    text = node.text.replace("_", "") if node.tree and node.text[:1].isupper() else node.text
    text = fold_case(text) if len(text) > 1 else text
    squeezed = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)
    squeezed = re.sub(r"\A(?:the|an?(?=[a-z]{4}))(?=[a-z])", "", squeezed.strip(".,;:"))
    return _SHORT_FORMS.get(squeezed, squeezed) or text


def _needs_conversion(gold: Leaf, answer: Leaf) -> bool:
    """Return whether units differ, except in a scale of temperature; an angle may have pi in it."""
    units = [node.unit for node in (gold, answer) if node.unit and node.unit.powers]
    if len(units) == 2:
        differ = units[0].factor != units[1].factor or units[0].powers != units[1].powers
        return differ and _TEMPERATURES.isdisjoint(units[0].powers + units[1].powers)
    plain = answer if gold.unit else gold
    in_degrees = [unit.powers for unit in units] == [DEGREES]
    return in_degrees and plain.unit is None and _PI in walk(plain.tree or ())


def _convert(node: Leaf) -> Leaf:
    """Convert a value to base units, degrees to radians."""
    if node.unit is None:
        return node
    if node.unit.powers == DEGREES:
        return replace(node, number=None, tree=("divide", ("multiply", node.tree, _PI), _STRAIGHT))
    number = node.number and PlainNumber(node.number.value * node.unit.factor)
    return replace(node, number=number, tree=("multiply", node.tree, ("number", node.unit.factor)))


def _compare_groups(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    kinds = {gold.kind, answer.kind}
    if "parts" in kinds:
        # Numbered answers are compared by their numbers, or in their order with a list.
        moved = gold.names != answer.names and sorted(gold.names) == sorted(answer.names)
        if moved or not kinds <= {"parts", "list", "tuple"}:
            return False
        return _match(gold.items, answer.items, leaf)
    if len(kinds) == 1 and kinds <= {"pieces", "oplus"}:
        return _match(gold.items, answer.items, leaf, any_order=True)
    if len(kinds) == 1 and kinds <= {"ratio", "matrix", "congruence"}:
        return gold.columns == answer.columns and _match(gold.items, answer.items, leaf)
    if kinds <= {"list", "set"}:
        return _compare_lists(gold, answer, leaf)
    if kinds <= {"tuple", "interval"}:
        return _compare_tuples(gold, answer, leaf)
    if "cup" in kinds and kinds <= {"cup", "list", "set"}:
        # Points that "or" joins.
        union, other = (gold, answer) if gold.kind == "cup" else (answer, gold)
        points = [item for item in (*union.items, *other.items) if _is_tuple(item)]
        if union.name == "or" and len(points) == len(gold.items) * 2:
            return _match(gold.items, answer.items, leaf, any_order=True)
    if kinds & _OPERATIONS and kinds <= {*_OPERATIONS, "tuple", "interval", "set"}:
        if any(_is_tuple(group) and len(group.items) > 2 for group in (gold, answer)):
            return False
        commute = gold.kind != "setminus"
        same = len(kinds) == 1 and _match(gold.items, answer.items, leaf, any_order=commute)
        # Overlapping or touching parts: another way to write the same set.
        return same or leaf(gold, answer)
    if kinds not in ({"list", "tuple"}, {"tuple", "matrix"}):
        return False
    return _is_vector(gold) and _is_vector(answer) and _match(gold.items, answer.items, leaf)


def _is_tuple(node: Node) -> bool:
    return isinstance(node, Group) and node.kind == "tuple"


def _compare_lists(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    if gold.kind == answer.kind == "list":
        truths, claims = _read_truths(gold), _read_truths(answer)
        if None not in truths:
            return truths == claims
        return _match(gold.items, answer.items, leaf, any_order=True)
    return _match(_drop_equal(gold.items), _drop_equal(answer.items), leaf, any_order=True)


def _compare_tuples(gold: Group, answer: Group, leaf: LeafComparison) -> bool | None:
    long = len(gold.items) > 2 and len(answer.items) > 2
    if not long and (gold.left, gold.right) != (answer.left, answer.right):
        return False
    if gold.kind == answer.kind == "interval" and gold.name != answer.name:
        return False
    return _match(gold.items, answer.items, leaf)


def _is_vector(group: Group) -> bool:
    """Return whether the members are in an order and the brackets do not say anything else."""
    if group.kind == "matrix":
        return group.columns in (1, len(group.items))
    long = len(group.items) > 2 or all(isinstance(item, Group) for item in group.items)
    in_order = group.kind == "list" or (group.kind == "tuple" and long)
    return in_order or (group.left, group.right) == ("(", ")")


def _read_truths(group: Group) -> list[bool | None]:
    texts = [item.text.casefold() if isinstance(item, Leaf) else "" for item in group.items]
    return [_TRUTH.get(text) for text in texts]


def _drop_equal(items: Sequence[Node]) -> Sequence[Node]:
    return [
        item
        for index, item in enumerate(items)
        if not any(compare(item, other, undecided) for other in items[:index])
    ]


def _match(
    gold: Sequence[Node], answer: Sequence[Node], leaf: LeafComparison, any_order: bool = False
) -> bool | None:
    """Match members one to one; equality is transitive, so in any order the first match will do."""
    if len(gold) != len(answer):
        return False
    rest = list(answer)
    sure: bool | None = True
    for member in gold:
        equal: bool | None = False
        for index, other in enumerate(rest if any_order else rest[:1]):
            same = _compare(member, other, leaf)
            if same or not any_order:
                rest.pop(index)
                equal = same
                break
            equal = None if same is None else equal
        if equal is False:
            return False
        sure = sure and equal
    return sure
