# SPDX-License-Identifier: Apache-2.0
"""Units and words after a value: units with prefixes and powers, currencies, scale words, nouns.

The tables are closed. Every other word is kept, and must be equal on both sides; words that change
the meaning of a number ("5 below zero", "5 is wrong") make the whole answer a text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from prime_ext.verifiers.math.notation import CURRENCIES, Token

# Exponents of ten of the prefixes of symbols and of names.
_PREFIXES = dict(zip(("", *"kMGTmcdnpuμh", "\\mu"), (0, 3, 6, 9, 12, -3, -2, -1, -9, -12, -6, -6,
                                                       2, -6), strict=True))  # fmt: skip
_LONG_PREFIXES = {
    **{"": 0, "kilo": 3, "mega": 6, "giga": 9, "tera": 12, "centi": -2, "milli": -3, "deci": -1},
    **{"micro": -6, "nano": -9, "pico": -12, "hecto": 2},
}
# Symbols that take prefixes, with their names.
_METRIC = """
    m meter metre 米 м метр, g gram gm 克 г, L liter litre l 升 л, s second sec 秒 с, J joule,
    W watt, V volt, A ampere amp, N newton, Hz hertz, Pa pascal, \\Omega ohm Ω, C coulomb, F farad,
    T tesla,
    H henry, eV electronvolt, Wh watthour, B byte, bit, mol mole, cal calorie, K kelvin,
    Bq becquerel, lm lumen, Sv sievert, pc parsec, dB decibel, bar, S siemens, Wb weber, rad radian
"""
# Factor, base and names of the others.
_OTHERS = """
    60 s minute min 分钟 分 мин, 3600 s hour hr h 小时 ч час, 86400 s day d 天, 604800 s week wk,
    1 month month mo, 12 month year yr 年, 1/100 USD cent ¢, 1 deg degree deg circ,
    1/60 deg arcminute, 1/3600 deg arcsecond, 254/10000 m inch in, 3048/10000 m foot ft feet,
    9144/10000 m yard yd, 1609344/1000 m mile mi, 1852 m nautical_mile nmi, 1000000 g tonne,
    45359237/100000 g pound lb, 1 ounce ounce oz, 1 ton ton, 1 gallon gallon gal, 1 quart quart qt,
    1 pint pint pt, 1/100 GBP pence penny p, 1 USD dollar usd 美元, 1 EUR euro eur, 1 GBP gbp,
    1 CNY yuan cny rmb 元, 1 JPY yen jpy 円, 1 INR rupee rs inr,
    1 RUB ruble rouble рубль рублей рубля rub, 1 ly light_year ly, 1 acre acre,
    1 turn revolution rev, 1000 g 千克 公斤 кг, 1000 m 千米 公里 км,
    1/100 m 厘米 см, 1/1000 m 毫米 мм,
    1 celsius celsius, 1 fahrenheit fahrenheit, 1 AU au,
    1 atm atm atmosphere, 1 person person people, 1 u unit
