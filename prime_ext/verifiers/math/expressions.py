# SPDX-License-Identifier: Apache-2.0
"""Grammar of single expressions: tokens become a tree, or are not mathematics.

A tree is a tuple of an operation and its operands: ``("number", Fraction)``, ``("symbol", name)``,
``("add", left, right)``, ``("call", name, *arguments)``. Nothing is guessed: what the grammar does
not accept is :class:`Unreadable`, and its reader keeps it as text.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from prime_ext.verifiers.math.notation import FUNCTIONS, Token, Tokens, spell

Expression = tuple[Any, ...]

MAX_NESTING = 24
MAX_TOKENS = 400
MAX_DIGITS = 1000
# Rational numbers beyond are left to floating-point numbers.
_MAX_BITS = 40_000

_CALLED = frozenset("fghFGHPEV")
_CONSTANTS = frozenset(["e", "i", "\\pi", "\\infty"])
_NAMED = frozenset(
    "vec overline hat bar dot ddot tilde widehat widetilde mathcal mathscr mathfrak overrightarrow"
    " mathbb overset angle triangle measuredangle arc overarc check breve acute".split()
)
_NOT_VALUES = frozenset(
    "text begin end cup cap setminus le ge ne in notin approx emptyset subset subseteq supset"
    " supseteq forall exists neg wedge vee Rightarrow Leftrightarrow to mapsto parallel perp sim"
    " cong equiv mid oplus otimes circ ldots pm mp pmod mod cancel permil over choose therefore"
    " leftarrow leftrightarrow propto ni times star dagger top bot mapsto prime".split()
)
_BRACKETS = {"\\{": "\\}", "(": ")", "[": "]", "{": "}", "|": "|", "‖": "‖"}
_RANGES = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}
_BASE_WORDS = {
    name: value
    for value, name in enumerate("two three four five six seven eight nine ten".split(), 2)
}
KNOWN_CALLS = FUNCTIONS | frozenset(["abs", "norm", "binom", "permutations", "factorial"])
_INVERSES = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"}
_HEX = re.compile(r"[0-9A-Za-z]+")
ZERO: Expression = ("number", Fraction(0))


class Unreadable(ValueError):
    """Tokens that are not one expression."""


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens: list[Token] = []
        self.glued: set[int] = set()  # letters that directly follow a letter
        for token in tokens:
            if token.kind == "letters" and len(token.text) > 1 and token.text not in _COUNTS:
                letters = [token._replace(text=one, space=False) for one in token.text]
                letters[0] = letters[0]._replace(space=token.space)
                start = len(self.tokens)
                self.tokens += letters
                self.glued.update(range(start + 1, len(self.tokens)))
            else:
                self.tokens.append(token)
        self.position = 0
        self.depth = 0
        self.bars = 0

    def look(self, offset: int = 0) -> Token:
        index = self.position + offset
        return self.tokens[index] if index < len(self.tokens) else _END

    def take(self) -> Token:
        token = self.look()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        if self.look().text == text and self.look().kind in ("sign", "command"):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Unreadable(f"expected {text}, got {self.look().text or 'the end'}")

    def whole(self) -> Expression:
        """Read an expression with ``\\over`` or ``choose``, which bind least."""
        left = self.expression()
        if self.accept("over"):
            return ("divide", left, self.expression())
        if self.accept("choose") or (self.look().text == "choose" and self.take()):
            return ("call", "binom", left, self.expression())
        return left

    def nested(self, read: Callable[[], Expression]) -> Expression:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Unreadable(f"brackets nested deeper than {MAX_NESTING}")
        inner = read()
        self.depth -= 1
        return inner

    def expression(self) -> Expression:
        total = self.term()
        while (sign := self.look()).text in ("+", "-") and sign.kind == "sign":
            self.take()
            total = ("add" if sign.text == "+" else "subtract", total, self.term())
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
            return token.text not in _NOT_VALUES and token.text not in ("rfloor", "rceil", "cdot")
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
        fraction: Expression | None = None
        if self.look().text == "frac" and self.look().kind == "command":
            fraction = self.factor()
        elif self.look().kind == self.look(2).kind == "number" and self.look(1).text == "/":
            if not (self.look().space and self.look(3).text not in ("^", "!")):
                raise Unreadable("numbers side by side")
            above, _, below = self.take().text, self.take(), self.take().text
            fraction = ("divide", _number(above), _number(below))
        if fraction is not None and fraction[0] == "divide":
            above, below = fraction[1], fraction[2]
            if above[0] == below[0] == "number" and 0 < above[1] < below[1]:
                if above[1].denominator == below[1].denominator == 1:
                    return ("add", _number(whole.text), fraction)
        self.position = start
        return None

    def factor(self) -> Expression:
        return self.postfix(self.primary())

    def postfix(self, base: Expression) -> Expression:
        while True:
            if self.accept("^"):
                base = self.power(base)
            elif self.look().text == "!" and self.look().kind == "sign":
                self.take()
                if self.look().text == "!":
                    raise Unreadable("a double factorial")
                base = ("call", "factorial", base)
            elif self.look().text == "_" and base[0] == "number":
                raise Unreadable("a number with an index")
            else:
                return base

    def power(self, base: Expression) -> Expression:
        braces = self.look().text == "{"
        inside = self.look(1) if braces else self.look()
        if inside.text == "circ" and (not braces or self.look(2).text == "}"):
            self.position += 3 if braces else 1
            return ("degrees", base)
        if inside.kind == "word" or inside.text in ("T", "top", "prime", "*", "+"):
            raise Unreadable(f"a power {inside.text}")
        return ("power", base, self.argument(sign=True))

    def argument(self, sign: bool = False) -> Expression:
        """Read what a command or a power takes: a group, a number, a letter or a command."""
        if self.look().text in ("{", "("):
            close = _BRACKETS[self.take().text]
            bars, self.bars = self.bars, 0
            inner = self.nested(self.whole)
            self.bars = bars
            self.expect(close)
            return inner
        if sign and self.accept("-"):
            return ("negate", self.argument())
        token = self.look()
        if token.kind == "letters":
            self.take()
            return ("symbol", token.text) if self.look().text != "_" else self.symbol(token.text)
        return self.nested(self.primary)

    def primary(self) -> Expression:
        token = self.take()
        if token.kind == "number":
            return self.number(token)
        if token.text in _COUNTS and token.kind == "letters":
            self.expect("(")
            upper, lower = self.arguments()
            return ("call", _COUNTS[token.text], upper, lower)
        if token.kind == "letters":
            return self.symbol(token.text)
        if token.kind == "command":
            return self.command(token.text)
        if token.text == "{" and self.look().text == "}" and self.look(1).text == "_":
            return self.chosen_before()
        if token.kind == "sign" and token.text in _BRACKETS and token.text != "\\{":
            bars, self.bars = self.bars, int(token.text in "|‖")
            inner = self.nested(self.whole)
            self.bars = bars
            self.expect(_BRACKETS[token.text])
            name = {"|": "abs", "‖": "norm"}.get(token.text)
            if self.look().text == "_" and token.text in "([":
                return self.based(inner)
            return ("call", name, inner) if name else inner
        raise Unreadable(f"unexpected {token.text or 'end'}")

    def number(self, token: Token) -> Expression:
        text = token.text
        if text.count(".") > 1 or len(text) > MAX_DIGITS:
            raise Unreadable("a number with two points, or too long")
        here, after = self.look(), self.look(1)
        if here.text in ("e", "E") and not here.space and here.kind == "letters":
            minus = after.text in ("-", "+")
            exponent = self.look(2) if minus else after
            if exponent.kind == "number" and exponent.text.isdigit() and not exponent.space:
                if self.look(3 if minus else 2).text != "_" and len(exponent.text) < 4:
                    self.position += 3 if minus else 2
                    power = int(exponent.text) * (-1 if after.text == "-" else 1)
                    return ("number", Fraction(text) * Fraction(10) ** power)
        if here.text in ("C", "P") and after.kind == "number" and here.kind == "letters":
            self.position += 2
            name = "binom" if here.text == "C" else "permutations"
            return ("call", name, _number(text), _number(after.text))
        if here.text == "_" and text.isdigit():
            return self.based(_number(text), text)
        return self.repeating(text) or _number(text)

    def repeating(self, text: str) -> Expression | None:
        """Read ``0.1\\overline{6}``, ``0.(3)``, ``0.\\dot{3}`` and ``0.333...``."""
        start = self.position
        if "." not in text:
            if self.look().text != "." or self.look().space:
                return None
            self.take()
            text += "."
        here = self.look()
        if here.text in ("overline", "bar", "dot", "(") and not here.space:
            self.take()
            braced = here.text != "(" and self.accept("{")
            cycle = self.take().text
            if cycle.isdigit() and (not (braced or here.text == "(") or self.take().text in "})"):
                if here.text == "dot" and self.look().kind == "number":
                    cycle += self.take().text
                if here.text == "dot" and self.accept("dot"):
                    braced = self.accept("{")
                    cycle += self.take().text
                    self.position += braced
                places = text.partition(".")[2]
                value = Fraction(text + "0") + Fraction(
                    int(cycle), 10 ** len(places) * (10 ** len(cycle) - 1)
                )
                return ("number", value)
        elif self.accept("ldots") or [self.look(n).text for n in range(3)] == [".", ".", "."]:
            self.position += 3 * (here.text == ".")
            if match := re.fullmatch(r"(\d+\.\d*?)((\d+?)\3{1,})", text):
                lead, _, cycle = match.groups()
                places = lead.partition(".")[2]
                return (
                    "number",
                    Fraction(lead + "0")
                    + Fraction(int(cycle), 10 ** len(places) * (10 ** len(cycle) - 1)),
                )
        self.position = start
        return None

    def based(self, inner: Expression, digits: str = "") -> Expression:
        """Read the base of a number: ``52_8``, ``(101)_{2}``, ``101_{\\text{two}}``."""
        self.expect("_")
        index = spell(self.script())
        base = _BASE_WORDS.get(index) or (int(index) if index.isdigit() else 0)
        if not 2 <= base <= 36 or inner[0] != "number":
            raise Unreadable("an index of a value")
        return ("base", digits or _digits(inner), base)

    def script(self) -> Tokens:
        """Take the tokens of an index."""
        if not self.accept("{"):
            return (self.take(),)
        depth = 1
        start = self.position
        while depth:
            token = self.take()
            if token is _END:
                raise Unreadable("an open index")
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "sign" else 0
        return tuple(self.tokens[start : self.position - 1])

    def symbol(self, name: str) -> Expression:
        while True:
            if self.look().text == "_" and self.look().kind == "sign":
                self.take()
                name += "_" + spell(self.script()).replace(" ", "").replace("\\", "")
                if name[0] == "C" and "^" == self.look().text and "_" in name:
                    if (chosen := self.chosen(name[2:])) is not None:
                        return chosen
            elif self.look().text == "'":
                self.take()
                name += "'"
            elif self.look().text == "^" and "prime" in (self.look(1).text, self.look(2).text):
                self.take()
                name += "'" * spell(self.script()).count("prime")
            else:
                break
        bare = name.rstrip("'")
        if (
            bare in _CALLED
            and self.look().text == "^"
            and spell(self.tokens[self.position + 1 : self.position + 5]) == "{-1}"
        ):
            self.position += 5
            name += "^-1"
        if self.look().text == "(" and self.is_call(name):
            self.take()
            if name in ("C", "P"):
                arguments = self.arguments()
                if len(arguments) == 2:
                    return ("call", "binom" if name == "C" else "permutations", *arguments)
                return ("call", name, *arguments)
            return ("call", name, *self.arguments())
        return ("symbol", name)

    def is_call(self, name: str) -> bool:
        """Return whether brackets after a name hold arguments, not a factor."""
        inside, close = self.look(1), self.look(2)
        if name[:1] in _CALLED and name[1:2] in ("", "'", "_", "^"):
            end = next((i for i in range(1, 40) if self.look(i).text in (")", "")), 40)
            letters = {self.look(i).text for i in range(1, end) if self.look(i).kind == "letters"}
            if name[0] in "fPG" or letters <= set("xyztunk"):
                return True
        if name in _CONSTANTS:
            return False
        if inside.kind in ("number", "letters") and close.text == ")":
            return inside.text != name
        depth = 0
        for token in self.tokens[self.position :]:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 1 and token.text == ",":
                return True
            if depth == 0:
                break
        return False

    def arguments(self, close: str = ")") -> list[Expression]:
        bars, self.bars = self.bars, 0
        arguments = [self.nested(self.whole)]
        while self.accept(",") or self.accept(";"):
            arguments.append(self.nested(self.whole))
        self.bars = bars
        self.expect(close)
        return arguments

    def chosen(self, upper: str) -> Expression | None:
        """Read ``C_{n}^{k}``; not ``C_1^2``, the square of a constant."""
        start = self.position
        self.take()
        lower = spell(self.script())
        plain = upper.isdigit() and lower.isdigit() and int(lower) <= int(upper)
        if plain or (not upper.isdigit() and re.fullmatch(r"[a-z0-9+\-]+", upper + lower)):
            return (
                "call",
                "binom",
                read_expression(_retokenize(upper)),
                read_expression(_retokenize(lower)),
            )
        self.position = start
        return None

    def chosen_before(self) -> Expression:
        """Read ``{}_8C_3``."""
        self.position += 2
        upper = self.script()
        letter = self.take().text
        self.expect("_")
        lower = self.script()
        if letter not in ("C", "P"):
            raise Unreadable("an index before a letter")
        name = "binom" if letter == "C" else "permutations"
        return ("call", name, read_expression(upper), read_expression(lower))

    def command(self, name: str) -> Expression:
        if name in ("frac", "binom"):
            if name == "frac" and (derivative := self.derivative()):
                return derivative
            above = self.argument()
            below = self.argument()
            return ("divide", above, below) if name == "frac" else ("call", "binom", above, below)
        if name == "sqrt":
            degree: Expression = ("number", Fraction(2))
            if self.accept("["):
                degree = self.nested(self.expression)
                self.expect("]")
            return ("root", self.argument(), degree)
        if name in FUNCTIONS:
            return self.function(name)
        if name in _RANGES:
            inner = self.nested(self.whole)
            self.expect(_RANGES[name][0])
            return ("call", _RANGES[name][1], inner)
        if name in ("sum", "prod"):
            return self.series(name)
        if name == "int":
            return self.integral()
        if name == "lim":
            self.expect("_")
            variable, _, bound = _split(self.script(), "to")
            bound = bound[:-2] if bound[-2:-1] and bound[-2].text == "^" else bound
            body = self.nested(self.term)
            return ("limit", _letter(variable), read_expression(bound), body)
        if name in _NAMED:
            start = self.position
            if name in ("overline", "bar") and self.look().text == "{":
                content = spell(self.script())
                if re.search(r"[+\-].*i|i.*[+\-]", content):
                    self.position = start
                    return ("call", "conjugate", self.argument())
            elif self.look().text in ("{", "("):
                content = spell(self.script()) if self.look().text == "{" else ""
            else:
                content = self.take().text
                if name in ("angle", "triangle"):
                    while self.look().kind == "letters" and not self.look().space:
                        content += self.take().text
            if not content:
                raise Unreadable(f"\\{name} without a name")
            return self.symbol(f"{name} {content}")
        if name in _NOT_VALUES or len(name) > 12 or name in _UNKNOWN_WITH_ARGUMENTS:
            raise Unreadable(f"\\{name} is not a value")
        if self.look().text == "{":
            raise Unreadable(f"\\{name} is unknown")
        return self.symbol(f"\\{name}")

    def derivative(self) -> Expression | None:
        """Read ``\\frac{dy}{dx}`` as ``y'`` and ``\\frac{\\partial f}{\\partial x}`` as a name."""
        start = self.position
        parts = []
        for _ in range(2):
            if not self.look().text == "{":
                break
            parts.append(self.script())
        if len(parts) == 2 and all(
            len(part) == 2 and part[1].kind == "letters" and part[0].text in ("d", "partial")
            for part in parts
        ):
            (mark, upper), (_, lower) = parts
            if mark.text == "d" and lower.text in ("x", "t") and upper.text != lower.text:
                return self.symbol(upper.text + "'" if lower.text == "x" else f"dot {upper.text}")
            return self.symbol(f"{mark.text} {upper.text}/{lower.text}")
        self.position = start
        return None

    def function(self, name: str) -> Expression:
        base: Expression | None = None
        power: Expression | None = None
        while self.look().text in ("_", "^") and self.look().kind == "sign":
            if self.take().text == "_":
                base = self.base_argument()
            else:
                power = self.argument(sign=True)
        if power is not None and exact_value(power) == -1 and name in _INVERSES:
            name = ("ar" if name[-1] == "h" else "arc") + name
            power = None
        arguments = self.function_arguments()
        name = {"lg": "log"}.get(name, name)
        if name == "log":
            call: Expression = ("call", "log", arguments[0], base or ("number", Fraction(10)))
        elif name == "abs" or base is None:
            call = ("call", name, *arguments)
        else:
            raise Unreadable(f"an index of {name}")
        return ("power", call, power) if power is not None else call

    def base_argument(self) -> Expression:
        """Read the base of a logarithm: one digit, unless it is written 10."""
        token = self.look()
        if token.kind != "number" or len(token.text) < 2 or token.text == "10":
            return self.argument()
        self.tokens[self.position] = token._replace(text=token.text[1:])
        return _number(token.text[0])

    def function_arguments(self) -> list[Expression]:
        opening = self.look()
        if opening.kind == "sign" and opening.text in ("(", "[", "{", "\\{"):
            self.take()
            return self.arguments(_BRACKETS[opening.text])
        if opening.text == "|" and self.bars % 2 == 0:
            return [self.factor()]
        if opening.text in _RANGES or opening.kind == "command" and opening.text in FUNCTIONS:
            return [self.factor()]
        sign = self.accept("-")
        argument = self.mixed_number() or self.factor()
        while self.starts_factor() and self.look().text not in FUNCTIONS | {"|", "sum", "int"}:
            argument = ("multiply", argument, self.factor())
        return [("negate", argument) if sign else argument]

    def series(self, name: str) -> Expression:
        low: Tokens = ()
        high: Tokens = ()
        for _ in range(2):
            if self.accept("_"):
                low = self.script()
            elif self.accept("^"):
                high = self.script()
        variable, _, start = _split(low, "=")
        if not high:
            raise Unreadable("a sum without bounds")
        return (
            name,
            _letter(variable),
            read_expression(start),
            read_expression(high),
            self.nested(self.term),
        )

    def integral(self) -> Expression:
        low: Tokens = ()
        high: Tokens = ()
        for _ in range(2):
            if self.accept("_"):
                low = self.script()
            elif self.accept("^"):
                high = self.script()
        for index in range(self.position, len(self.tokens) - 1):
            if self.tokens[index].text == "d" and self.tokens[index + 1].kind == "letters":
                break
        else:
            raise Unreadable("an integral without a variable")
        body = tuple(self.tokens[self.position : index])
        variable = self.tokens[index + 1].text
        self.position = index + 2
        if not (low and high and body) or any(token.text == "int" for token in body):
            raise Unreadable("not one definite integral")
        return (
            "integral",
            variable,
            read_expression(low),
            read_expression(high),
            read_expression(body),
        )


