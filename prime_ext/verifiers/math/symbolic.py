# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Computer algebra, in the worker only: does a prediction equal the gold answer?

math-verify's parser (latex2sympy2_extended) reads LaTeX with a grammar; nothing here evaluates model text as Python.
Its own extraction, normalisation and comparison of lists, sets, intervals, relations and numbers are not used, because
they forgive too much for a reward: ``R^2-r^2`` reads as 0 (letters are lower-cased), ``52_8`` as 52, ``2(3)`` as 5,
numbers below 10^-6 equal each other, equations without real solutions all equal each other, units are cut off by
letter. So structure and numbers are compared by :mod:`prime_ext.verifiers.math.compare`, and here remain single
expressions:

1. Both are evaluated at :data:`POINTS` random points (the same ones for the same pair), or once if they have no free
   symbols, with :data:`PRECISION` digits. A relative difference beyond 10^-:data:`AGREEMENT` at any of them, or a value
   where the other has none, means wrong. If they agree everywhere, at least at three points, that is taken for
   equality. ``i`` is the imaginary unit. Different letters are different variables.
2. Equations are equal if the differences of their sides are proportional; inequalities too, with the right sign.
3. Where evaluation says nothing (unknown functions, sets), math-verify's ``verify`` decides, gold answer first, without
   its own time limits. It gets sets and sets, or expressions and expressions, but never mixtures.

