# SPDX-License-Identifier: Apache-2.0
"""Grammar of single expressions: tokens become a tree, or are not mathematics.

A tree is a tuple of an operation and its operands: ``("number", Fraction)``, ``("symbol", name)``,
``("add", left, right)``, ``("call", name, *arguments)``. Nothing is guessed: what the grammar does
not accept is :class:`Unreadable`, and its reader keeps it as text.
"""

import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from prime_ext.verifiers.math.notation import FUNCTIONS, Token, Tokens, spell
from prime_ext.verifiers.math.units import NUMBER_WORDS

Expression = tuple[Any, ...]

MAX_NESTING = 24
MAX_TOKENS = 400
MAX_DIGITS = 1000
# Rational numbers beyond are left to floating-point numbers.
_MAX_BITS = 40_000

_CALLED = frozenset("fghFGHPEV")
_CONSTANTS = frozenset(["e", "i", "\\pi", "\\infty"])
_DECORATIONS = frozenset(
    "vec overline hat bar dot ddot tilde widehat widetilde mathcal mathscr mathfrak overrightarrow"
    " mathbb overset angle triangle measuredangle arc overarc check breve acute".split()
)
_NOT_VALUES = frozenset(
    "text end cup cap setminus le ge ne in notin approx emptyset subset subseteq supset"
    " supseteq forall exists neg wedge vee Rightarrow Leftrightarrow to mapsto parallel perp sim"
    " cong equiv mid oplus otimes circ ldots pm mp pmod mod cancel permil over choose therefore"
    " leftarrow leftrightarrow propto ni times star dagger top bot prime stackrel underset"
    " overbrace underbrace rfloor rceil cdot".split()
)
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix array".split())
_CLOSING = {"\\{": "\\}", "(": ")", "[": "]", "{": "}", "|": "|", "‖": "‖"}
_CLOSING |= {"lfloor": "rfloor", "lceil": "rceil"}
_BRACKET_CALLS = {"|": "abs", "‖": "norm", "lfloor": "floor", "lceil": "ceil"}
KNOWN_CALLS = FUNCTIONS | frozenset(["abs", "norm", "binom", "permutations", "factorial"])
_INVERSES = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"}
_COUNTS = {"C": "binom", "nCr": "binom", "ncr": "binom"}
_COUNTS |= {"P": "permutations", "nPr": "permutations", "npr": "permutations"}
ZERO: Expression = ("number", Fraction(0))
NUMBER_ONE: Expression = ("number", Fraction(1))
_END = Token("end", "")

# Patterns of tokens, each with a space after it.
_DERIVATIVE = re.compile(r"\{ (d|partial) ([a-zA-Z]) \} \{ (?:d|partial) ([a-zA-Z]) \} ")
_CYCLE = re.compile(
    r"(?:(?:overline|bar|dot) (?:\{ (\d+) \}|(\d+))|\( (\d+) \)) "
    r"(?:(\d+ )?dot (?:\{ (\d+) \}|(\d+)) )?"
)
_DEGREES = re.compile(r"circ |\{ circ \} ")
_PRIMES = re.compile(r"\^ (?:\{ )?((?:prime )+)(?:\} )?")
_UNIT_VECTOR = re.compile(r"(?:\{ )?([ijk]) (?:\} )?")
_REPEATED = re.compile(r"(\d+\.\d{0,12}?)((\d{1,12}?)\3+)")
_BASED = re.compile(r"[({]*(\w+(?:\.\w+)?)[)}]*_[{(]*(\w+)[)}]*")


class Unreadable(ValueError):
    """Tokens that are not one expression."""


