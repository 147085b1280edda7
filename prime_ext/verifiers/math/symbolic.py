# SPDX-License-Identifier: Apache-2.0
"""Computer algebra, in the worker only: it decides whether a prediction equals the gold answer.

math-verify's parser reads LaTeX with a grammar; nothing here evaluates model text as Python.
Expressions are compared at random points, equations and inequalities by proportion, the rest by
math-verify: docs/reference/verifier_rules.md.
"""

import logging
import random
import re
from fractions import Fraction
from functools import lru_cache
from itertools import count, pairwise
from typing import Any

import sympy
from antlr4 import Token
from antlr4.atn.PredictionMode import PredictionMode

# _Latex2Sympy is private; math-verify pins the version of its parser exactly.
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy.core.cache import clear_cache

from prime_ext.verifiers.math.answer_comparison import compare
from prime_ext.verifiers.math.normalize import NAMES, list_readings
from prime_ext.verifiers.math.numbers import PlainNumber
from prime_ext.verifiers.math.structure import (
    TRIGONOMETRIC,
    Equation,
    Group,
    Leaf,
    Node,
    Relation,
    read_answer,
)

POINTS = 6
PRECISION = 50
AGREEMENT = 30
MAX_INTEGER_DIGITS = 4000
_SERIES = (sympy.Sum, sympy.Product)
_STEPPED = (sympy.floor, sympy.ceiling, sympy.Mod, sympy.Abs, sympy.Max, sympy.Min)
_WIDE_SCALES = (2, 2, 2, 5, 5, 5, 11, 11, 11, 31, 31, 31, 101, 101, 101, 101)
_CLEAR_CACHE_EVERY = 200

# It warns once per process, although the time limits are off on purpose.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_PRODUCT = re.compile(
    r"(?<=[\d)])(?=\()|(?<=\))(?=\d)|(?<![a-zA-Z\\].)(?<=[a-eij-oq-zA-EI-OR-Z])(?=\()"
)
_MIXED = re.compile(r"(?<=\d)\\frac\{(\d+)\}\{(\d+)\}")
# The value of a function, not a product.
_CALL = re.compile(r"(?<![a-zA-Z\\])([a-df-hj-zA-Z])\((-?\d+|[a-zA-Z])\)")
_LETTER_TEXT = re.compile(r"\\text\{\s*([a-zA-Z])\s*\}")
_NAME = re.compile(
    r"(?:\\(?:text|vec|hat|bar|dot|ddot|tilde|overline|widehat|widetilde|mathcal|mathscr|mathfrak)\s*"
    r"(?:\{[^{}]*\}|(?<!\\text)[a-zA-Z])"
    r"|\\([a-zA-Z]+)|[a-zA-Z])(?:_\{[^{}]*\})?'*(\^)?"
)
# Commands that mean something to the grammar; all others are names.
_MEANINGS = NAMES - {"infinity", "floor", "ceil"} | frozenset(
    "lfloor rfloor lceil rceil min max det sum prod int lim pi cdot pm mp cup cap setminus le ge ne"
    " in approx mathbb emptyset begin end circ mod rightarrow".split()
)
_SET = re.compile(r"\A[(\[].*,|mathbb|emptyset|setminus|cap|\\\{")
_SET_OR_RELATION = re.compile(
    r"\A\{|[,;=<>]|\\(?:[{}]|l?brace|lvert|[mp]m|cup|cap|mathbb|emptyset|set|sub|sup|times|left|approx|infty"
    r"|(?:(?:not)?in|to|le|ge|ne|lt|gt)\b)"
)
_calls = count(1)
_Link = tuple[str, Any, Any]


class Unparsable(Exception):
    """An expression that the grammar does not accept."""


def _latex(text: str) -> str:
    """Rewrite what the grammar misreads: products ``2(3)`` and ``x(y+1)``, names as one symbol."""
    if "\\text{degrees}" in text:
        text = text.replace("\\text{degrees}", "^{\\circ}" if TRIGONOMETRIC.search(text) else "")
    text = _CALL.sub(r"\\text{\1 at \2}", text)
    text = _PRODUCT.sub(r"\\cdot ", _MIXED.sub(_rewrite_mixed, _LETTER_TEXT.sub(r"\1", text)))
    return _NAME.sub(_name_variable, text.replace("\\bmod", "\\mod "))


def _name_variable(match: re.Match[str]) -> str:
    """Write names (``x_1``, ``x'``, ``\\vec{x}``, unknown commands) as ``\\variable{}``."""
    command, power = match.groups(default="")
    name = match.group().removesuffix("^")
    if command in _MEANINGS and name != "\\pi":
        return match.group()
    if (len(name) == 1 and name not in "EI") or name == "\\pi":
        # Braced bases are quicker to parse. e has a rule of its own in the grammar.
        return f"{{{name}}}^" if power and name != "e" else match.group()
    return rf"\variable{{N{re.sub('[{} ]', '', name).encode().hex()}}}" + power