_COUNTS = {"nCr": "binom", "ncr": "binom", "nPr": "permutations", "npr": "permutations"}
_UNKNOWN_WITH_ARGUMENTS = frozenset("stackrel underset overbrace underbrace foo".split())
_END = Token("end", "")


def _number(text: str) -> Expression:
    return ("number", Fraction(text if text[-1] != "." else text + "0"))


def _digits(inner: Expression) -> str:
    if inner[1].denominator != 1:
        raise Unreadable("a base of a fraction")
    return str(inner[1])


def _letter(tokens: Tokens) -> str:
    name = spell(tokens)
    if not re.fullmatch(r"\\?[a-zA-Z]+ ?", name):
        raise Unreadable("a variable that is not a letter")
    return name


def _split(tokens: Tokens, sign: str) -> tuple[Tokens, str, Tokens]:
    for index, token in enumerate(tokens):
        if token.text == sign:
            return tokens[:index], sign, tokens[index + 1 :]
    raise Unreadable(f"bounds without {sign}")


def _retokenize(text: str) -> Tokens:
    return tuple(
        Token("number" if one.isdigit() else "letters" if one.isalpha() else "sign", one)
        for one in re.findall(r"\d+|.", text)
    )


@lru_cache(maxsize=1024)
def read_expression(tokens: Tokens) -> Expression:
    """Return the tree of tokens. Raises :class:`Unreadable`."""
    if len(tokens) > MAX_TOKENS:
        raise Unreadable(f"more than {MAX_TOKENS} tokens")
    if (based := _read_based_letters(tokens)) is not None:
        return based
    parser = _Parser(tokens)
    tree = parser.whole()
    if parser.position != len(parser.tokens):
        raise Unreadable(f"unexpected {parser.look().text}")
    return tree


