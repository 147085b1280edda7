# SPDX-License-Identifier: Apache-2.0
"""What may follow a value: units with prefixes and powers, currencies, scale words, nouns.

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
    m meter metre 米 м метр, g gram gm 克 г, L liter litre l 升 л, s second sec 秒 с, J joule, W watt,
    V volt, A ampere amp, N newton, Hz hertz, Pa pascal, \\Omega ohm Ω, C coulomb, F farad, T tesla,
    H henry, eV electronvolt, Wh watthour, B byte, bit, mol mole, cal calorie, K kelvin, Bq becquerel,
    lm lumen, Sv sievert, pc parsec, dB decibel, bar, S siemens, Wb weber, rad radian
"""
# Factor, base and names of the others.
_OTHERS = """
    60 s minute min 分钟 分 мин, 3600 s hour hr h 小时 ч час, 86400 s day d 天, 604800 s week wk,
    1 month month mo, 12 month year yr 年, 1/100 USD cent ¢, 1 deg degree deg circ,
    1/60 deg arcminute, 1/3600 deg arcsecond, 254/10000 m inch in, 3048/10000 m foot ft feet,
    9144/10000 m yard yd, 1609344/1000 m mile mi, 1852 m nautical_mile nmi, 1000000 g tonne,
    45359237/100000 g pound lb, 1 ounce ounce oz, 1 ton ton, 1 gallon gallon gal, 1 quart quart qt,
    1 pint pint pt, 1/100 GBP pence penny p, 1 USD dollar usd 美元, 1 EUR euro eur, 1 GBP gbp,
    1 CNY yuan cny rmb 元, 1 JPY yen jpy 円, 1 INR rupee rs inr, 1 RUB ruble rouble рубль рублей рубля rub,
    1 ly light_year ly, 1 acre acre, 1 turn revolution rev, 1000 g 千克 公斤 кг, 1000 m 千米 公里 км,
    1/100 m 厘米 см, 1/1000 m 毫米 мм, 1 celsius celsius, 1 fahrenheit fahrenheit, 1 AU au,
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
    "J": (1, {"N": 1, "m": 1}), "W": (1, {"N": 1, "m": 1, "s": -1}), "Pa": (1, {"N": 1, "m": -2}),
    "L": (Fraction(1, 1000), {"m": 3}), "Wh": (3600, {"N": 1, "m": 1}),
}  # fmt: skip
_COMPATIBLE = (
    {"deg", "celsius"}, {"deg", "fahrenheit"}, {"deg", "rad"}, {"YEN", "CNY"}, {"YEN", "JPY"}
)  # fmt: skip
_COMPOUNDS = {
    "mph": "mi / h", "kph": "km / h", "kmh": "km / h", "kmph": "km / h", "fps": "ft / s",
    "mps": "m / s", "sqft": "ft ^ 2", "rpm": "rev / min", "light-year": "light_year",
    "light-years": "light_year",
}  # fmt: skip
_LOWER_SYMBOLS = {
    one.lower(): one for one in "km cm mm kg mg mL kW kWh kHz MHz GHz kJ kPa Hz Pa".split()
}
SCALES = {
    **{"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    **{"dozen": 12, "lakh": 10**5, "crore": 10**7, "quadrillion": 10**15, "bn": 10**9, "mn": 10**6},
    **{"k": 1000, "score": 20, "gross": 144, "mln": 10**6, "bln": 10**9},
    **{
        "만": 10**4,
        "억": 10**8,
        "兆": 10**12,
        "조": 10**12,
        "万": 10**4,
        "亿": 10**8,
        "百": 100,
        "千": 1000,
        "百万": 10**6,
        "萬": 10**4,
        "億": 10**8,
    },
}
_PARTS = {
    **{"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7},
    **{"eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100, "thousandth": 1000},
    **{"millionth": 10**6, "billionth": 10**9},
}
PARTS = _PARTS | {f"{name}s": value for name, value in _PARTS.items()} | {"halves": 2}
# Words that change what a number means, so that the words around it are neither unit nor label.
OPERATIVE = (
    frozenset(
        """
    not no nor never without except but unless if when where whenever otherwise either neither maybe
    perhaps possibly probably than less more fewer greater least most by minus plus times divided
    multiplied over under below above between through until till to from per half double twice triple
    thrice power root factorial point zero one two three four five six seven eight nine ten eleven
    twelve twenty thirty forty fifty sixty seventy eighty ninety is are was were isn't aren't isnt
    equals equal wrong incorrect false mod modulo modulus remainder cubed squared cube square almost
    nearly around before after minimum maximum any other another instead rather or and then else up
    down short within every each all none first second last next matrix grid negative positive
    opposite reciprocal inverse outside beyond couple googol doubled tripled
    halved can cannot can't could should must might may don't doesn't 不 非 没有 倍 半 负 не нет
    """.split()
    )
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
    for one in (name, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if one in _NAMES and (len(one) > 1 or one == name):
            return _NAMES[one]
    for symbol in (name, _LOWER_SYMBOLS.get(lower, "")):
        for prefix, exponent in _PREFIXES.items():
            if symbol.startswith(prefix) and symbol[len(prefix) :] in _SYMBOLS:
                return Fraction(10) ** exponent, symbol[len(prefix) :]
    return (Fraction(1), name) if name in CURRENCIES.values() else None


def read_unit(tokens: Sequence[Token], glued: bool = False) -> Unit | None:
    """Return what the tokens after a value mean as a unit; None if they are not one.

    ``glued``: letters need no white space before them.
    """
    items = _merge(tokens)
    if items is None:
        return None
    factor = Fraction(1)
    powers: dict[str, int] = {}
    words: list[str] = []
    bare = False
    sign = 1
    for index, (token, power) in enumerate(items):
        name, lower = token.text, token.text.lower()
        letter = token.kind == "letters" and not token.roman
        if lower in ("/", "per"):
            if sign < 0 or index + 1 == len(items):
                return None
            sign = -1
            if lower == "per" and words and not powers:
                words.append("per")
            continue
        if "deg" in powers and lower in ("n", "s", "e", "w"):
            words.append(lower)
            continue
        known = find_base(name)
        if known and len(name) == 1 and name.isascii():
            if letter and not ((token.space or glued or index) and name in _LETTER_UNITS):
                return None
            if token.roman and name not in _LETTER_UNITS | {"B", "d"}:
                known = None
        if known and not (words and len(name) < 3):
            scale, base = known
            size, parts = _DERIVED.get(base, (1, {base: 1}))
            factor *= (scale * size) ** (sign * power)
            for part, exponent in parts.items():
                powers[part] = powers.get(part, 0) + sign * power * exponent
            bare |= letter
        elif (
            power != 1
            or lower in OPERATIVE
            or not _WORD.fullmatch(name)
            or (token.kind == "letters" and (letter or not words))
        ):
            return None
        elif lower not in _SILENT:
            words.append(lower.removesuffix("s") if len(lower) > 3 else lower)
    if len(words) > 5:
        return None
    known_powers = tuple(sorted((base, power) for base, power in powers.items() if power))
    return Unit(factor, known_powers, tuple(words), bare, glued)


def _merge(tokens: Sequence[Token]) -> list[tuple[Token, int]] | None:
    """Return the units of tokens, each with its power; None if signs of mathematics are left."""
    rest = [token for token in tokens if token.text not in ("(", ")", "cdot")]
    if rest and rest[0].text == "frac":
        # \\frac{a}{b} is a/b.
        rest = [token for token in rest[1:] if token.text != "{"]
        closes = [index for index, token in enumerate(rest) if token.text == "}"]
        if len(closes) < 2:
            return None
        rest[closes[0]] = Token("sign", "/")
        del rest[closes[1]]
    merged: list[tuple[Token, int]] = []
    power = 1
    while rest:
        token = rest.pop(0)
        text, lower = token.text, token.text.lower()
        following = [one.text for one in rest[:3]]
        if text == "^" and "circ" in following[:2]:
            del rest[: 3 if following[0] == "{" else 1]
            token = token._replace(text="circ", kind="word")
        elif text == "circ":
            token = token._replace(kind="word")
        elif text in ("'", '"'):
            token = Token("word", {"'": "foot", '"': "inch"}[text])
        elif text in ("mu", "Omega") and token.kind == "command":
            token = Token("word", f"\\{text}", token.space, True)
            if text == "mu" and rest and rest[0].kind in ("letters", "word", "command"):
                token = token._replace(text=f"\\mu{rest.pop(0).text}".replace("Omega", "\\Omega"))
        elif rest and rest[0].text == "Omega" and len(text) == 1:
            rest.pop(0)
            token = Token("word", f"{text}\\Omega", token.space, True)
        elif (
            token.kind in ("sign", "number")
            and text != "/"
            or (token.kind == "command" and text not in ("min", *CURRENCIES.values()))
        ):
            return None
        elif lower in ("square", "sq", "cubic", "cu") and rest:
            power = 2 if lower.startswith("sq") else 3
            continue
        elif lower in _COMPOUNDS:
            rest = [
                Token("word" if one.isalpha() else "sign", one, True, True)
                for one in _COMPOUNDS[lower].replace("^ 2", "squared").split()
            ] + rest
            continue
        elif lower == "nautical" and rest:
            rest.pop(0)
            token = token._replace(text="nautical_mile")
        if (
            token.text.lower() in ("circ", "deg", "degree", "degrees")
            and rest
            and (rest[0].text.lower() in ("c", "f", "celsius", "fahrenheit"))
        ):
            scale = rest.pop(0).text[0].lower()
            token = token._replace(text={"c": "celsius", "f": "fahrenheit"}[scale])
        if rest and rest[0].text == "^" and "circ" not in [one.text for one in rest[1:3]]:
            exponent = re.match(r"\^\{?(-?[1-4])\}?", "".join(one.text for one in rest[:5]))
            if exponent is None:
                return None
            power = int(exponent[1])
            del rest[: sum(len(one) == 1 for one in exponent[0])]
        elif rest and rest[0].text.lower() in ("squared", "cubed"):
            power = 2 if rest.pop(0).text.lower() == "squared" else 3
        merged.append((token, power))
        power = 1
    return merged