def _rewrite_mixed(match: re.Match[str]) -> str:
    above = int(match.group(1))
    below = int(match.group(2))
    return match.group() if above < below else rf"\cdot\frac{{{above}}}{{{below}}}"


class _Reader(_Latex2Sympy):
    """math-verify's parser with exact numbers, and with its quicker mode."""

    def __init__(self, mode: int) -> None:
        super().__init__(is_real=True, convert_degrees=True, config=_CONVERSION)
        self._mode = mode

    def create_parser(self, latex_str: str) -> Any:
        """Set ANTLR's mode: SLL fails on some input of LL, but reads all other input the same."""
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self._mode
        return parser

    def parse(self, text: str) -> Any:
        """Read an expression without the entry rule, which looks ahead to its end for sets."""
        if not _SET_OR_RELATION.search(text):
            parser = self.create_parser(text)
            try:
                expression = parser.expr()
                if parser.getTokenStream().LA(1) == Token.EOF:
                    return self.convert_expr(expression)
            except Exception:  # the entry rule raises the same, or reads more
                pass
        return super().parse(text)

    def convert_func(self, func: Any) -> Any:
        """Make odd roots of negative numbers real; the base class takes the principal root."""
        base, degree = (
            self.convert_expr(part) if part else sympy.S.One for part in (func.base, func.root)
        )
        odd = func.FUNC_SQRT() and degree.is_odd and base.is_Rational and base < 0
        return (
            -sympy.root(-base, degree, evaluate=False)
            if odd and func.root
            else super().convert_func(func)
        )

    def parse_number(self, text: str) -> sympy.Rational:
        """Read a number exactly, not by sympify, which evaluates Python, slowly, to a float."""
        return sympy.Rational(Fraction(text.replace(",", "")))


@lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """Read one normalized expression or set. Raises Unparsable: the grammar does not accept it."""
    text = _latex(text)
    for mode in (PredictionMode.SLL, PredictionMode.LL):
        try:
            parsed = _Reader(mode).parse(text)
            break
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            # Plain Exception for a syntax error, and whatever sympy raises on the way.
            failure = str(error).partition("\n")[0][:100] or type(error).__name__
    else:
        raise Unparsable(failure)
    if isinstance(parsed, sympy.Expr) and parsed.has(sympy.UnevaluatedExpr):
        parsed = parsed.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise Unparsable(f"not an expression but {type(parsed).__name__}")
    return parsed


def warm_up() -> None:
    """Load the parser's tables and sympy's lazy imports, which takes a second once."""
    for text in (
        r"\frac{\sqrt{3}+1}{2} x^{2}-2x+1 2\pi r (x+1)(x-y) e^{-x}\ln2 \sin^{2}x -n!+a_{1}".split()
    ):
        judge(text, text + "+1")


def judge(gold: str, answer: str) -> tuple[str, str]:
    """Return ``correct``, ``wrong`` or ``error`` (unreadable gold) and why, of answers as given."""
    if next(_calls) % _CLEAR_CACHE_EVERY == 0:
        parse.cache_clear()
        clear_cache()
    unreadable = []
    pairs = list_readings(gold, answer)
    for wanted, given in pairs:
        try:
            if compare(read_answer(wanted), read_answer(given), leaf):
                return "correct", "algebra: equal"
        except Unparsable as error:
            unreadable.append(f"the gold answer cannot be read: {error}")
    return (
        ("error", unreadable[0])
        if len(unreadable) == len(pairs)
        else ("wrong", "algebra: not equal")
    )


def leaf(gold: Node, answer: Node) -> bool:
    """Compare leaves and always decide. Raises Unparsable: the gold answer is not understood."""
    try:
        wanted, links = _parse_node(gold)
    except Unparsable:
        if isinstance(gold, Leaf):
            raise
        # A tuple, or an equation of an unknown quantity: the prediction is of another kind.
        return False
    try:
        given, other_links = _parse_node(answer)
    except Unparsable:
        return False
    if links and other_links and _chains_equal(links, other_links):
        return True
    if isinstance(gold, Equation | Relation) and isinstance(answer, Equation | Relation):
        return False
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        if gold.number and _rounds(given, gold.number):
            return True
        if gold.percent != answer.percent:
            return False
    return _expressions_equal(wanted, given)