class _Parser:
    """A parser by recursive descent; ``vectors``: it reads tuples, matrices and unit vectors."""

    def __init__(self, tokens: Sequence[Token], vectors: bool = False) -> None:
        self.tokens: list[Token] = []
        self.glued: set[int] = set()  # letters that directly follow a letter
        for token in tokens:
            if token.kind != "letters" or len(token.text) == 1 or token.text in _COUNTS:
                self.tokens.append(token)
                continue
            for index, letter in enumerate(token.text):
                if index:
                    self.glued.add(len(self.tokens))
                self.tokens.append(Token("letters", letter, token.space and not index, token.roman))
        if len(self.tokens) > MAX_TOKENS:
            raise Unreadable(f"more than {MAX_TOKENS} tokens")
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.vectors = vectors
        self.unit_vectors: set[str] = set()

    def read_all(self) -> Expression:
        tree = self.whole()
        if self.position != len(self.tokens):
            raise Unreadable(f"unexpected {self.look().text}")
        return tree

    def look(self, offset: int = 0) -> Token:
        index = self.position + offset
        return self.tokens[index] if index < len(self.tokens) else _END

    def sees(self, *texts: str) -> bool:
        return self.look().text in texts and self.look().kind in ("sign", "command")

    def take(self) -> Token:
        token = self.look()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        accepted = self.sees(text)
        self.position += accepted
        return accepted

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Unreadable(f"expected {text}, got {self.look().text or 'the end'}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Take the tokens that a pattern matches."""
        following = self.tokens[self.position : self.position + 12]
        match = pattern.match("".join(f"{token.text} " for token in following))
        self.position += match.group().count(" ") if match else 0
        return match

    def whole(self) -> Expression:
        """Read an expression with ``\\over`` or ``choose``, which bind least."""
        left = self.expression()
        if self.accept("over"):
            return ("divide", left, self.expression())
        if self.look().text == "choose":
            self.take()
            return ("call", "binom", left, self.expression())
        return left

    def nested(self, read: Callable[[], Expression]) -> Expression:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Unreadable(f"brackets nested deeper than {MAX_NESTING}")
        inner = read()
        self.depth -= 1
        return inner

    def members(self, opening: str) -> list[Expression]:
        """Read what commas separate up to the bracket that closes ``opening``."""
        outer_bars, self.bars = self.bars, int(opening in "|‖")
        members = [self.nested(self.whole)]
        while self.accept(",") or self.accept(";"):
            members.append(self.nested(self.whole))
        self.bars = outer_bars
        self.expect(_CLOSING[opening])
        return members

    def group(self, opening: str) -> Expression:
        first, *others = self.members(opening)
        if others:
            raise Unreadable("a list in brackets")
        return first

    def expression(self) -> Expression:
        total = self.term()
        while self.sees("+", "-"):
            operation = "add" if self.take().text == "+" else "subtract"
            total = (operation, total, self.term())
        return total

    def term(self) -> Expression:
        if self.accept("-"):
            return ("negate", self.nested(self.term))
        if self.accept("+"):
            return self.nested(self.term)
        product = self.mixed_number() or self.factor()
        while True:
            if self.accept("cdot") or self.is_times():
                product = ("multiply", product, self.signed_factor())
            elif self.accept("/"):
                below = self.signed_factor()
                while self.position in self.glued:
                    # t/RC is t/(RC).
                    below = ("multiply", below, self.factor())
                product = ("divide", product, below)
            elif self.starts_factor():
                product = ("multiply", product, self.factor())
            else:
                return product

    def signed_factor(self) -> Expression:
        return ("negate", self.factor()) if self.accept("-") else self.factor()

    def is_times(self) -> bool:
        """Take the ``x`` of ``6.02 x 10^23``."""
        before, here, after = self.look(-1), self.look(), self.look(1)
        times = here.text in ("x", "X") and before.kind == after.kind == "number"
        self.position += times
        return times

    def starts_factor(self) -> bool:
        token = self.look()
        if token.kind == "number":
            return self.look(-1).text in (")", "]", "}", "rfloor", "rceil", "!", "i")
        if token.kind == "command":
            return token.text not in _NOT_VALUES
        if token.text == "|":
            return self.bars % 2 == 0
        return token.kind == "letters" or token.text in ("(", "[", "{")

    def mixed_number(self) -> Expression | None:
        """Read ``2\\frac{1}{3}`` and ``2 1/3``; the fraction is proper, else it is a product."""
        whole = self.look()
        if whole.kind != "number" or not whole.text.isdigit():
            return None
        start = self.position
        self.take()
        fraction: Expression = ()
        if self.sees("frac"):
            fraction = self.factor()
        elif self.look().kind == self.look(2).kind == "number" and self.look(1).text == "/":
            if not self.look().space or self.look(3).text in ("^", "!"):
                raise Unreadable("numbers side by side")
            above, _, below = self.take(), self.take(), self.take()
            fraction = ("divide", _number(above.text), _number(below.text))
        if fraction[:1] == ("divide",) and fraction[1][0] == fraction[2][0] == "number":
            upper, lower = fraction[1][1], fraction[2][1]
            if 0 < upper < lower and upper.denominator == lower.denominator == 1:
                return ("add", _number(whole.text), fraction)
        self.position = start
        return None

    def factor(self) -> Expression:
        base = self.primary()
        while True:
            if self.accept("^"):
                base = self.power(base)
            elif self.accept("!"):
                if self.sees("!"):
                    raise Unreadable("a double factorial")
                base = ("call", "factorial", base)
            elif self.look().text == "_" and base[0] == "number":
                raise Unreadable("a number with an index")
            else:
                return base

    def power(self, base: Expression) -> Expression:
        if self.match(_DEGREES):
            return ("degrees", base)
        inside = self.look(1) if self.sees("{") else self.look()
        if base[0] == "vector" and inside.text in ("T", "top") and len(self.script()) == 1:
            left, right, columns = base[1]
            if columns == 0:
                return ("vector", ("(", ")", 0), *base[2:])
        if inside.kind == "word" or inside.text in ("T", "top", "prime", "*", "+"):
            raise Unreadable(f"a power {inside.text}")
        return ("power", base, self.argument(sign=True))

    def argument(self, sign: bool = False) -> Expression:
        """Read what a command or a power takes: a group, a number, a letter or a command."""
        if self.look().text in ("{", "("):
            return self.group(self.take().text)
        if sign and self.accept("-"):
            return ("negate", self.argument())
        if self.look().kind == "letters":
            name = self.take().text
            return self.symbol(name) if self.look().text == "_" else ("symbol", name)
        return self.nested(self.primary)

    def primary(self) -> Expression:
        token = self.take()
        if token.kind == "number":
            return self.number(token.text)
        if token.kind == "letters":
            if self.vectors and token.roman and token.text in ("i", "j", "k"):
                return self.unit_vector(token.text)
            return self.symbol(token.text)
        if token.kind in ("sign", "command") and token.text in _CLOSING and token.text != "\\{":
            members = self.members(token.text)
            if len(members) > 1:
                if not self.vectors or token.text not in ("(", "["):
                    raise Unreadable("a list in brackets")
                return ("vector", (token.text, _CLOSING[token.text], 0), *members)
            name = _BRACKET_CALLS.get(token.text)
            return ("call", name, members[0]) if name else members[0]
        if token.kind == "command":
            return self.command(token.text)
        raise Unreadable(f"unexpected {token.text or 'end'}")

    def unit_vector(self, name: str) -> Expression:
        self.unit_vectors.add(name)
        return ("vector", ("(", ")", 0), *(NUMBER_ONE if name == axis else ZERO for axis in "ijk"))

    def number(self, text: str) -> Expression:
        if text.count(".") > 1 or len(text) > MAX_DIGITS:
            raise Unreadable("a number with two points, or too long")
        here, after = self.look(), self.look(1)
        if here.text in ("e", "E") and not here.space and here.kind == "letters":
            signed = after.text in ("-", "+")
            exponent = self.look(1 + signed)
            if exponent.text.isdigit() and len(exponent.text) < 4 and not exponent.space:
                if self.look(2 + signed).text != "_":
                    self.position += 2 + signed
                    power = int(exponent.text) * (-1 if after.text == "-" else 1)
                    return ("number", Fraction(text) * Fraction(10) ** power)
        if here.text in ("C", "P") and here.kind == "letters" and after.kind == "number":
            self.position += 2
            return ("call", _COUNTS[here.text], _number(text), _number(after.text))
        return self.repeating(text) or _number(text)

    def repeating(self, text: str) -> Expression | None:
        """Read ``0.1\\overline{6}``, ``0.(3)``, ``0.\\dot{3}`` and ``0.333...``."""
        start = self.position
        if "." not in text:
            if self.look().space or not self.accept("."):
                return None
            text += "."
        lead = cycle = ""
        if not self.look().space and (match := self.match(_CYCLE)):
            lead, cycle = text, "".join(filter(None, match.groups())).replace(" ", "")
        elif self.accept("ldots") and (repeated := _REPEATED.fullmatch(text)):
            lead, _, cycle = repeated.groups()
        if not cycle:
            self.position = start
            return None
        shift = 10 ** len(lead.partition(".")[2])
        repeats = Fraction(int(cycle), shift * (10 ** len(cycle) - 1))
        return ("number", Fraction(lead + "0") + repeats)

    def script(self) -> Tokens:
        """Take the tokens of an index."""
        if not self.accept("{"):
            return (self.take(),)
        start = self.position
        depth = 1
        while depth:
            token = self.take()
            if token is _END:
                raise Unreadable("an open index")
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "sign" else 0
        return tuple(self.tokens[start : self.position - 1])

    def scripts(self) -> tuple[Tokens, Tokens]:
        """Take a lower and an upper index, in any order."""
        tokens: dict[str, Tokens] = {"_": (), "^": ()}
        while self.sees("_", "^"):
            sign = self.take().text
            tokens[sign] = self.script()
        return tokens["_"], tokens["^"]

    def symbol(self, name: str) -> Expression:
        if name in _COUNTS and len(name) > 1:
            self.expect("(")
            return ("call", _COUNTS[name], *self.members("("))
        while True:
            if self.accept("_"):
                index = self.script()
                name += "_" + spell(index).replace(" ", "").replace("\\", "")
                if name[0] == "C" and (count := self.count_with_power(index)):
                    return count
            elif self.look().text == "'":
                self.take()
                name += "'"
            elif primes := self.match(_PRIMES):
                name += "'" * primes[1].count("prime")
            else:
                break
        if name.rstrip("'") in _CALLED and self.match(re.compile(r"\^ \{ - 1 \} ")):
            name += "^-1"
        if not (self.look().text == "(" and self.is_call(name)):
            return ("symbol", name)
        self.take()
        arguments = self.members("(")
        return ("call", _COUNTS.get(name, name) if len(arguments) == 2 else name, *arguments)

    def is_call(self, name: str) -> bool:
        """Return whether brackets after a name hold arguments, not a factor."""
        depth = 0
        commas = False
        letters = set()
        for token in self.tokens[self.position :]:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            commas |= depth == 1 and token.text == ","
            letters |= {token.text} if token.kind == "letters" else set()
            if depth == 0:
                break
        if name[:1] in _CALLED and name[1:2] in ("", "'", "_", "^"):
            if name[0] in "fPG" or letters <= set("xyztunk"):
                return True
        if name in _CONSTANTS:
            return False
        inside = self.look(1)
        if inside.kind in ("number", "letters") and self.look(2).text == ")":
            return inside.text != name
        return commas and not self.vectors

    def count_with_power(self, upper: Tokens) -> Expression | None:
        """Read ``C_{n}^{k}``; not ``C_1^2``, the square of a constant."""
        start = self.position
        if self.accept("^"):
            lower = self.script()
            above, below = spell(upper), spell(lower)
            if above.isdigit():
                is_count = below.isdigit() and int(below) <= int(above)
            else:
                is_count = re.fullmatch(r"[a-z0-9+\-]+", above + below) is not None
            if is_count:
                return ("call", "binom", read_expression(upper), read_expression(lower))
        self.position = start
        return None

    def command(self, name: str) -> Expression:
        if name == "frac" and (derivative := self.match(_DERIVATIVE)):
            mark, upper, lower = derivative.groups()
            if mark == "d" and lower in ("x", "t") and upper != lower:
                return self.symbol(upper + "'" if lower == "x" else f"dot {upper}")
            return self.symbol(f"{mark} {upper}/{lower}")
        if name == "frac":
            return ("divide", self.argument(), self.argument())
        if name == "binom":
            return ("call", "binom", self.argument(), self.argument())
        if name == "sqrt":
            degree = self.group("[") if self.accept("[") else ("number", Fraction(2))
            return ("root", self.argument(), degree)
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("sum", "prod"):
            low, high = self.scripts()
            variable, start = _split(low, "=")
            bounds = read_expression(start), read_expression(high)
            return (name, variable, *bounds, self.nested(self.term))
        if name == "int":
            return self.integral()
        if name == "lim":
            self.expect("_")
            variable, bound = _split(self.script(), "to")
            bound = bound[:-2] if bound[-2:-1] and bound[-2].text == "^" else bound
            return ("limit", variable, read_expression(bound), self.nested(self.term))
        if name == "begin":
            return self.environment()
        if name in _DECORATIONS:
            return self.decorated(name)
        if name in _NOT_VALUES or len(name) > 12 or self.look().text == "{":
            raise Unreadable(f"\\{name} is not a value")
        return self.symbol(f"\\{name}")

    def decorated(self, name: str) -> Expression:
        """Read a name such as ``\\overline{AB}`` and ``\\hat{i}``."""
        if self.vectors and name in ("hat", "vec", "widehat", "overrightarrow"):
            if axis := self.match(_UNIT_VECTOR):
                return self.unit_vector(axis[1])
        start = self.position
        if self.sees("{"):
            content = spell(self.script())
        else:
            content = "" if self.sees("(") else self.take().text
            while name in ("angle", "triangle") and content and self.position in self.glued:
                content += self.take().text
        if name in ("overline", "bar") and re.search(r"[+\-].*i|i.*[+\-]", content):
            self.position = start
            return ("call", "conjugate", self.argument())
        if not content:
            raise Unreadable(f"\\{name} without a name")
        return self.symbol(f"{name} {content}")

    def function(self, name: str) -> Expression:
        base: Expression | None = None
        power: Expression | None = None
        while self.sees("_", "^"):
            if self.take().text == "_":
                base = self.argument()
            else:
                power = self.argument(sign=True)
        if power is not None and exact_value(power) == -1 and name in _INVERSES:
            name = ("ar" if name[-1] == "h" else "arc") + name
            power = None
        arguments = self.function_arguments()
        if name in ("log", "lg"):
            call: Expression = ("call", "log", arguments[0], base or ("number", Fraction(10)))
        elif name == "abs" or base is None:
            call = ("call", name, *arguments)
        else:
            raise Unreadable(f"an index of {name}")
        return ("power", call, power) if power is not None else call

    def function_arguments(self) -> list[Expression]:
        opening = self.look()
        if opening.kind == "sign" and opening.text in ("(", "[", "{", "\\{"):
            return self.members(self.take().text)
        if opening.text == "|" and self.bars % 2 == 0 or self.sees("lfloor", "lceil", *FUNCTIONS):
            return [self.factor()]
        sign = self.accept("-")
        argument = self.mixed_number() or self.factor()
        while self.starts_factor() and self.look().text not in FUNCTIONS | {"|", "sum", "int"}:
            argument = ("multiply", argument, self.factor())
        return [("negate", argument) if sign else argument]

    def integral(self) -> Expression:
        low, high = self.scripts()
        texts = [token.text for token in self.tokens[self.position :]]
        length = texts.index("d") if "d" in texts else 0
        body = tuple(self.tokens[self.position : self.position + length])
        self.position += length + 1
        variable = self.take()
        if not (low and high and body) or variable.kind != "letters" or "int" in texts:
            raise Unreadable("not one definite integral")
        return ("integral", variable.text, *map(read_expression, (low, high, body)))

    def environment(self) -> Expression:
        """Read a matrix, which is a vector with columns, or the value of a determinant."""
        name = self.take().text
        rows: list[list[Expression]] = [[]]
        while not self.accept("end"):
            rows[-1].append(self.nested(self.whole))
            if self.accept("\\\\"):
                rows += [[]] if not self.sees("end") else []
            elif not self.sees("end"):
                self.expect("&")
        if not rows[0] or len({len(row) for row in rows}) != 1:
            raise Unreadable("rows of different lengths")
        if name == "vmatrix" and len(rows) == len(rows[0]) <= 4:
            return _expand_determinant(rows)
        if not self.vectors or name not in _MATRICES:
            raise Unreadable(f"a {name}")
        return ("vector", ("", "", len(rows[0])), *(cell for row in rows for cell in row))


def _expand_determinant(rows: list[list[Expression]]) -> Expression:
    total = rows[0][0] if len(rows) == 1 else ZERO
    for column, cell in enumerate(rows[0] if len(rows) > 1 else []):
        minor = _expand_determinant([row[:column] + row[column + 1 :] for row in rows[1:]])
        total = ("subtract" if column % 2 else "add", total, ("multiply", cell, minor))
    return total


def _number(text: str) -> Expression:
    return ("number", Fraction(text if text[-1] != "." else text + "0"))


def _read_base(word: str) -> int:
    """Return a base in digits or words; 0 if it is none."""
    base = NUMBER_WORDS.get(word) or (int(word) if re.fullmatch("[0-9]{1,2}", word) else 0)
    return base if 2 <= base <= 36 else 0


def _split(tokens: Tokens, sign: str) -> tuple[str, Tokens]:
    """Return the variable before a sign, and the tokens after it."""
    texts = [token.text for token in tokens]
    name = spell(tokens[: texts.index(sign)]) if sign in texts else ""
    if not re.fullmatch(r"\\?[a-zA-Z]+ ?", name):
        raise Unreadable("bounds without a variable")
    return name, tokens[texts.index(sign) + 1 :]


@lru_cache(maxsize=1024)
def read_expression(tokens: Tokens) -> Expression:
    """Return the tree of tokens. Raises :class:`Unreadable`."""
    if len(tokens) > MAX_TOKENS:
        raise Unreadable(f"more than {MAX_TOKENS} tokens")
    # Digits may be letters, as in 3E8_{16} and (AB)_{12}.
    if (based := _BASED.fullmatch(spell(tokens))) and (base := _read_base(based[2])):
        digits = based[1].upper()
        plain = digits.replace(".", "", 1)
        if len(plain) > 1 and plain.isascii() and plain.isalnum():
            if all(int(digit, 36) < base for digit in plain):
                return ("base", digits, base)
    return _Parser(tokens).read_all()


Shape = tuple[str, str, int]


def read_vector(tokens: Tokens) -> tuple[Shape, list[Expression]] | None:
    """Return brackets, columns and components of a vector or matrix; None for anything else."""
    try:
        parser = _Parser(tokens, vectors=True)
        vector = _distribute(parser.read_all())
    except Unreadable:
        return None
    if vector is None or parser.unit_vectors == {"i"}:
        return None
    shape, components = vector
    flat = parser.unit_vectors and "k" not in parser.unit_vectors
    return shape, components[:2] if flat else components


def _distribute(tree: Expression) -> tuple[Shape, list[Expression]] | None:
    """Distribute signs, factors and sums over the components of vectors."""
    operation, *operands = tree
    if operation == "vector":
        return operands[0], operands[1:]
    if operation not in ("add", "subtract", "negate", "multiply", "divide"):
        return None
    vectors = [_distribute(operand) for operand in operands]
    shapes = [(vector[0], len(vector[1])) for vector in vectors if vector]
    sums = operation not in ("multiply", "divide")
    if len(shapes) != (len(operands) if sums else 1) or len(set(shapes)) > 1:
        return None
    if operation == "divide" and vectors[1]:
        return None
    (shape, length), *_ = shapes
    columns = [
        vector[1] if vector else [operand] * length
        for operand, vector in zip(operands, vectors, strict=True)
    ]
    return shape, [(operation, *components) for components in zip(*columns, strict=True)]


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "negate": operator.neg,
}  # fmt: skip


def exact_value(tree: Expression) -> Fraction | None:
    """Return the value of rational arithmetic on numbers; None for anything else, or too large."""
    operation, *operands = tree
    if operation == "number":
        return Fraction(operands[0])
    if operation not in ARITHMETIC and operation != "power":
        return None
    values = []
    for operand in operands:
        value = exact_value(operand)
        if value is None or _count_bits(value) > _MAX_BITS:
            return None
        values.append(value)
    try:
        if operation in ARITHMETIC:
            return Fraction(ARITHMETIC[operation](*values))
        base, exponent = values
        if exponent.denominator != 1 or abs(exponent) * _count_bits(base) > _MAX_BITS:
            return None
        return Fraction(base ** int(exponent)) if base or exponent else None
    except ZeroDivisionError:
        return None


def _count_bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def walk(tree: Expression) -> list[Expression]:
    """Return an expression and all its parts."""
    parts = [tree]
    for factor in parts:
        parts += [operand for operand in factor[1:] if isinstance(operand, tuple)]
    return parts
