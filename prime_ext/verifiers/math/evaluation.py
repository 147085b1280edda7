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
from prime_ext.verifiers.math.expressions import Expression, exact_value, walk
from prime_ext.verifiers.math.notation import list_spellings
from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.structure import (
    INFINITY,
    Equation,
    Group,
    Leaf,
    Node,
    Relation,
    Side,
    read,
)

DIGITS = 100
AGREEMENT = 80
# Integrals, infinite series and limits are not exact.
ROUGH_AGREEMENT = 15
POINTS = 8
BRANCH_POINTS = 64
MAX_TERMS = 2000
MAX_EXPONENT = 5_000_000
_BRANCHES = frozenset(
    "abs floor ceil max min sgn arcsin arccos arctan arccot arcsec arccsc log ln Re Im norm".split()
)
_SETS = frozenset(["tuple", "interval", "set", "union", "cap", "setminus"])
Values = dict[str, Any]


class Undefined(Exception):
    """An expression has no value at a point."""


class Excessive(Exception):
    """A value takes too many steps or digits."""


_TRIGONOMETRIC: dict[str, Callable[[Any], Any]] = {
    name: getattr(mp, name)
    for name in "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp".split()
}
_INVERSE: dict[str, Callable[[Any], Any]] = {
    **{f"arc{name}": getattr(mp, f"a{name}") for name in "sin cos tan cot sec csc".split()},
    **{f"ar{name}": getattr(mp, f"a{name}") for name in "sinh cosh tanh".split()},
}


