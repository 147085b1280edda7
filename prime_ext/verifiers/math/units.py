# SPDX-License-Identifier: Apache-2.0
"""What may follow a value: units with prefixes and powers, currencies, scale words, nouns.

The tables are closed. Every other word is kept, and must be equal on both sides; words that change
the meaning of a number ("5 below zero", "5 is wrong") make the whole answer a text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from prime_ext.verifiers.math.notation import CURRENCIES, Token

_PREFIXES = {
    **{"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "m": -3, "c": -2, "d": -1, "n": -9, "p": -12},
    **{"\\mu": -6, "u": -6, "μ": -6, "h": 2},
}
_LONG_PREFIXES = {
    **{"": 0, "kilo": 3, "mega": 6, "giga": 9, "tera": 12, "centi": -2, "milli": -3, "deci": -1},
    **{"micro": -6, "nano": -9, "pico": -12, "hecto": 2},
}
# Symbols that take prefixes, and their names.
_METRIC = {
    "m": "meter metre 米 м метр", "g": "gram 克 г", "L": "liter litre l 升 л", "s": "second sec 秒 с",
    "J": "joule", "W": "watt", "V": "volt", "A": "ampere amp", "N": "newton", "Hz": "hertz",
    "Pa": "pascal", "\\Omega": "ohm Ω", "C": "coulomb", "F": "farad", "T": "tesla", "H": "henry",
    "eV": "electronvolt", "Wh": "watthour", "B": "byte", "bit": "bit bits", "mol": "mole",
    "cal": "calorie", "K": "kelvin", "Bq": "becquerel", "lm": "lumen", "Sv": "sievert", "t": "",
    "pc": "parsec", "dB": "decibel", "bar": "bar", "S": "siemens", "Wb": "weber", "rad": "radian",
}
_FACTORS: dict[str, tuple[Fraction, str, str]] = {}
for _row in (
    "60 s minute min mins 分钟 分 мин,3600 s hour hr hrs h 小时 ч час,86400 s day d 天,604800 s week wk"
    ",1 month month mo,12 month year yr 年,1/100 USD cent,1 deg degree deg degs circ,1/60 deg arcminute"
    ",1/3600 deg arcsecond,254/10000 m inch in,3048/10000 m foot ft feet,9144/10000 m yard yd,"
    "1609344/1000 m mile mi,1852 m nautical_mile nmi,1000000 g tonne ton_metric,"
    "45359237/100000 g pound lb lbs,1 ounce ounce oz,1 ton ton,1 gallon gallon gal,1 quart quart qt"
    ",1 pint pint pt,1/100 GBP pence penny p,1 USD dollar usd 美元,1 EUR euro eur,1 GBP pounds_sterling"
    " gbp,1 CNY yuan cny rmb yen 元,1 INR rupee rs inr,1 RUB ruble rouble рубль рублей рубля rub"
    ",1 ly light_year ly,1 acre acre,10000 m^2 hectare ha,1 turn revolution rev rpm_1,1000 g"
    " 千克 公斤 кг,1000 m 千米 公里 км,1/100 m 厘米 см,1/1000 m 毫米 мм,1 celsius celsius"
    ",1 fahrenheit fahrenheit,1 AU au,1 atm atm atmosphere,1 person person people,1 u unit"
).split(","):
    _factor, _base, *_names = _row.split()
    for _name in _names:
        _FACTORS[_name] = (Fraction(_factor), _base.partition("^")[0], _base.partition("^")[2])
_BASES: dict[str, str] = {}
for _symbol, _long in _METRIC.items():
    _BASES[_symbol] = _symbol
    _BASES |= {name: _symbol for name in _long.split()}
_COMPOUNDS = {
    "mph": "mi / h", "kph": "km / h", "kmh": "km / h", "kmph": "km / h", "fps": "ft / s",
    "mps": "m / s", "sqft": "ft ^ 2", "rpm": "revolution / min",
}
SCALES = {
    **{"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    **{"dozen": 12, "lakh": 10**5, "crore": 10**7, "quadrillion": 10**15, "bn": 10**9, "mn": 10**6},
    **{"k": 1000, "score": 20, "gross": 144, "mln": 10**6, "bln": 10**9},
    **{"万": 10**4, "亿": 10**8, "百": 100, "千": 1000, "百万": 10**6, "萬": 10**4, "億": 10**8},
}
_PARTS = dict(zip(
    "half third quarter fourth fifth sixth seventh eighth ninth tenth twelfth hundredth thousandth"
    " millionth billionth".split(),
    (2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 12, 100, 1000, 10**6, 10**9), strict=True,
))
PARTS = _PARTS | {f"{name}s": value for name, value in _PARTS.items()} | {"halves": 2}
# Words that change what a number means, so that the words around it are no unit and no label.
OPERATIVE = frozenset(
    "not no nor never without except but unless if when where whenever otherwise either neither"
    " maybe perhaps possibly probably than less more fewer greater least most by minus plus times"
    " divided multiplied over under below above between through until till to from per half double"
    " twice triple thrice power root factorial point zero one two three four five six seven eight"
    " nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety is are was were"
    " isn't aren't isnt equals equal wrong incorrect false mod modulo modulus remainder cubed"
    " squared cube square almost nearly around before after minimum maximum any other another"
    " instead rather or and then else up down short within every each all none only first second"
    " last next matrix grid negative positive opposite reciprocal inverse outside beyond"
    " 不 非 没有 倍 半 负 не нет".split()
) | PARTS.keys() | SCALES.keys()
# Units of one letter in mathematics are variables unless white space separates them.
_LETTER_UNITS = frozenset("mgshLlVNJWKCAFTH")
_OPTIONAL = frozenset("the a an of in total exactly about approximately approx roughly".split())
_WORD = re.compile(r"[^\W\d_][\w'-]*")


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
        if (self.powers and other.powers) and self.powers != other.powers:
            # The scale of a temperature may be missing.
            both = {base for base, _ in (*self.powers, *other.powers)}
            return both not in ({"deg", "celsius"}, {"deg", "fahrenheit"}, {"deg", "rad"})
        if bool(self.powers) != bool(other.powers) and bool(self.words) != bool(other.words):
            return True
        short, long = sorted((self.words, other.words), key=len)
        if not short and not self.powers and not other.powers:
            return False
        if not short:
            return False
        rest = iter(long)
        return not all(word in rest for word in short)


def find_base(word: str) -> tuple[Fraction, str, int] | None:
    """Return factor, base unit and power of a unit's name or symbol, or None."""
    if word in _FACTORS:
        factor, base, power = _FACTORS[word]
        return factor, base, int(power or 1)
    lower = word.lower()
    for name in (word, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if name in _FACTORS and (len(word) > 1 or name == word):
            factor, base, power = _FACTORS[name]
            return factor, base, int(power or 1)
        if len(name) > 3 or not name.isascii():
            for prefix, exponent in _LONG_PREFIXES.items():
                base = _BASES.get(name.removeprefix(prefix), "") if name.startswith(prefix) else ""
                if base and (len(name.removeprefix(prefix)) > 2 or not name.isascii()):
                    return Fraction(10) ** exponent, base, 1
    for prefix, exponent in _PREFIXES.items():
        symbol = word.removeprefix(prefix)
        if word.startswith(prefix) and symbol in _METRIC and (symbol != "t"):
            return Fraction(10) ** exponent, symbol, 1
    if lower in ("km", "cm", "mm", "kg", "mg", "ml", "kw", "kwh", "khz", "mhz", "ghz", "kj", "kpa"):
        fixed = {"ml": "mL", "kw": "kW", "kwh": "kWh", "khz": "kHz", "mhz": "MHz", "ghz": "GHz"}
        return find_base({**fixed, "kj": "kJ", "kpa": "kPa"}.get(lower, lower)) if (
            word != {**fixed}.get(lower, lower)
        ) else None
    return None


def read_unit(tokens: Sequence[Token], glued: bool = False) -> Unit | None:
    """Return what the tokens after a value mean as a unit; None if they are not one.

    ``glued``: letters need no white space before them.
    """
    factor = Fraction(1)
    powers: dict[str, int] = {}
    words: list[str] = []
    bare = False
    sign = 1
    pending = 0  # "square" and "cubic"
    position = 0
    texts = [token.text for token in tokens]
    while position < len(tokens):
        token = tokens[position]
        text = token.text
        position += 1
        if text == "/" or (token.kind == "word" and text.lower() == "per"):
            if sign < 0 or position == len(tokens):
                return None
            sign = -1
            continue
        if text == "cdot" and token.kind == "command":
            continue
        if text == "frac" and token.kind == "command":
            close = [index for index, one in enumerate(texts) if one == "}"]
            if len(close) != 2 or position != 1:
                return None
            above = read_unit(tokens[2 : close[0]])
            below = read_unit(tokens[close[0] + 2 : close[1]])
            if above is None or below is None:
                return None
            factor *= above.factor / below.factor
            powers.update(above.powers)
            for base, power in below.powers:
                powers[base] = powers.get(base, 0) - power
            position = close[1] + 1
            continue
        if text in ("(", ")") and token.kind == "sign":
            continue
        if text == "^" and texts[position : position + 3] == ["{", "circ", "}"]:
            position += 3
            text = "circ"
        elif text == "^" and texts[position : position + 1] == ["circ"]:
            position += 1
            text = "circ"
        if text == "'" or text == '"':
            text = {"'": "foot", '"': "inch"}[text]
        if text == "circ":
            letter = tokens[position] if position < len(tokens) else None
            if letter and letter.text.lower() in ("c", "f", "celsius", "fahrenheit"):
                position += 1
                text = {"c": "celsius", "f": "fahrenheit"}[letter.text[0].lower()]
        elif token.kind in ("sign", "number") or (token.kind == "command" and not (
            text in CURRENCIES.values() or text in ("mu", "Omega", "min")
        )):
            return None
        name = f"\\{text}" if token.kind == "command" and text in ("mu", "Omega") else text
        if name == "\\mu" and position < len(tokens) and tokens[position].kind != "sign":
            name += tokens[position].text
            position += 1
        elif len(name) == 1 and position < len(tokens) and tokens[position].text == "Omega":
            name += "\\Omega"
            position += 1
        lower = name.lower()
        if lower in ("square", "sq", "cubic", "cu") and position < len(tokens):
            pending = 2 if lower.startswith("sq") else 3
            continue
        if lower in ("degrees", "degree", "deg") and position < len(tokens) and tokens[
            position
        ].text.lower() in ("c", "f", "celsius", "fahrenheit"):
            name = {"c": "celsius", "f": "fahrenheit"}[tokens[position].text[0].lower()]
            position += 1
        if lower == "nautical" and position < len(tokens):
            name = "nautical_mile"
            position += 1
        if lower in ("light-years", "light-year", "lightyears"):
            name = "light_year"
        if lower in _COMPOUNDS and token.kind != "letters" or lower in ("mph", "kmh", "kph"):
            parts = _COMPOUNDS[lower].split()
            inner = read_unit([Token("word", one) if one.isalpha() else Token(
                "number" if one.isdigit() else "sign", one) for one in parts])
            assert inner is not None
            factor *= inner.factor
            powers.update(inner.powers)
            continue
        if "deg" in powers and lower in ("n", "s", "e", "w"):
            words.append(lower)
            continue
        known = find_base(name) if name not in CURRENCIES.values() else (Fraction(1), name, 1)
        letter = token.kind == "letters" and not token.roman
        if known and letter and len(name) == 1 and not (
            (token.space or glued or position > 1) and name in _LETTER_UNITS
        ):
            return None
        if letter and not known:
            return None
        if known and token.roman and len(name) == 1 and name.isascii() and (
            name not in _LETTER_UNITS | {"B", "d"}
        ):
            known = None
        if known and not (words and len(name) < 3):
            scale, base, own = known
            power = pending or 1
            pending = 0
            if position < len(tokens) and texts[position] == "^":
                exponent, used = _read_power(tokens[position + 1 :])
                if exponent == 0:
                    return None
                power = exponent
                position += 1 + used
            elif position < len(tokens) and texts[position].lower() in ("squared", "cubed"):
                power = 2 if texts[position].lower() == "squared" else 3
                position += 1
            factor *= scale ** (sign * power)
            powers[base] = powers.get(base, 0) + own * sign * power
            bare |= letter
            continue
        if token.kind == "letters" and not words:
            return None
        if lower in OPERATIVE or not _WORD.fullmatch(text) or sign < 0 and not powers and words:
            return None
        if lower not in _OPTIONAL:
            words.append(lower.removesuffix("s") if len(lower) > 3 else lower)
        if sign < 0:
            words.insert(-1, "per")
    if len(words) > 5 or pending and not powers:
        return None
    known_powers = tuple(sorted((base, power) for base, power in powers.items() if power))
    return Unit(factor, known_powers, tuple(words), bare, glued)


def _read_power(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the exponent after ``^`` and how many tokens it has; 0 if it is not a small one."""
    texts = [token.text for token in tokens[:4]]
    braces = texts[:1] == ["{"]
    inside = texts[1:] if braces else texts
    sign = -1 if inside[:1] == ["-"] else 1
    digits = inside[1] if sign < 0 and len(inside) > 1 else inside[0] if inside else ""
    if digits not in ("1", "2", "3", "4"):
        return 0, 0
    return sign * int(digits), 1 + (sign < 0) + 2 * braces