def _parse_node(node: Node) -> tuple[Any, list[_Link]]:
    """Return what sympy compares, and the links of a chain; of an equation only the last one."""
    if isinstance(node, Leaf) and node.number:
        return sympy.Rational(node.number.value), []
    chain = node.relation if isinstance(node, Group) else node
    if isinstance(chain, Equation):
        chain = Relation(chain.sides[-2:], ("=",))
    if not isinstance(chain, Relation):
        return parse(to_latex(node)), []
    sides = [parse(side) for side in chain.sides]
    if not _RELATIONS.keys() >= set(chain.operators) or not all(
        isinstance(side, sympy.Expr) for side in sides
    ):
        raise Unparsable("a relation that is not between expressions")
    links = [
        (operator, *pair) for operator, pair in zip(chain.operators, pairwise(sides), strict=True)
    ]
    if isinstance(node, Group):
        return parse(to_latex(node)), links
    relations = [
        _RELATIONS[operator](left, right, evaluate=False) for operator, left, right in links
    ]
    return relations[0] if len(relations) == 1 else And(*relations), links


def to_latex(node: Node) -> str:
    """Write a tree as LaTeX that the parser reads as the same set or expression."""
    if isinstance(node, Leaf):
        return node.text
    if not isinstance(node, Group) or node.kind not in (
        "union",
        "tuple",
        "interval",
        "set",
        "ratio",
    ):
        raise Unparsable(f"no expression: {type(node).__name__}")
    items = [to_latex(item) for item in node.items]
    if node.kind == "union":
        # The braces that single members lost come back.
        return r"\cup".join(item if _SET.search(item) else rf"\{{{item}\}}" for item in items)
    if len(items) != 2 and node.kind != "set":
        raise Unparsable("more than two members")
    if node.kind == "ratio":
        return rf"\frac{{{items[0]}}}{{{items[1]}}}"
    return node.left + ",".join(items) + node.right


def _points(*sides: Any) -> list[dict[sympy.Symbol, sympy.Expr]]:
    symbols = sorted(
        set().union(*(side.free_symbols for side in sides)), key=lambda symbol: symbol.name
    )
    scales = _WIDE_SCALES if any(side.has(*_STEPPED) for side in sides) else (2,) * POINTS
    generator = random.Random(len(symbols))

    def value(symbol: sympy.Symbol, scale: int) -> sympy.Expr:
        return (
            sympy.I
            if symbol.name == "i"
            else sympy.Rational(generator.randrange(-4000, 4000) * scale + 1, 2003)
        )

    one = all(symbol.name == "i" for symbol in symbols)
    return [
        {symbol: value(symbol, scale) for symbol in symbols}
        for scale in (scales[:1] if one else scales)
    ]


def _value(
    expression: Any, point: dict[sympy.Symbol, sympy.Expr], precision: int = PRECISION
) -> Any:
    """Return the value's real and imaginary part, None if infinite, undefined or not a number."""
    value = expression.evalf(precision, subs=point, maxn=10 * precision)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    parts = value.as_real_imag()
    if not all(part.is_Number for part in parts):
        return None
    # evalf returns a float of one bit for a zero that it cannot tell from a small number, as in
    # \\cos 90^\\circ.
    return tuple(sympy.S.Zero if getattr(part, "_prec", 0) == 1 else part for part in parts)


def _is_close(left: Any, right: Any, agreement: int = AGREEMENT) -> bool:
    scale = max(abs(part) for part in (*left, *right))
    difference = max(abs(left[0] - right[0]), abs(left[1] - right[1]))
    return bool(difference <= scale * sympy.Float(10, PRECISION) ** -agreement)


def _compare_at(wanted: Any, given: Any, point: dict[sympy.Symbol, sympy.Expr]) -> bool | None:
    """Compare two values; None if both are undefined.

    Large ones are compared to their unit digit: 2^100-2 is not 2^100-3. Raises OverflowError: they
    agree as far as looked at, but are too large to look further.
    """
    left = _value(wanted, point)
    right = _value(given, point)
    if left is None or right is None:
        return None if left is right else False
    if not _is_close(left, right):
        return False
    size = max(abs(part) for part in left)
    digits = int(sympy.log(size, 10).evalf(10)) if size > 10**6 else 0
    if digits == 0:
        return True
    if digits > MAX_INTEGER_DIGITS:
        raise OverflowError(f"values of {digits} digits")
    left, right = (_value(side, point, PRECISION + digits) for side in (wanted, given))
    return left is not None and right is not None and _is_close(left, right, AGREEMENT + digits)


def _take_real_roots(side: Any) -> Any:
    """Replace the odd roots of real numbers by the real ones."""
    odd = [
        power
        for power in side.atoms(sympy.Pow)
        if power.exp.is_Rational and power.exp.q % 2 and power.exp.q > 1
    ]
    return side.subs(
        {
            power: sympy.sign(power.base) ** power.exp.p * abs(power.base) ** power.exp
            for power in odd
        }
    )