class _Evaluator:
    """Values of expressions at one point; ``real``: roots and logarithms are those of reals."""

    def __init__(self, values: Values, real: bool, terms: list[int] | None = None) -> None:
        self.values = values
        self.real = real
        self.angles = 0
        self.terms = terms or [0]  # of all sums so far

    def evaluate(self, tree: Expression) -> Any:
        """Return the value. Raises :class:`Undefined`."""
        try:
            value = self._evaluate(tree)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
            raise Undefined(str(error)) from error
        if not mp.isfinite(value):
            raise Undefined("infinite")
        return value

    def _evaluate(self, tree: Expression) -> Any:
        operation, *operands = tree
        if operation == "number":
            return mp.mpf(operands[0].numerator) / operands[0].denominator
        if operation == "symbol":
            return self._symbol(operands[0])
        if operation == "base":
            digits, base = operands
            whole, _, places = digits.partition(".")
            return mp.mpf(int(whole + places, base)) / base ** len(places)
        if operation in ("sum", "prod"):
            return self._series(tree)
        if operation == "integral":
            variable, low, high, body = operands
            return mp.quad(self._along(variable, body), [self._bound(low), self._bound(high)])
        if operation == "limit":
            return self._limit(*operands)
        if operation == "power":
            return self._power(*operands)
        if operation == "call":
            return self._call(operands[0], operands[1:])
        values = [self._evaluate(operand) for operand in operands]
        if operation == "root":
            return self._root(values[0], operands[1])
        if operation == "degrees":
            return values[0] * mp.pi / 180 if self.angles else values[0]
        if operation == "negate":
            return -values[0]
        left, right = values
        if operation == "add":
            return left + right
        if operation == "subtract":
            return left - right
        if operation == "multiply":
            return left * right
        if right == 0:
            raise Undefined("a division by zero")
        return left / right

    def _symbol(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        constants = {"\\pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}
        if name not in constants:
            raise Undefined(f"{name} has no value")
        return +constants[name]

    def _bound(self, tree: Expression) -> Any:
        if tree == INFINITY.tree:
            return mp.inf
        if tree == ("negate", INFINITY.tree):
            return -mp.inf
        return self._evaluate(tree)

    def _along(self, variable: str, body: Expression) -> Callable[[Any], Any]:
        def at(value: Any) -> Any:
            values = {**self.values, variable: value}
            return _Evaluator(values, self.real, self.terms)._evaluate(body)

        return at

    def _series(self, tree: Expression) -> Any:
        operation, variable, low, high, body = tree
        at = self._along(variable, body)
        start, end = self._bound(low), self._bound(high)
        if mp.isinf(end):
            return (mp.nsum if operation == "sum" else mp.nprod)(at, [start, end])
        if start != int(start.real) or end != int(end.real):
            raise Undefined("bounds of a sum")
        self.terms[0] += max(0, int((end - start).real))
        if self.terms[0] > MAX_TERMS:
            raise Excessive(f"more than {MAX_TERMS} terms")
        terms = [at(mp.mpf(index)) for index in range(int(start), int(end) + 1)]
        return mp.fsum(terms) if operation == "sum" else mp.fprod(terms)

    def _limit(self, variable: str, bound: Expression, body: Expression) -> Any:
        at = self._along(variable, body)
        point = self._bound(bound)
        if mp.isinf(point):
            return at(mp.sign(point) * mp.mpf(10) ** 30)
        try:
            return _Evaluator({**self.values, variable: point}, self.real).evaluate(body)
        except Undefined:
            return at(point + mp.mpf(10) ** -30)

    def _power(self, base: Expression, exponent: Expression) -> Any:
        left = self._evaluate(base)
        exact = exact_value(exponent)
        if exact is None:
            right = self._evaluate(exponent)
            if left == 0:
                raise Undefined("a power of zero")
            if self.real and left.real < 0 and right != int(right.real):
                raise Undefined("a power of a negative number")
            self._limit_size(left, right)
            return mp.power(left, right)
        if left == 0 and exact <= 0:
            raise Undefined("a power of zero")
        self._limit_size(left, exact)
        if exact.denominator == 1:
            return mp.power(left, int(exact))
        root = self._root(left, ("number", Fraction(exact.denominator)))
        return (
            mp.power(root, exact.numerator)
            if self.real
            else mp.power(left, mp.mpf(exact.numerator) / exact.denominator)
        )

    def _limit_size(self, base: Any, exponent: Any) -> None:
        size = (
            abs(mp.log(abs(base)))
            * abs(float(mp.re(exponent)) if not isinstance(exponent, Fraction) else exponent)
            if base
            else 0
        )
        if size > MAX_EXPONENT:
            raise Excessive("a power beyond all limits")

    def _root(self, value: Any, degree: Expression) -> Any:
        exact = exact_value(degree)
        if exact is None:
            return mp.power(value, 1 / self._evaluate(degree))
        if exact.denominator != 1 or exact < 1:
            return mp.power(value, 1 / (mp.mpf(exact.numerator) / exact.denominator))
        if isinstance(value, mp.mpf) and value < 0:
            if exact % 2 and self.real:
                return -mp.root(-value, int(exact))
            if self.real:
                raise Undefined("an even root of a negative number")
        return mp.root(value, int(exact))

    def _call(self, name: str, operands: Sequence[Expression]) -> Any:
        if name in ("sin", "cos", "tan", "cot", "sec", "csc", "cis"):
            self.angles += 1
            value = self._evaluate(operands[0])
            self.angles -= 1
            return mp.expj(value) if name == "cis" else _TRIGONOMETRIC[name](value)
        values = [self._evaluate(operand) for operand in operands]
        first = values[0]
        if name in _TRIGONOMETRIC and len(values) == 1:
            return _TRIGONOMETRIC[name](first)
        if name in _INVERSE and len(values) == 1:
            value = _INVERSE[name](first)
            if self.real and mp.im(value) != 0:
                raise Undefined(f"{name} beyond its domain")
            return value
        if name in ("log", "ln"):
            if first == 0 or (self.real and (mp.im(first) or first < 0)):
                raise Undefined("a logarithm of a number that is not positive")
            return mp.log(first) if name == "ln" else mp.log(first) / mp.log(values[1])
        if name == "abs":
            return abs(first)
        if name == "factorial":
            if abs(first) > MAX_TERMS:
                raise Excessive("a factorial beyond all limits")
            return mp.factorial(first)
        if name == "binom":
            return mp.binomial(*values)
        if name == "permutations":
            return mp.ff(*values)
        if name == "conjugate":
            return mp.conj(first)
        if name in ("Re", "Im"):
            return mp.re(first) if name == "Re" else mp.im(first)
        if mp.im(first) == 0 and name in ("floor", "ceil", "sgn"):
            return {"floor": mp.floor, "ceil": mp.ceil, "sgn": mp.sign}[name](first)
        if name in ("max", "min") and values[1:] and not any(mp.im(value) for value in values):
            return (max if name == "max" else min)(values)
        if name in ("gcd", "lcm"):
            whole = [int(value) for value in values]
            if whole != values or 0 in whole:
                raise Undefined("gcd of values that are not integers")
            return mp.mpf((math.gcd if name == "gcd" else math.lcm)(*whole))
        # An unknown function: some smooth one, the same for the same name.
        generator = random.Random(f"{name}/{len(values)}")
        total = mp.mpf(generator.random())
        for value in values:
            total += value * mp.mpf(generator.uniform(0.3, 0.7))
        return mp.sin(total) + total / 3


def _symbols(trees: Sequence[Expression]) -> list[str]:
    bound = set()
    names = set()
    for tree in trees:
        for part in walk(tree):
            if part[0] in ("sum", "prod", "integral", "limit"):
                bound.add(part[1])
            elif part[0] == "symbol":
                names.add(part[1])
    return sorted(names - bound - {"\\pi", "e", "\\infty", "i"})


def _constants(trees: Sequence[Expression]) -> list[Fraction]:
    """Return numbers in the trees and where they may put branch points."""
    values = {exact_value(part) for tree in trees for part in walk(tree) if part[0] != "sum"}
    small = sorted(value for value in values if value and 0 < abs(value) < 10**12)[:8]
    return (
        small + [left * sign / right for left in small for right in small for sign in (1, -1)][:40]
    )


def _points(trees: Sequence[Expression], real: bool) -> Iterator[Values]:
    """Yield sample points: both signs, several scales, around the numbers in the trees."""
    symbols = _symbols(trees)
    parts = [part for tree in trees for part in walk(tree)]
    generator = random.Random(len(symbols))
    if any(
        part[0] in ("sum", "prod")
        and _symbols([part[2], part[3]])
        or part[0] == "call"
        and (part[1] in ("gcd", "lcm") and _symbols([part]))
        for part in parts
    ):
        for _ in range(POINTS):
            yield {symbol: mp.mpf(generator.randrange(1, 13)) for symbol in symbols}
        return
    branches = real and any(
        part[0] == "root"
        or part[0] == "call"
        and part[1] in _BRANCHES
        or part[0] == "power"
        and (exact_value(part[2]) or Fraction(1, 2)).denominator > 1
        for part in parts
    )
    constants = _constants(trees) if branches else []
    scales = (1, 1, 1, 3, 3, 12, 40, 150, 1100, 10**5, 10**9)

    def value(number: int) -> Any:
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
        return mp.mpf(generator.randrange(-4000, 4000) * 2 + 1) / 8009 * generator.choice(scales)

    for number in range(BRANCH_POINTS if branches else POINTS):
        point = {symbol: value(number) for symbol in symbols}
        yield point
        if branches and number < 12:
            yield {symbol: abs(one) for symbol, one in point.items()}


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


def trees_equal(wanted: Expression, given: Expression) -> bool:
    """Compare two expressions at all sample points where they have values."""
    if wanted == given:
        return True
    exact = exact_value(wanted), exact_value(given)
    if None not in exact:
        return exact[0] == exact[1]
    trees = (wanted, given)
    parts = [part for tree in trees for part in walk(tree)]
    rough = any(
        part[0] in ("integral", "limit")
        or (part[0] in ("sum", "prod") and part[3] == INFINITY.tree)
        for part in parts
    )
    agreement = ROUGH_AGREEMENT if rough else AGREEMENT
    is_complex = ("symbol", "i") in parts or any(part[1:2] == ("cis",) for part in parts)
    with mp.workdps(30 if rough else DIGITS):
        for real in (False,) if is_complex else (True, False):
            same = _agree(trees, real, agreement)
            if same is not None:
                return same
    return False


def _agree(trees: tuple[Expression, Expression], real: bool, agreement: int) -> bool | None:
    """Compare at the points; None if there are too few where both have values."""
    symbols = _symbols(trees)
    agreed = looked = 0
    excess: Excessive | None = None
    for point in _points(trees, real) if symbols else [{}]:
        try:
            left, right = (_value(tree, point, real) for tree in trees)
        except Excessive as error:
            excess = error
            continue
        looked += 1
        if left is None or right is None:
            if (left is None) != (right is None) and len(symbols) < 2 and (real or not symbols):
                if symbols or not real:
                    return False
            continue
        if not _is_close(left, right, agreement):
            return False
        agreed += 1
    if not looked and excess:
        _value(trees[0], point, real)  # raises if the gold answer is the one that is too complex
    return True if agreed >= min(3, looked) and agreed else None


def _rounds(tree: Expression, decimal: PlainNumber) -> bool:
    """Return whether an exact value that needs over 12 places rounds to a gold decimal."""
    if _symbols([tree]):
        return False
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


def _links(node: Node) -> list[tuple[str, Expression]]:
    """Return operator and difference of the sides of each link of a chain."""
    chain = node.relation if isinstance(node, Group) else node
    if isinstance(chain, Equation):
        sides: Sequence[Side] = chain.sides[-2:]
        operators: Sequence[str] = ("=",)
    elif isinstance(chain, Relation):
        sides, operators = chain.sides, chain.operators
    else:
        return []
    trees = [side.tree for side in sides]
    if None in trees:
        return []
    return [
        (operator, ("subtract", left, right))
        for operator, (left, right) in zip(operators, pairwise(trees), strict=True)
    ]


def _links_equal(wanted: tuple[str, Expression], given: tuple[str, Expression]) -> bool:
    """Return whether differences are proportional, with the right sign for inequalities."""
    (operator, left), (other, right) = wanted, given
    ratios = []
    with mp.workdps(DIGITS):
        points = list(_points((left, right), True)) if _symbols([left, right]) else [{}]
        for point in points:
            try:
                values = [_value(tree, point, True) for tree in (left, right)]
            except Excessive:
                continue
            if None in values or (values[0] == 0) != (values[1] == 0):
                continue
            if values[0] != 0:
                ratios.append(values[0] / values[1])
        if len(ratios) < min(3, len(points)) or not all(
            _is_close(ratio, ratios[0], AGREEMENT) for ratio in ratios
        ):
            return False
        if len(points) == 1 and not _is_close(abs(ratios[0]), mp.mpf(1), AGREEMENT):
            return False
        positive = ratios[0] > 0
    return (other if positive else _FLIPPED.get(other, other)) == operator


def _chains_equal(gold: Node, answer: Node) -> bool:
    wanted, given = _links(gold), _links(answer)
    if not wanted or len(wanted) != len(given):
        return False
    matches = [[_links_equal(link, other) for other in given] for link in wanted]
    return all(map(any, matches)) and all(map(any, zip(*matches, strict=True)))


def _contains(node: Node, variable: str, x: Any) -> bool:
    """Return whether a set of real numbers contains one. Raises :class:`Undefined`."""
    if isinstance(node, Leaf):
        if node.tree is None:
            raise Undefined("a set that is not known")
        return bool(_is_close(_Evaluator({}, True).evaluate(node.tree), x, 40))
    if isinstance(node, Group) and node.kind in _SETS:
        if node.kind in ("tuple", "interval") and len(node.items) == 2 and not node.relation:
            low, high = (_bound(item) for item in node.items)
            above = x > low or (node.left == "[" and _is_close(x, low, 40))
            below = x < high or (node.right == "]" and _is_close(x, high, 40))
            strict = (node.left == "(" and _is_close(x, low, 40)) or (
                node.right == ")" and _is_close(x, high, 40)
            )
            return bool(above and below and not strict)
        if node.relation:
            return _contains(node.relation, variable, x)
        if node.kind == "setminus":
            return _contains(node.items[0], variable, x) and not _contains(
                node.items[1], variable, x
            )
        inside = [_contains(item, variable, x) for item in node.items]
        return all(inside) if node.kind == "cap" else any(inside)
    if not isinstance(node, Relation):
        raise Undefined("no set of numbers")
    values = []
    for side in node.sides:
        if side.tree is None or len(names := _symbols([side.tree])) > 1:
            raise Undefined("no set of numbers")
        value = _value(side.tree, {name: x for name in names}, True)
        if value is None:
            return False
        values.append(value)
    for operator, (left, right) in zip(node.operators, pairwise(values), strict=True):
        equal = _is_close(left, right, 40)
        holds = {
            "=": equal,
            "ne": not equal,
            "<": left < right and not equal,
            "le": left < right or equal,
            ">": left > right and not equal,
            "ge": left > right or equal,
        }
        if operator not in holds or not holds[operator]:
            return False
    return True


def _bound(node: Node) -> Any:
    if not isinstance(node, Leaf) or node.tree is None:
        raise Undefined("a bound without a value")
    return _Evaluator({}, True)._bound(node.tree)


def _boundaries(node: Node) -> Iterator[Any]:
    if isinstance(node, Leaf) and node.tree is not None:
        value = _Evaluator({}, True)._bound(node.tree)
        if mp.isfinite(value):
            yield value
    elif isinstance(node, Group):
        for item in node.items:
            yield from _boundaries(item)
    if isinstance(node, Relation | Group):
        trees = [side.tree for side in _sides(node) if side.tree is not None]
        for constant in _constants(trees):
            value = mp.mpf(constant.numerator) / constant.denominator
            yield from (value, -value, mp.sqrt(abs(value)), -mp.sqrt(abs(value)))


def _sides(node: Relation | Group) -> Sequence[Side]:
    chain = node.relation if isinstance(node, Group) else node
    return chain.sides if chain else ()


def _sets_equal(wanted: Node, given: Node) -> bool:
    """Compare sets of real numbers at their ends, beside them, and at points of all sizes."""
    names = {
        name
        for node in (wanted, given)
        for relation in _relations(node)
        for side in relation.sides
        if side.tree is not None
        for name in _symbols([side.tree])
    }
    if len(names) > 1:
        return False
    variable = next(iter(names), "x")
    generator = random.Random(0)
    with mp.workdps(50):
        try:
            ends = [*_boundaries(wanted), *_boundaries(given)]
            points = [
                mp.mpf(generator.uniform(-1, 1)) * scale
                for scale in (0.5, 2, 8, 40, 200, 10**4)
                for _ in range(20)
            ]
            for end in ends[:200]:
                beside = max(mp.mpf(1), abs(end)) * mp.mpf(10) ** -9
                points += [end, end - beside, end + beside]
            return all(
                _contains(wanted, variable, x) == _contains(given, variable, x) for x in points
            )
        except (Undefined, Excessive, TypeError, ValueError):
            return False


def _relations(node: Node) -> Iterator[Relation]:
    if isinstance(node, Relation):
        yield node
    elif isinstance(node, Group):
        if node.relation:
            yield node.relation
        for item in node.items:
            yield from _relations(item)


def leaf(gold: Node, answer: Node) -> bool:
    """Compare leaves, relations and sets, and always decide."""
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        if gold.tree is None or answer.tree is None:
            return False
        if gold.number and not answer.number and _rounds(answer.tree, gold.number):
            return True
        if gold.percent != answer.percent:
            return False
        return trees_equal(gold.tree, answer.tree)
    if _chains_equal(gold, answer):
        return True
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return False
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        return False
    return _sets_equal(gold, answer)


def judge(gold: str, answer: str) -> tuple[str, str]:
    """Return ``correct``, ``wrong`` or ``error`` (of the gold answer) and why."""
    for wanted, given in list_spellings(gold, answer):
        try:
            if compare(read(wanted), read(given), leaf):
                return "correct", "equal at sample points"
        except Excessive as error:
            return "error", f"the gold answer is too complex: {error}"
    return "wrong", "different at a sample point"


def warm_up() -> None:
    """Compute the constants and tables that mpmath caches."""
    judge(r"\frac{\sqrt{3}+\pi}{2}+\sin x+\ln 2", r"e^x")