def _read_based_letters(tokens: Tokens) -> Expression | None:
    """Read numbers whose digits are letters, such as ``3E8_{16}`` and ``(AB)_{12}``."""
    marks = [index for index, token in enumerate(tokens) if token.text == "_"]
    if len(marks) != 1 or marks[0] == 0:
        return None
    digits = spell([token for token in tokens[: marks[0]] if token.text not in "(){}"])
    base = spell(tokens[marks[0] + 1 :]).strip("{}()")
    base = str(_BASE_WORDS.get(base, base))
    plain = digits.replace(".", "", 1)
    if len(plain) < 2 or not base.isdigit() or not 2 <= int(base) <= 36:
        return None
    return (
        ("base", digits.upper(), int(base))
        if _HEX.fullmatch(plain) and (all(int(digit, 36) < int(base) for digit in plain))
        else None
    )


def exact_value(tree: Expression) -> Fraction | None:
    """Return the value of rational arithmetic on numbers; None for anything else, or too large."""
    operation = tree[0]
    if operation == "number":
        return Fraction(tree[1])
    if operation not in ("add", "subtract", "multiply", "divide", "negate", "power"):
        return None
    values: list[Fraction] = []
    for operand in tree[1:]:
        value = exact_value(operand)
        if value is None or _bits(value) > _MAX_BITS:
            return None
        values.append(value)
    left, right = values if len(values) == 2 else (Fraction(0), values[0])
    if operation == "add":
        return left + right
    if operation in ("subtract", "negate"):
        return left - right
    if operation == "multiply":
        return left * right
    if operation == "divide":
        return left / right if right else None
    if right.denominator != 1 or abs(right) * _bits(left) > _MAX_BITS or (not left and right <= 0):
        return None
    return Fraction(left ** int(right))


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def walk(tree: Expression) -> list[Expression]:
    """Return an expression and all its parts."""
    parts = [tree]
    for part in parts:
        parts += [operand for operand in part[1:] if isinstance(operand, tuple)]
    return parts