def _radicands(side: Any) -> list[Any]:
    """Return the expressions that must not be negative: below even roots and in logarithms."""
    roots = [
        power.base
        for power in side.atoms(sympy.Pow)
        if power.exp.is_Rational and power.exp.q % 2 == 0
    ]
    return [
        part for part in roots + [log.args[0] for log in side.atoms(sympy.log)] if part.free_symbols
    ]


def _is_defined(radicands: list[Any], point: dict[sympy.Symbol, sympy.Expr]) -> bool:
    values = [_value(part, point) for part in radicands]
    return all(value is not None and value[1] == 0 and value[0] >= 0 for value in values)


def _expressions_equal(wanted: Any, given: Any) -> bool:
    scalars = [
        isinstance(side, sympy.Expr) and not isinstance(side, sympy.MatrixExpr)
        for side in (wanted, given)
    ]
    if all(scalars):
        # Between integers, sums have no value; without a closed form they take any time.
        if any(side.has(*_SERIES) for side in (wanted, given)):
            wanted, given = (side.doit().as_dummy() for side in (wanted, given))
            if any(side.has(*_SERIES) for side in (wanted, given)):
                return wanted == given
        points = _points(wanted, given)
        if all(symbol.name != "i" for symbol in wanted.free_symbols | given.free_symbols):
            wanted = _take_real_roots(wanted)
            given = _take_real_roots(given)
            if any(radicands := [_radicands(side) for side in (wanted, given)]):
                # Roots and logarithms are those of real numbers.
                points += [
                    {symbol: abs(value) for symbol, value in point.items()} for point in points
                ]
                defined = [[_is_defined(parts, point) for parts in radicands] for point in points]
                if len(points[0]) == 1 and any(one != other for one, other in defined):
                    return False
                points = [point for point, sides in zip(points, defined, strict=True) if all(sides)]
        equal = [_compare_at(wanted, given, point) for point in points]
        if False in equal:
            return False
        if points and equal.count(True) >= min(3, len(points)):
            return True
    elif any(scalars) or not (_is_solvable(wanted) and _is_solvable(given)):
        return False
    return bool(verify(wanted, given, 12, 30, allow_set_relation_comp=True, timeout_seconds=None))


def _is_solvable(side: Any) -> bool:
    """Return whether sympy is fast: an inequality has few absolute values and small powers only."""
    small = all(
        power.exp.is_Integer and abs(power.exp) < 9
        for power in side.atoms(sympy.Pow)
        if power.free_symbols
    )
    functions = side.atoms(sympy.Function)
    simple = (
        small
        and len(functions) < 4
        and all(isinstance(function, sympy.Abs) for function in functions)
    )
    return simple or not isinstance(side, sympy.logic.boolalg.Boolean)


def _rounds(given: Any, decimal: PlainNumber) -> bool:
    """Return whether an exact value that needs over 12 places rounds to a gold decimal."""
    value = _value(given, {}) if isinstance(given, sympy.Expr) and not given.free_symbols else None
    if value is None or value[1] != 0:
        return False
    exact = Fraction(str(value[0]))
    scaled = exact * 10**12
    return abs(scaled - round(scaled)) * 10**12 > 1 and PlainNumber(exact).rounds_to(decimal)


_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_RELATIONS = {
    "=": sympy.Eq,
    "\\ne": sympy.Ne,
    "<": sympy.Lt,
    ">": sympy.Gt,
    "\\le": sympy.Le,
    "\\ge": sympy.Ge,
}


def _chains_equal(wanted: list[_Link], given: list[_Link]) -> bool:
    matches = [[_links_equal(link, other) for other in given] for link in wanted]
    return (
        len(wanted) == len(given)
        and all(map(any, matches))
        and all(map(any, zip(*matches, strict=True)))
    )


def _links_equal(wanted: _Link, given: _Link) -> bool:
    (operator, left), (other, right) = [(link[0], link[1] - link[2]) for link in (wanted, given)]
    points = _points(left, right)
    values = [(_value(left, point), _value(right, point)) for point in points]
    real = [
        (above[0], below[0])
        for above, below in values
        if above and below and above[1] == below[1] == 0
    ]
    ratios = [(above / below, 0) for above, below in real if above != 0 and below != 0]
    if len(ratios) < min(3, len(points)) or not all(
        _is_close(ratio, ratios[0]) for ratio in ratios
    ):
        return False
    if len(points) == 1 and not _is_close((abs(ratios[0][0]), 0), (1, 0)):
        return False
    return (other if ratios[0][0] > 0 else _FLIPPED.get(other, other)) == operator
