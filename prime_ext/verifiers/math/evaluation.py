# SPDX-License-Identifier: Apache-2.0
"""Values of trees at sample points, in the worker only: they decide whether answers are equal.

mpmath evaluates the trees of the grammar; nothing here evaluates model text as Python. Points lie
where answers could differ: docs/reference/verifier_rules.md.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from mpmath import mp

from prime_ext.verifiers.math.answer_comparison import compare
from prime_ext.verifiers.math.answer_tree import (
    INFINITY,
    Equation,
    Group,
    Leaf,
    Node,
    PlainNumber,
    Relation,
)
from prime_ext.verifiers.math.expressions import ARITHMETIC, Expression, exact_value, walk
from prime_ext.verifiers.math.notation import list_spellings
from prime_ext.verifiers.math.structure import read

DIGITS = 100
AGREEMENT = 80
# Integrals, infinite series and limits are not exact.
ROUGH_AGREEMENT = 15
SET_AGREEMENT = 40
POINTS = 8
BRANCH_POINTS = 64
MAX_TERMS = 2000
MAX_EXPONENT = 5_000_000
_BRANCHES = frozenset(
    "abs floor ceil max min sgn arcsin arccos arctan arccot arcsec arccsc log ln Re Im norm".split()
)
_SCALES = (1, 1, 1, 3, 3, 12, 40, 150, 1100, 10**5, 10**9)
_ANGLE_FUNCTIONS = frozenset("sin cos tan cot sec csc cis".split())
_REAL_FUNCTIONS = frozenset("floor ceil sgn max min gcd lcm".split())
_SETS = frozenset(["tuple", "interval", "set", "cup", "cap", "setminus"])
Values = dict[str, Any]


class Undefined(Exception):
    """An expression has no value at a point."""


class Excessive(Exception):
    """A value takes too many steps or digits."""


def _factorial(value: Any) -> Any:
    if abs(value) > MAX_TERMS:
        raise Excessive("a factorial beyond all limits")
    return mp.factorial(value)


def _on_integers(function: Callable[..., int], *values: Any) -> Any:
    whole = [int(value) for value in values]
    if whole != list(values) or 0 in whole:
        raise Undefined("gcd of values that are not integers")
    return mp.mpf(function(*whole))


_SERIES = {"sum": (mp.nsum, mp.fsum), "prod": (mp.nprod, mp.fprod)}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(mp, name)
    for name in "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp ln floor ceil".split()
}
_FUNCTIONS |= {f"arc{name}": getattr(mp, f"a{name}") for name in "sin cos tan cot sec csc".split()}
_FUNCTIONS |= {f"ar{name}": getattr(mp, f"a{name}") for name in "sinh cosh tanh".split()}
_FUNCTIONS |= {
    "log": lambda value, base: mp.log(value) / mp.log(base),
    "cis": mp.expj, "abs": abs, "sgn": mp.sign, "Re": mp.re, "Im": mp.im, "conjugate": mp.conj,
    "factorial": _factorial, "binom": mp.binomial, "permutations": mp.ff, "max": max, "min": min,
    "gcd": lambda *values: _on_integers(math.gcd, *values),
    "lcm": lambda *values: _on_integers(math.lcm, *values),
}  # fmt: skip


def _apply_unknown(name: str, values: Sequence[Any]) -> Any:
    """Return the value of some smooth function, the same for the same name."""
    generator = random.Random(f"{name}/{len(values)}")
    total = mp.mpf(generator.random())
    for value in values:
        total += value * mp.mpf(generator.uniform(0.3, 0.7))
    return mp.sin(total) + total / 3


class _Evaluator:
    """Values of expressions at one point; ``real``: roots and logarithms are those of reals."""

    def __init__(self, values: Values, real: bool, terms: list[int] | None = None) -> None:
        constants = {"\\pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}
        self.values = constants | {"\\infty": mp.inf} | values
        self.real = real
        self.angles = 0
        self.terms = terms or [0]  # of all sums so far

    def evaluate(self, tree: Expression) -> Any:
        """Return the value. Raises :class:`Undefined`."""
        value = self.evaluate_bound(tree)
        if not mp.isfinite(value):
            raise Undefined("infinite")
        return value

    def evaluate_bound(self, tree: Expression) -> Any:
        """Return the value, which may be infinite if that is all of the expression."""
        try:
            return self._evaluate(tree)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
            raise Undefined(str(error)) from error

    def _evaluate(self, tree: Expression) -> Any:
        operation, *operands = tree
        if operation == "number":
            return mp.mpf(operands[0].numerator) / operands[0].denominator
        if operation == "symbol":
            if operands[0] not in self.values:
                raise Undefined(f"{operands[0]} has no value")
            return self.values[operands[0]]
        if operation in ARITHMETIC:
            return ARITHMETIC[operation](*map(self._evaluate, operands))
        if operation in _SERIES:
            return self._accumulate(operation, *operands)
        return getattr(self, f"_evaluate_{operation}")(*operands)

    def _evaluate_base(self, digits: str, base: int) -> Any:
        whole, _, places = digits.partition(".")
        return mp.mpf(int(whole + places, base)) / base ** len(places)

    def _evaluate_degrees(self, operand: Expression) -> Any:
        value = self._evaluate(operand)
        return value * mp.pi / 180 if self.angles else value

    def _follow(self, variable: str, body: Expression) -> Callable[[Any], Any]:
        """Return the body as a function of its variable."""

        def evaluate_at(value: Any) -> Any:
            values = {**self.values, variable: value}
            return _Evaluator(values, self.real, self.terms)._evaluate(body)

        return evaluate_at

    def _evaluate_integral(
        self, variable: str, low: Expression, high: Expression, body: Expression
    ) -> Any:
        ends = [self._evaluate(low), self._evaluate(high)]
        return mp.quad(self._follow(variable, body), ends)

    def _accumulate(
        self, operation: str, variable: str, low: Expression, high: Expression, body: Expression
    ) -> Any:
        """Return the value of a sum or product."""
        infinite, finite = _SERIES[operation]
        evaluate_at = self._follow(variable, body)
        start, end = self._evaluate(low), self._evaluate(high)
        if mp.isinf(end):
            return infinite(evaluate_at, [start, end])
        if start != int(start.real) or end != int(end.real):
            raise Undefined("bounds of a sum")
        self.terms[0] += max(0, int((end - start).real))
        if self.terms[0] > MAX_TERMS:
            raise Excessive(f"more than {MAX_TERMS} terms")
        return finite([evaluate_at(mp.mpf(index)) for index in range(int(start), int(end) + 1)])

    def _evaluate_limit(self, variable: str, bound: Expression, body: Expression) -> Any:
        evaluate_at = self._follow(variable, body)
        point = self._evaluate(bound)
        if mp.isinf(point):
            return evaluate_at(mp.sign(point) * mp.mpf(10) ** 30)
        try:
            return _Evaluator({**self.values, variable: point}, self.real).evaluate(body)
        except Undefined:
            return evaluate_at(point + mp.mpf(10) ** -30)

    def _evaluate_power(self, base: Expression, exponent: Expression) -> Any:
        left, right = self._evaluate(base), self._evaluate(exponent)
        exact = exact_value(exponent)
        if left == 0 and (exact is None or exact <= 0):
            raise Undefined("a power of zero")
        if left and abs(mp.log(abs(left))) * abs(mp.re(right)) > MAX_EXPONENT:
            raise Excessive("a power beyond all limits")
        if exact is None:
            if self.real and left.real < 0 and right != int(right.real):
                raise Undefined("a power of a negative number")
            return mp.power(left, right)
        if exact.denominator == 1:
            return mp.power(left, int(exact))
        if self.real:
            return mp.power(self._take_root(left, exact.denominator), exact.numerator)
        return mp.power(left, right)

    def _evaluate_root(self, base: Expression, degree: Expression) -> Any:
        value = self._evaluate(base)
        exact = exact_value(degree)
        if exact is None or exact.denominator != 1 or exact < 1:
            return mp.power(value, 1 / self._evaluate(degree))
        return self._take_root(value, int(exact))

    def _take_root(self, value: Any, degree: int) -> Any:
        if self.real and isinstance(value, mp.mpf) and value < 0:
            if degree % 2 == 0:
                raise Undefined("an even root of a negative number")
            return -mp.root(-value, degree)
        return mp.root(value, degree)

    def _evaluate_call(self, name: str, *operands: Expression) -> Any:
        self.angles += name in _ANGLE_FUNCTIONS
        values = [self._evaluate(operand) for operand in operands]
        self.angles -= name in _ANGLE_FUNCTIONS
        if name not in _FUNCTIONS:
            return _apply_unknown(name, values)
        if name in _REAL_FUNCTIONS and any(mp.im(value) for value in values):
            raise Undefined(f"{name} of a complex number")
        value = _FUNCTIONS[name](*values)
        if not mp.isfinite(value) or (self.real and mp.im(value)):
            raise Undefined(f"{name} beyond its domain")
        return value


def _list_symbols(trees: Sequence[Expression]) -> list[str]:
    bound = {"\\pi", "e", "\\infty", "i"}
    names = set()
    for tree in trees:
        for node in walk(tree):
            if node[0] in ("sum", "prod", "integral", "limit"):
                bound.add(node[1])
            elif node[0] == "symbol":
                names.add(node[1])
    return sorted(names - bound)


def _list_constants(trees: Sequence[Expression]) -> list[Fraction]:
    """Return numbers in the trees and where they may put branch points."""
    values = {exact_value(node) for tree in trees for node in walk(tree) if node[0] != "sum"}
    small = sorted(value for value in values if value and 0 < abs(value) < 10**12)[:8]
    centers = [*small, *(-value for value in small)]
    return [*centers, *(left / right for left in centers for right in small)][:40]


def _counts(node: Expression) -> bool:
    """Return whether a node needs integers."""
    if node[0] in ("sum", "prod"):
        return bool(_list_symbols(node[2:4]))
    return node[:2] in (("call", "gcd"), ("call", "lcm")) and bool(_list_symbols([node]))


def _has_branches(node: Expression) -> bool:
    if node[0] == "power":
        return (exact_value(node[2]) or Fraction(1, 2)).denominator > 1
    return node[0] == "root" or (node[0] == "call" and node[1] in _BRANCHES)


def _sample(trees: Sequence[Expression], real: bool) -> Iterator[Values]:
    """Yield sample points: both signs, several scales, around the numbers in the trees."""
    symbols = _list_symbols(trees)
    if not symbols:
        yield {}
        return
    nodes = [node for tree in trees for node in walk(tree)]
    generator = random.Random(len(symbols))
    if any(map(_counts, nodes)):
        for _ in range(POINTS):
            yield {symbol: mp.mpf(generator.randrange(1, 13)) for symbol in symbols}
        return
    branches = real and any(map(_has_branches, nodes))
    constants = _list_constants(trees) if branches else []

    def choose(number: int) -> Any:
        if not branches or number < 3:
            return mp.mpf(generator.randrange(-4000, 4000) * 2 + 1) / 2003
        if number % 6 == 4:
            # At branches themselves, where roundings differ.
            return mp.mpf((number // 6) * (-1) ** number - 3)
        if constants and number % 2:
            # Each number in the trees has a point on both sides.
            center = constants[number // 4 % len(constants)]
            shift = (-1) ** (number // 2) * mp.mpf(generator.randrange(1, 2000)) / 1009
            return mp.mpf(center.numerator) / center.denominator + shift
        return mp.mpf(generator.randrange(-4000, 4000) * 2 + 1) / 8009 * generator.choice(_SCALES)

    for number in range(BRANCH_POINTS if branches else POINTS):
        point = {symbol: choose(number) for symbol in symbols}
        yield point
        if branches and number < 12:
            yield {symbol: abs(value) for symbol, value in point.items()}


def _value(tree: Expression, point: Values, real: bool) -> Any:
    """Return the value of a tree, or None if it has none."""
    try:
        return _Evaluator(point, real).evaluate(tree)
    except Undefined:
        return None


def _is_close(left: Any, right: Any, agreement: int) -> bool:
    if mp.isinf(left) or mp.isinf(right):
        return False
    difference = abs(left - right)
    scale = max(abs(left), abs(right))
    return bool(
        difference <= scale * mp.mpf(10) ** -agreement
        or scale < mp.mpf(10) ** -90
        or (agreement == ROUGH_AGREEMENT and difference < mp.mpf(10) ** -ROUGH_AGREEMENT)
    )


def _trees_equal(gold: Expression, answer: Expression) -> bool:
    """Compare two expressions at all sample points where they have values."""
    if gold == answer:
        return True
    exact = exact_value(gold), exact_value(answer)
    if None not in exact:
        return exact[0] == exact[1]
    nodes = [*walk(gold), *walk(answer)]
    rough = any(
        node[0] in ("integral", "limit")
        or (node[0] in ("sum", "prod") and node[3] == INFINITY.tree)
        for node in nodes
    )
    is_complex = ("symbol", "i") in nodes or any(node[1:2] == ("cis",) for node in nodes)
    with mp.workdps(30 if rough else DIGITS):
        for real in (False,) if is_complex else (True, False):
            agree = _agree((gold, answer), real, ROUGH_AGREEMENT if rough else AGREEMENT)
            if agree is not None:
                return agree
    return False


def _agree(trees: tuple[Expression, Expression], real: bool, agreement: int) -> bool | None:
    """Compare at the points; None if there are too few where both have values."""
    symbols = _list_symbols(trees)
    agreed = compared = 0
    for point in _sample(trees, real):
        try:
            left, right = (_value(tree, point, real) for tree in trees)
        except Excessive:
            continue
        compared += 1
        if left is None or right is None:
            if left is not right and len(symbols) < 2 and bool(symbols) == real:
                return False
            continue
        if not _is_close(left, right, agreement):
            return False
        agreed += 1
    if not compared:
        _value(trees[0], point, real)  # raises if the gold answer is the one that is too complex
    return True if agreed >= min(3, compared) and agreed else None


def _rounds(tree: Expression, decimal: PlainNumber) -> bool:
    """Return whether an exact value that needs over 12 places rounds to a gold decimal."""
    with mp.workdps(DIGITS):
        try:
            value = _value(tree, {}, True)
        except Excessive:
            return False
        if value is None or mp.im(value) != 0:
            return False
        value = mp.re(value)
        scaled = value * 10**12
        if abs(scaled - mp.nint(scaled)) * mp.mpf(10) ** 12 <= 1:
            return False
        exact = Fraction(int(mp.nint(value * 10**60)), 10**60)
    return PlainNumber(exact).rounds_to(decimal)


_FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le"}


def _list_links(node: Node) -> list[tuple[str, Expression]]:
    """Return operator and difference of the sides of each link of a chain."""
    chain = node.relation if isinstance(node, Group) else node
    if isinstance(chain, Equation):
        chain = Relation(chain.sides[-2:], ("=",))
    trees = [side.tree for side in chain.sides] if isinstance(chain, Relation) else []
    if not isinstance(chain, Relation) or None in trees:
        return []
    links = zip(chain.operators, pairwise(trees), strict=True)
    return [(sign, ("subtract", left, right)) for sign, (left, right) in links]


def _links_equal(gold: tuple[str, Expression], answer: tuple[str, Expression]) -> bool:
    """Return whether differences are proportional, with the right sign for inequalities."""
    (sign, left), (other, right) = gold, answer
    ratios = []
    with mp.workdps(DIGITS):
        points = list(_sample((left, right), True))
        for point in points:
            try:
                values = [_value(tree, point, True) for tree in (left, right)]
            except Excessive:
                continue
            if None in values or (values[0] == 0) != (values[1] == 0):
                continue
            if values[0] != 0:
                ratios.append(values[0] / values[1])
        if len(ratios) < min(3, len(points)) or any(map(mp.im, ratios)):
            return False
        if len(points) == 1:
            ratios.append(mp.sign(ratios[0]))
        if not all(_is_close(ratio, ratios[0], AGREEMENT) for ratio in ratios):
            return False
        positive = ratios[0] > 0
    return (other if positive else _FLIPPED.get(other, other)) == sign


def _chains_equal(gold: Node, answer: Node) -> bool:
    links, others = _list_links(gold), _list_links(answer)
    if not links or len(links) != len(others):
        return False
    matches = [[_links_equal(link, other) for other in others] for link in links]
    return all(map(any, matches)) and all(map(any, zip(*matches, strict=True)))


def _contains(node: Node, x: Any) -> bool:
    """Return whether a set of real numbers contains one. Raises :class:`Undefined`."""
    if isinstance(node, Leaf):
        return _is_close(_evaluate_bound(node), x, SET_AGREEMENT)
    if isinstance(node, Relation):
        return _holds(node, x)
    if not isinstance(node, Group) or node.kind not in _SETS:
        raise Undefined("no set of numbers")
    if node.relation:
        return _holds(node.relation, x)
    if node.kind in ("tuple", "interval") and len(node.items) == 2:
        low, high = map(_evaluate_bound, node.items)
        above = node.left == "[" if _is_close(x, low, SET_AGREEMENT) else x > low
        below = node.right == "]" if _is_close(x, high, SET_AGREEMENT) else x < high
        return bool(above and below)
    inside = [_contains(item, x) for item in node.items]
    if node.kind == "setminus":
        return inside[0] and not inside[1]
    return all(inside) if node.kind == "cap" else any(inside)


def _holds(relation: Relation, x: Any) -> bool:
    """Return whether a chain of inequalities holds for the value of its only variable."""
    values = []
    for side in relation.sides:
        if side.tree is None:
            raise Undefined("no set of numbers")
        values.append(_value(side.tree, dict.fromkeys(_list_symbols([side.tree]), x), True))
    if None in values:
        return False
    for sign, (left, right) in zip(relation.operators, pairwise(values), strict=True):
        if _is_close(left, right, SET_AGREEMENT):
            if sign not in ("=", "le", "ge"):
                return False
        elif sign != "ne" and sign not in (("<", "le") if left < right else (">", "ge")):
            return False
    return True


def _evaluate_bound(node: Node) -> Any:
    if not isinstance(node, Leaf) or node.tree is None:
        raise Undefined("a bound without a value")
    return _Evaluator({}, True).evaluate_bound(node.tree)


def _walk_nodes(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Group):
        for item in (*node.items, *filter(None, [node.relation])):
            yield from _walk_nodes(item)


def _list_ends(node: Node) -> Iterator[Any]:
    """Yield the numbers at which a set may begin or end."""
    for inner in _walk_nodes(node):
        if isinstance(inner, Leaf) and inner.tree is not None:
            value = _evaluate_bound(inner)
            yield from [value] if mp.isfinite(value) else []
        elif isinstance(inner, Relation):
            for constant in _list_constants([side.tree for side in inner.sides if side.tree]):
                value = mp.mpf(constant.numerator) / constant.denominator
                yield from (value, -value, mp.sqrt(abs(value)), -mp.sqrt(abs(value)))


def _sets_equal(gold: Node, answer: Node) -> bool:
    """Compare sets of real numbers at their ends, next to them, and at points of all sizes."""
    relations = [
        node for tree in (gold, answer) for node in _walk_nodes(tree) if isinstance(node, Relation)
    ]
    trees = [side.tree for relation in relations for side in relation.sides if side.tree]
    if len(_list_symbols(trees)) > 1:
        return False
    generator = random.Random(0)
    with mp.workdps(50):
        points = [
            mp.mpf(generator.uniform(-1, 1)) * scale
            for scale in (0.5, 2, 8, 40, 200, 10**4)
            for _ in range(20)
        ]
        try:
            for end in [*_list_ends(gold), *_list_ends(answer)][:200]:
                shift = max(mp.mpf(1), abs(end)) * mp.mpf(10) ** -9
                points += [end, end - shift, end + shift]
            return all(_contains(gold, x) == _contains(answer, x) for x in points)
        except (Undefined, Excessive, TypeError, ValueError):
            return False


def compare_values(gold: Node, answer: Node) -> bool:
    """Compare leaves, relations and sets, and always decide."""
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        if gold.tree is None or answer.tree is None:
            return False
        if gold.number and not answer.number and _rounds(answer.tree, gold.number):
            return True
        return gold.percent == answer.percent and _trees_equal(gold.tree, answer.tree)
    if _chains_equal(gold, answer):
        return True
    if any(isinstance(node, Equation | Leaf) for node in (gold, answer)):
        return False
    return _sets_equal(gold, answer)


def judge(gold: str, answer: str) -> tuple[str, str]:
    """Return ``correct``, ``wrong`` or ``error`` (of the gold answer) and why."""
    for gold_spelling, spelling in list_spellings(gold, answer):
        try:
            if compare(read(gold_spelling), read(spelling), compare_values):
                return "correct", "equal at sample points"
        except Excessive as error:
            return "error", f"the gold answer is too complex: {error}"
    return "wrong", "different at a sample point"


def warm_up() -> None:
    """Compute the constants and tables that mpmath caches."""
    judge(r"\frac{\sqrt{3}+\pi}{2}+\sin x+\ln 2", r"e^x")