"""
_SYMBOLS: dict[str, str] = {}
_NAMES: dict[str, tuple[Fraction, str]] = {}
for _row in _METRIC.split(","):
    _symbol, *_names = _row.split()
    _SYMBOLS[_symbol] = _symbol
    for _name in _names:
        for _prefix, _exponent in _LONG_PREFIXES.items():
            _NAMES[_prefix + _name] = (Fraction(10) ** _exponent, _symbol)
for _row in _OTHERS.split(","):
    _factor, _base, *_names = _row.split()
    _NAMES |= {name: (Fraction(_factor), _base) for name in _names}
# Units that are products of others.
_DERIVED = {
    "J": (Fraction(1), {"N": 1, "m": 1}), "W": (Fraction(1), {"N": 1, "m": 1, "s": -1}),
    "Pa": (Fraction(1), {"N": 1, "m": -2}), "L": (Fraction(1, 1000), {"m": 3}),
    "Wh": (Fraction(3600), {"N": 1, "m": 1}),
}  # fmt: skip
_COMPATIBLE = (
    {"deg", "celsius"}, {"deg", "fahrenheit"}, {"deg", "rad"}, {"YEN", "CNY"}, {"YEN", "JPY"}
)  # fmt: skip
_COMPOUNDS = {
    "mph": "mi / h", "kph": "km / h", "kmh": "km / h", "kmph": "km / h", "fps": "ft / s",
    "mps": "m / s", "sqft": "sq ft", "rpm": "rev / min", "light-year": "light_year",
    "light-years": "light_year",
}  # fmt: skip
_WORD_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
# Patterns of tokens, each with a space after it, and the name that they are.
_CIRCLE = r"(?:\^ \{ circ \} |\^ circ |circ )"
_LONG_NAMES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (rf"(?:{_CIRCLE}|(?i:deg|degrees?) )(?i:c|celsius) ", "celsius"),
        (rf"(?:{_CIRCLE}|(?i:deg|degrees?) )(?i:f|fahrenheit) ", "fahrenheit"),
        (_CIRCLE, "circ"), ("' ", "foot"), ('" ', "inch"), (r"(?i:nautical) \S+ ", "nautical_mile"),
        (r"mu Omega ", r"\\mu\\Omega"), (r"mu ([^\W\d_]+) ", r"\\mu\1"), ("mu ", r"\\mu"),
        (r"([^\W\d_] )?Omega ", r"\1\\Omega"),
    )
]  # fmt: skip
_POWER = re.compile(r"\^ (?:\{ )?(-?) ?([1-4]) (?:\} )?|(squared|cubed) ")
_LOWER_SYMBOLS = {
    unit.lower(): unit for unit in "km cm mm kg mg mL kW kWh kHz MHz GHz kJ kPa Hz Pa".split()
}
SCALES = {
    **{"dozen": 12, "score": 20, "hundred": 100, "gross": 144, "k": 1000, "thousand": 1000},
    **{"lakh": 10**5, "crore": 10**7, "million": 10**6, "mn": 10**6, "mln": 10**6},
    **{"billion": 10**9, "bn": 10**9, "bln": 10**9, "trillion": 10**12, "quadrillion": 10**15},
    **{"百": 100, "千": 1000, "만": 10**4, "万": 10**4, "萬": 10**4, "百万": 10**6},
    **{"억": 10**8, "亿": 10**8, "億": 10**8, "兆": 10**12, "조": 10**12},
}
_PARTS = {
    **{"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7},
    **{"eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100, "thousandth": 1000},
    **{"millionth": 10**6, "billionth": 10**9},
}
NUMBER_WORDS = dict(
    zip(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
        " fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy"
        " eighty ninety".split(),
        (*range(20), *range(20, 100, 10)),
        strict=True,
    )
)
PARTS = _PARTS | {f"{name}s": value for name, value in _PARTS.items()} | {"halves": 2}
# Words that change what a number means, so that the words around it are neither unit nor label.
OPERATIVE = (
    frozenset(
        """
    not no nor never without except but unless if when where whenever otherwise either neither maybe
    perhaps possibly probably than less more fewer greater least most by minus plus times divided
    multiplied over under below above between through until till to from per half double twice
    triple thrice power root factorial point is are was were isn't aren't isnt equals equal wrong
    incorrect false mod modulo modulus remainder cubed squared cube square almost nearly around
    before after minimum maximum any other another instead rather or and then else up down short
    within every each all none first second last next matrix grid negative positive opposite
    reciprocal inverse outside beyond couple googol doubled tripled halved can cannot can't could
    should must might may don't doesn't 不 非 没有 倍 半 负 не нет
    """.split()
    )
    | NUMBER_WORDS.keys()
    | PARTS.keys()
    | SCALES.keys()
)
# Units of one letter in mathematics are variables unless white space separates them.
_LETTER_UNITS = frozenset("mgshLlVNJWKCAFTH")
_SILENT = frozenset("the a an of in total exactly about approximately approx roughly only".split())
_WORD = re.compile(r"[^\W\d_][\w'-]*")
DEGREES = (("deg", 1),)


@dataclass(frozen=True)
class Unit:
    """A unit: its factor, its base units with their powers, and the words that are not in it."""

    factor: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()
    words: tuple[str, ...] = ()
    bare: bool = False  # letters that could be variables as well
    glued: bool = False  # such letters without white space, as in "8m"

    def conflicts(self, other: "Unit") -> bool:
        """Return whether both say something, and not the same."""
        if self.powers and other.powers and self.powers != other.powers:
            # The scale of a temperature may be missing; radians are converted.
            both = {base for base, _ in (*self.powers, *other.powers)}
            return both not in _COMPATIBLE
        if bool(self.powers) != bool(other.powers) and bool(self.words) != bool(other.words):
            return True
        short, long = sorted((self.words, other.words), key=len)
        rest = iter(long)
        return not all(word in rest for word in short)


@lru_cache(maxsize=1024)
def find_base(name: str) -> tuple[Fraction, str] | None:
    """Return factor and base of the name or symbol of a unit, or None."""
    lower = name.lower()
    for candidate in (name, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if candidate in _NAMES and (len(candidate) > 1 or candidate == name):
            return _NAMES[candidate]
    for symbol in (name, _LOWER_SYMBOLS.get(lower, "")):
        for prefix, exponent in _PREFIXES.items():
            if symbol.startswith(prefix) and symbol[len(prefix) :] in _SYMBOLS:
                return Fraction(10) ** exponent, symbol[len(prefix) :]
    return (Fraction(1), name) if name in CURRENCIES.values() else None


def read_unit(tokens: Sequence[Token], glued: bool = False) -> Unit | None:
    """Return what the tokens after a value mean as a unit; None if they are not one.

    ``glued``: letters need no white space before them.
    """
    powers: dict[str, int] = {}
    words: list[str] = []
    factor = Fraction(1)
    bare = False
    sign = 1
    units = _list_units(tokens)
    for index, (token, power) in enumerate(units):
        name, lower = token.text, token.text.lower()
        if lower in ("/", "per"):
            if sign < 0 or index + 1 == len(units):
                return None
            sign = -1
            words += ["per"] if lower == "per" and words and not powers else []
            continue
        if "deg" in powers and lower in ("n", "s", "e", "w"):
            words.append(lower)
            continue
        letter = token.kind == "letters" and not token.roman
        base = find_base(name) if len(name) > 2 or not words else None
        if base and len(name) == 1 and name.isascii():
            if letter and not ((token.space or glued or index) and name in _LETTER_UNITS):
                return None
            if token.roman and name not in _LETTER_UNITS | {"B", "d"}:
                base = None
        if base:
            size, parts = _DERIVED.get(base[1], (Fraction(1), {base[1]: 1}))
            factor *= (base[0] * size) ** (sign * power)
            for symbol, exponent in parts.items():
                powers[symbol] = powers.get(symbol, 0) + sign * power * exponent
            bare |= letter
        elif power != 1 or lower in OPERATIVE or not _WORD.fullmatch(name) or letter:
            return None
        elif token.kind == "letters" and not words:
            return None
        elif name not in _SILENT:
            words.append(lower.removesuffix("s") if len(lower) > 3 else lower)
    if not units or len(words) > 5:
        return None
    bases = tuple(sorted((symbol, power) for symbol, power in powers.items() if power))
    return Unit(factor, bases, tuple(words), bare, glued)


def _list_units(tokens: Sequence[Token]) -> list[tuple[Token, int]]:
    """Return the units of tokens, each with its power; none if signs of mathematics are left."""
    rest: list[Token] = []
    for token in tokens:
        if token.text == "{" and rest[-1:] and rest[-1].text == "}":
            rest[-1] = Token("sign", "/")  # \frac{a}{b} is a/b
        elif token.text.lower() in _COMPOUNDS:
            names = _COMPOUNDS[token.text.lower()].split()
            rest += [Token("word" if name != "/" else "sign", name, True, True) for name in names]
        elif token.text not in ("(", ")", "cdot"):
            rest.append(token)
    if rest and rest[0].text == "frac":
        rest = [token for token in rest[1:] if token.text not in "{}"]
    units: list[tuple[Token, int]] = []
    while rest:
        power = _WORD_POWERS.get(rest[0].text.lower(), 1) if rest[1:] else 1
        rest = rest[power > 1 :]
        token, width = _read_name(rest)
        if not width:
            return []
        rest = rest[width:]
        following = "".join(f"{token.text.lower()} " for token in rest[:5])
        if match := _POWER.match(following):
            power = int(match[1] + match[2]) if match[2] else _WORD_POWERS[match[3]]
            rest = rest[match.group().count(" ") :]
        units.append((token, power))
    return units


def _read_name(tokens: Sequence[Token]) -> tuple[Token, int]:
    """Return the unit at the start of tokens as one token, and its length; 0 for none."""
    first = tokens[0]
    text = "".join(f"{token.text} " for token in tokens[:5])
    for pattern, name in _LONG_NAMES:
        if match := pattern.match(text):
            token = Token("word", match.expand(name).replace(" ", ""), first.space, True)
            return token, match.group().count(" ")
    if first.kind in ("sign", "number"):
        return first, int(first.text == "/")
    return first, int(first.kind != "command" or first.text in ("min", *CURRENCIES.values()))