Limits of precision: expressions that differ by less than one part in 10^30 count as equal, also those that differ only
where no random point lies (isolated points; branches beyond (-4, 4), or (-200, 200) with steps and absolute values).
"""

import logging
import random
import re
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any

import sympy
from antlr4 import Token
from antlr4.atn.PredictionMode import PredictionMode

# _Latex2Sympy is private; math-verify pins the version of its parser exactly.
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from math_verify import verify
from sympy.core.cache import clear_cache

from prime_ext.verifiers.math.compare import compare
from prime_ext.verifiers.math.normalize import has_ambiguous_comma, normalize
from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.structure import Equation, Group, Leaf, Node, Relation, read_answer

POINTS = 6
PRECISION = 50
AGREEMENT = 30
MAX_INTEGER_DIGITS = 4000
_STEPPED = (sympy.floor, sympy.ceiling, sympy.Mod, sympy.Abs, sympy.Max, sympy.Min)
_WIDE_SCALES = (2, 2, 2, 5, 5, 5, 11, 11, 11, 31, 31, 31, 101, 101, 101, 101)
_CLEAR_CACHE_EVERY = 200

# Said once per process although the time limits are off on purpose.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_PRODUCT = re.compile(r"(?<=[\d)])(?=\()|(?<=\))(?=\d)|(?<![a-zA-Z\\].)(?<=[a-eij-oq-zA-EI-OR-Z])(?=\()")
_POWER = re.compile(r"(\\[a-zA-Z]+|[a-zA-Z]+)\^")
_GREEK = frozenset("pi alpha beta gamma delta varepsilon theta lambda mu rho sigma phi omega Upsilon".split())
# The grammar knows E only alone.
_LETTER_E = re.compile(r"(?<![a-zA-Z\\])E(?![a-zA-Z])")
_MIXED = re.compile(r"(?<=\d)\\frac\{(\d+)\}\{(\d+)\}")
_LETTER_TEXT = re.compile(r"\\text\{\s*([a-zA-Z])\s*\}")
_calls = count(1)


class Unparsable(Exception):
    """An expression that the grammar does not accept."""


class GoldUnparsable(Unparsable):
    """The same for a gold answer: nobody can be judged by it."""


def _latex(text: str) -> str:
    """What the grammar would misread: ``2(3)`` is a product, ``3\\frac{5}{2}`` too, ``x(y+1)`` is no function."""
    text = _LETTER_E.sub(r"\\Upsilon ", _LETTER_TEXT.sub(r"\1", text))
    return _PRODUCT.sub(r"\\cdot ", _MIXED.sub(_mixed, text))


def _mixed(match: re.Match[str]) -> str:
    above, below = int(match.group(1)), int(match.group(2))
    return match.group() if above < below else rf"\cdot\frac{{{above}}}{{{below}}}"


def _braced_base(match: re.Match[str]) -> str:
    name = match.group(1)
    if name.startswith("\\"):
        return f"{{{name}}}^" if name[1:] in _GREEK else match.group()
    # e has a rule of its own in the grammar.
    return match.group() if name[-1] == "e" else f"{name[:-1]}{{{name[-1]}}}^"


class _Reader(_Latex2Sympy):
    """math-verify's parser with exact numbers, and with a way to read single expressions twice as quickly.

    :meth:`read` starts at the grammar's rule for expressions, not at the one for sets and relations, and predicts
    without context (ANTLR's SLL mode). Where that succeeds, the outcome is that of the full parser; it fails for some
    input that the full parser accepts, ``x^{2}`` among it, but not ``{x}^{2}``.
    """

    def parse_number(self, text: str) -> sympy.Rational:
        """Read a number exactly. The base class hands it to sympify, which evaluates Python, slowly, to a float."""
        value = Fraction(text.replace(",", ""))
        return sympy.Rational(value.numerator, value.denominator)

    def read(self, text: str) -> Any:
        """Return the expression, None if this parser does not get to the end of the text."""
        parser = self.create_parser(_POWER.sub(_braced_base, text))
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            tree = parser.expr()
            return self.convert_expr(tree) if parser.getCurrentToken().type == Token.EOF else None
        except (MemoryError, RecursionError):
            raise
        except Exception:
            # Plain Exception for a syntax error; the full parser has the last word on what is one.
            return None


@lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """Read one normalised expression or set.

    Raises:
        Unparsable: the grammar does not accept it.
    """
    text = _latex(text)
    reader = _Reader(is_real=True, config=_CONVERSION)
    try:
        # To the rule for expressions, \{1\} is 1.
        parsed = None if "\\{" in text else reader.read(text)
        if parsed is None:
            parsed = reader.parse(text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        # Plain Exception for a syntax error, and whatever sympy raises on the way.
        raise Unparsable(str(error).splitlines()[0][:100] if str(error) else type(error).__name__) from error
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise Unparsable(f"not an expression but {type(parsed).__name__}")
    return parsed


def warm_up() -> None:
    """Let the parser build its tables and sympy its lazy imports, which takes the first expressions a second."""
    for text in (
        r"\frac{\sqrt{3}+1}{2}",
        r"x^{2}-2x+1",
        r"2\pi r",
        r"(x+1)(x-y)",
        r"e^{-x}\ln 2",
        r"\sin^{2}x",
        r"-n!+a_{1}",
    ):
        judge((text,), text + "+1")


def judge(golds: tuple[str, ...], answer: str) -> tuple[str, str]:
    """Compare a prediction with accepted gold answers (as extracted, not yet normalised).

    Returns:
        ``correct``, ``wrong`` or ``error`` (the gold answer cannot be read), and the reason.
    """
    if next(_calls) % _CLEAR_CACHE_EVERY == 0:
        parse.cache_clear()
        clear_cache()
    failures = []
    reason = "not equal"
    for gold in golds:
        try:
            outcome, reason = _judge_one(gold, answer)
        except GoldUnparsable as error:
            failures.append(f"the gold answer cannot be read: {error}")
            continue
        if outcome == "correct":
            return outcome, reason
    return ("error", failures[0]) if failures else ("wrong", reason)


def _judge_one(gold: str, answer: str) -> tuple[str, str]:
    """Try both readings of ``1,000``. The gold answer counts as unreadable only if no reading of it can be used.

    Raises:
        GoldUnparsable: that is so.
    """
    readings = (True, False) if has_ambiguous_comma(gold) or has_ambiguous_comma(answer) else (True,)
    unreadable: GoldUnparsable | None = None
    readable = False
    for thousands in readings:
        wanted, given = (read_answer(normalize(text, thousands=thousands)) for text in (gold, answer))
        try:
            if compare(wanted, given, leaf):
                return "correct", "algebra: equal"
            readable = True
        except GoldUnparsable as error:
            unreadable = error
    if unreadable is not None and not readable:
        raise unreadable
    return "wrong", "algebra: not equal"


def leaf(gold: Node, answer: Node) -> bool:
    """The leaf comparison that always decides.

    Raises:
        GoldUnparsable: the gold answer is not understood.
    """
    try:
        wanted = _parse_node(gold)
    except Unparsable as error:
        raise GoldUnparsable(str(error)) from error
    try:
        given = _parse_node(answer)
    except Unparsable:
        return False
    if isinstance(gold, Leaf) and gold.number is not None and isinstance(answer, Leaf):
        return _rounds(given, gold.number)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf) and gold.percent != answer.percent:
        return False
    if isinstance(gold, Equation | Relation) and isinstance(answer, Equation | Relation):
        return _relations_equal(wanted, given)
    return _expressions_equal(wanted, given, gold, answer)


def _parse_node(node: Node) -> Any:
    if isinstance(node, Equation | Relation):
        sides = [parse(side) for side in (node.sides if isinstance(node, Relation) else node.sides[-2:])]
        operators = node.operators if isinstance(node, Relation) else ("=",)
        if len(sides) != 2 or not all(isinstance(side, sympy.Expr) for side in sides):
            raise Unparsable("a relation of more than two sides, or not between expressions")
        return operators[0], sides[0] - sides[1]
    return parse(to_latex(node))


def to_latex(node: Node) -> str:
    """Write a tree as LaTeX that the parser reads as the same set or expression."""
    if isinstance(node, Leaf):
        return node.text
    if isinstance(node, Group) and node.kind == "union":
        return r"\cup".join(_set(item) for item in node.items)
    if isinstance(node, Group) and node.kind in ("tuple", "interval") and len(node.items) == 2:
        return node.left + ",".join(to_latex(item) for item in node.items) + node.right
    if isinstance(node, Group) and node.kind == "set":
        return r"\{" + ",".join(to_latex(item) for item in node.items) + r"\}"
    raise Unparsable(f"no expression: {type(node).__name__}")


def _set(node: Node) -> str:
    """Write a part of a union; the braces that single members lost come back."""
    lone = isinstance(node, Leaf) and not re.search(r"mathbb|emptyset|setminus|cap|\\{", node.text)
    return rf"\{{{to_latex(node)}\}}" if lone else to_latex(node)


def _points(symbols: list[sympy.Symbol], wide: bool) -> list[dict[sympy.Symbol, sympy.Expr]]:
    imaginary = {symbol: sympy.I for symbol in symbols if symbol.name == "i"}
    free = [symbol for symbol in symbols if symbol.name != "i"]
    if not free:
        return [imaginary]
    generator = random.Random(len(free))
    return [
        {**imaginary, **{symbol: sympy.Rational(generator.randrange(-4000, 4000) * scale + 1, 2003) for symbol in free}}
        for scale in (_WIDE_SCALES if wide else (2,) * POINTS)
    ]


def _value(expression: Any, point: dict[sympy.Symbol, sympy.Expr], precision: int = PRECISION) -> Any:
    """Return the real and imaginary part of the value, None if it is infinite, undefined or not a number."""
    value = expression.evalf(precision, subs=point, maxn=10 * precision)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    real, imaginary = value.as_real_imag()
    return (real, imaginary) if real.is_Number and imaginary.is_Number else None


def _close(left: Any, right: Any, agreement: int = AGREEMENT) -> bool:
    scale = max(abs(part) for part in (*left, *right))
    difference = max(abs(left[0] - right[0]), abs(left[1] - right[1]))
    return bool(difference <= scale * sympy.Float(10, PRECISION) ** -agreement)


def _equal_at(wanted: Any, given: Any, point: dict[sympy.Symbol, sympy.Expr]) -> bool | None:
    """Compare two values, None if both are undefined. Large ones also to their unit digit: 2^100-2 is not 2^100-3.

    Raises:
        OverflowError: they agree as far as looked at, but are too large to look further.
    """
    left, right = _value(wanted, point), _value(given, point)
    if left is None and right is None:
        return None
    if left is None or right is None or not _close(left, right):
        return False
    size = max(abs(part) for part in left)
    digits = int(sympy.log(size, 10).evalf(10)) if size > 10**6 else 0
    if digits == 0:
        return True
    if digits > MAX_INTEGER_DIGITS:
        raise OverflowError(f"values of {digits} digits")
    exact = [_value(side, point, PRECISION + digits) for side in (wanted, given)]
    return exact[0] is not None and exact[1] is not None and _close(exact[0], exact[1], AGREEMENT + digits)


def _evaluate_both(wanted: Any, given: Any) -> bool | None:
    """True or False by evaluation, None if too few points are defined for both."""
    symbols = sorted(wanted.free_symbols | given.free_symbols, key=lambda symbol: symbol.name)
    points = _points(symbols, wide=wanted.has(*_STEPPED) or given.has(*_STEPPED))
    equal = [_equal_at(wanted, given, point) for point in points]
    if False in equal:
        return False
    return True if equal.count(True) >= min(3, len(points)) else None


def _expressions_equal(wanted: Any, given: Any, gold: Node, answer: Node) -> bool:
    scalars = [isinstance(side, sympy.Expr) and not isinstance(side, sympy.MatrixExpr) for side in (wanted, given)]
    if all(scalars):
        decided = _evaluate_both(wanted, given)
        if decided is not None:
            return decided
    elif any(scalars) or isinstance(wanted, sympy.Set) != isinstance(given, sympy.Set):
        return False
    return bool(verify(wanted, given, float_rounding=12, numeric_precision=30, timeout_seconds=None))


def _rounds(given: Any, decimal: PlainNumber) -> bool:
    """Whether an exact expression without a finite decimal form rounds to a gold decimal."""
    if not isinstance(given, sympy.Expr) or given.free_symbols or decimal.significant < 2 or not decimal.places:
        return False
    value = _value(given, {})
    if value is None or value[1] != 0:
        return False
    rational = sympy.Rational(value[0])
    exact = PlainNumber(Fraction(int(rational.p), int(rational.q)))
    scaled = value[0] * sympy.Integer(10) ** 12
    return abs(scaled - scaled.round()) > sympy.Float(10) ** -12 and exact.rounds_to(decimal)


_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def _relations_equal(wanted: tuple[str, Any], given: tuple[str, Any]) -> bool:
    (operator, left), (other, right) = wanted, given
    symbols = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)
    if not symbols:
        return False
    ratios = []
    for point in _points(symbols, wide=False):
        above, below = _value(left, point), _value(right, point)
        if above is None or below is None or above[1] != 0 or below[1] != 0 or below[0] == 0 or above[0] == 0:
            continue
        ratios.append((above[0] / below[0], sympy.S.Zero))
    if len(ratios) < 3 or not all(_close(ratio, ratios[0]) for ratio in ratios):
        return False
    return operator == other if ratios[0][0] > 0 or operator not in _FLIPPED else _FLIPPED[operator] == other
