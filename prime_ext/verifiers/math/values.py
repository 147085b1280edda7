# SPDX-License-Identifier: Apache-2.0
"""Leaves of answers: numbers in digits and words, values with units, dates, times and codes."""

import calendar
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from prime_ext.verifiers.math.answer_tree import (
    Leaf,
    Node,
    PlainNumber,
    is_sign,
    join,
    make_leaf,
    make_number,
)
from prime_ext.verifiers.math.expressions import Unreadable, exact_value, read_expression
from prime_ext.verifiers.math.notation import CURRENCIES, FUNCTIONS, Token, Tokens, spell
from prime_ext.verifiers.math.units import NUMBER_WORDS, OPERATIVE, PARTS, SCALES, Unit, read_unit

MAX_UNIT_TOKENS = 32
MONEY = frozenset(CURRENCIES.values())
MONEY_WORDS = {"rs": "INR", "usd": "USD", "eur": "EUR", "gbp": "GBP", "inr": "INR"}
# What may begin the unit of a value, besides words and letters.
_SUFFIXES = MONEY | frozenset("^ % permil min / ' \" mu Omega circ ( cdot frac".split())
_MONTHS = {"sept": 9} | {
    name.lower(): number
    for names in (calendar.month_name, calendar.month_abbr)
    for number, name in enumerate(names)
    if number
}
_DATE_WORDS = frozenset(", . th st nd rd the of s t h n r d".split())
_DATE = re.compile(r"(\d{4})[-./](\d{1,2})[-./](\d{1,2})")
_CODE = re.compile(r"\d+(?:\.\d+){2,}|\d+(?:-\d+)+|(?:\d{1,2}/){2}\d{2,4}")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d(?::[0-5]\d)?))?(?:([ap])\.?m\.?)?")
# Two letters that are a word; any other two are a product.
_TWO_LETTER_WORDS = frozenset(
    "am an as at be by do go he if in is it me my no of oh ok on or ox pi so to up us we".split()
)
# Patterns of the tokens after a value, each with a space after it.
_PERCENT = re.compile(r"(?:%|percent|percentage|pct|per cent) (?:points? )?")
_SMALL_SCALE = re.compile(r"(permil|per mille|basis points?) ")
_OPERATION = re.compile(r"(squared|cubed) ")
_SHARE = re.compile(r"(out of )\S|(in )[\d.]+ \Z")
_REMAINDER = re.compile(r"r(?:emainder)? ([\d.]+) ")


def read_form(tokens: Tokens) -> Leaf | None:
    """Read dates, times and codes, whose digits and signs are not arithmetic."""
    bare = "".join(token.text for token in tokens).lower()
    if (match := _DATE.fullmatch(bare)) and int(match[2]) < 13 and int(match[3]) < 32:
        return Leaf("-".join(str(int(group)) for group in match.groups()))
    if _CODE.fullmatch(bare) and not any(token.space for token in tokens[1:]):
        return Leaf(bare)
    if (match := _CLOCK.fullmatch(bare)) and (match[2] or match[3]):
        return _make_clock(*match.groups())
    words = [token.text.lower() for token in tokens]
    months = [_MONTHS[word] for word in words if word in _MONTHS]
    numbers = [word for word in words if word.isdigit()]
    if len(months) != 1 or len(numbers) > 2 or not (numbers or len(words) == 1):
        return None
    if not _DATE_WORDS.issuperset(set(words) - _MONTHS.keys() - set(numbers)):
        return None
    years = [number for number in numbers if len(number) == 4]
    days = [number for number in numbers if len(number) < 3]
    if len(years) == len(days) == 1:
        return Leaf(f"{years[0]}-{months[0]}-{int(days[0])}")
    return Leaf(f"month {months[0]} {' '.join(numbers)}")


def _make_clock(hour: str, minutes: str | None, half: str | None) -> Leaf:
    """Return a time; without am and pm it may be a ratio as well."""
    text = f"{int(hour)}:{minutes or '00'}"
    if half:
        leaf = Leaf(text) if minutes else make_number(Fraction(hour))
        full = f"{int(hour) % 12 + 12 * (half == 'p')}:{minutes or '00'}"
        reading = Leaf(full, unit=Unit(words=("24 h",)))
        return replace(leaf, text=text, unit=Unit(words=(f"{half}m",)), reading=reading)
    below = int((minutes or "0")[:2])
    return make_leaf(text, ("number", Fraction(int(hour), below))) if below else Leaf(text)


def read_leaf(tokens: Tokens) -> Leaf:
    """Read one value with its unit; a text if it is none."""
    if (number := _read_number_words(tokens)) is not None:
        return replace(make_number(number), text=spell(tokens))
    currency, body = _split_currency(tokens)
    body = _drop_remark(body)
    leaf = _read_quantity(body) or _read_compound(body) or _read_value(body)
    if leaf is None or leaf.tree is None:
        return leaf or Leaf(_spell_text(tokens))
    text = spell(tokens)
    if not leaf.unit and body[0].kind == "number":
        quantity = _read_quantity(body, glued=True)
        if quantity and quantity.unit and quantity.unit.bare:
            leaf = replace(leaf, reading=replace(quantity, text=text, reading=None))
    if currency:
        unit = leaf.unit or Unit()
        unit = replace(unit, powers=unit.powers or ((currency, 1),))
        return replace(leaf, text=text, unit=unit, reading=None, code=False)
    return replace(leaf, text=text)


def _read_number_words(tokens: Tokens) -> Fraction | None:
    """Read a number in English: "forty-two", "minus six thousand", "two and a half"."""
    if any(token.kind != "word" for token in tokens):
        return None
    words = [word for token in tokens for word in token.text.lower().split("-")]
    negative = words[0] in ("minus", "negative")
    total = group = Fraction(0)
    last = ""
    for word in words[negative:]:
        if word in NUMBER_WORDS:
            group += NUMBER_WORDS[word]
        elif word in SCALES and len(word) > 3 and last:
            group = (group or Fraction(1)) * SCALES[word]
            if SCALES[word] > 100:
                total, group = total + group, Fraction(0)
        elif word in PARTS and last:
            group = group / PARTS[word]
        elif word not in ("and", "a") or not last:
            return None
        last = word
    return (total + group) * (-1 if negative else 1) if last else None


def _split_currency(tokens: Tokens) -> tuple[str, Tokens]:
    """Return the currency before a value, and the value with its sign."""
    sign = tokens[:1] if is_sign(tokens[0], "-") else ()
    name, amount = tokens[len(sign) : len(sign) + 1], tokens[len(sign) + 1 :]
    if name and amount and is_sign(name[0], *MONEY):
        return name[0].text, sign + amount
    if name and amount and name[0].text.lower() in MONEY_WORDS:
        amount = amount[1:] if amount[0].text == "." else amount
        if amount and amount[0].kind == "number":
            return MONEY_WORDS[name[0].text.lower()], sign + amount
    return "", tokens


def _drop_remark(tokens: Tokens) -> Tokens:
    """Drop words in brackets after a value: ``12 (units)``, ``3 (the only solution)``."""
    texts = [token.text for token in tokens]
    start = len(texts) - 1 - texts[::-1].index("(") if "(" in texts else 0
    inside = tokens[start + 1 : -1]
    if not start or not inside or texts[-1] != ")" or {token.kind for token in inside} != {"word"}:
        return tokens
    operative = (OPERATIVE - {"only"}) & {token.text.lower() for token in inside}
    return tokens if operative else tokens[:start]


def _spell_text(tokens: Tokens) -> str:
    text = re.sub(r"(?<=\d)\^(?=(?:st|nd|rd|th)\Z)", "", spell(tokens))
    # Chemical formulas are written with and without indices.
    return text.replace("_", "") if re.fullmatch(r"[A-Za-z][A-Za-z0-9_^+\-{}() ]+", text) else text


def _read_value(tokens: Tokens) -> Leaf | None:
    try:
        tree = read_expression(tokens)
    except Unreadable:
        return None
    value = exact_value(tree)
    places = 0
    if len(tokens) - (tokens[0].text in "+-") == 1 and "." in tokens[-1].text:
        whole, _, decimals = tokens[-1].text.partition(".")
        places = len(decimals) if len((whole + decimals).lstrip("0")) > 1 else 0
    number = PlainNumber(value, places) if value is not None else None
    return Leaf(spell(tokens), tree, number, code=_is_code(tokens))


def _is_code(tokens: Tokens) -> bool:
    """Return whether letters and digits stand together as a name does, not as a product."""
    text = "".join(token.text for token in tokens)
    if any(token.kind not in ("letters", "number") for token in tokens):
        return False
    if tokens[1:]:
        is_float = re.fullmatch(r"[\d.]+[eE]\d+", text)
        return not is_float and re.search(r"[a-zA-Z]\d|\d[A-Z]|\A0x", text) is not None
    if tokens[0].kind == "number" or len(text) == 1:
        return False
    return len(text) > 2 or text.isupper() or text.lower() in _TWO_LETTER_WORDS


def _read_quantity(tokens: Tokens, glued: bool = False) -> Leaf | None:
    """Read a value, what scales it, and its unit: the longest unit that leaves a value."""
    for index in range(max(1, len(tokens) - MAX_UNIT_TOKENS), len(tokens)):
        token = tokens[index]
        if token.kind not in ("word", "letters") and token.text not in _SUFFIXES:
            continue
        if token.text in "'\"" and not (index == 1 and tokens[0].kind == "number"):
            continue
        if token.text in ("^", "circ") and any(token.text in FUNCTIONS for token in tokens[:index]):
            continue
        value = _read_value(tokens[:index])
        if value and (leaf := _apply_suffix(value, tokens[:index], tokens[index:], glued)):
            return leaf
    return None


def _read_scale(suffix: Tokens) -> tuple[Fraction, int]:
    """Return the factor that words after a value mean, and their number; 0 for none."""
    word = suffix[0].text.lower()
    if match := _SMALL_SCALE.match(join(suffix).lower()):
        return Fraction(1, 10_000 if word == "basis" else 1000), match.group().count(" ")
    if word in SCALES and suffix[0].kind != "command" and (suffix[0].roman or len(word) > 1):
        return Fraction(SCALES[word]), 1
    if word in PARTS and len(suffix) == 1:
        return Fraction(1, PARTS[word]), 1
    return Fraction(1), 0


def _apply_suffix(value: Leaf, tokens: Tokens, suffix: Tokens, glued: bool) -> Leaf | None:
    tree = value.tree
    assert tree is not None
    percent = False
    while suffix:
        if match := _PERCENT.match(join(suffix).lower()):
            percent = True
            suffix = suffix[match.group().count(" ") :]
            continue
        scale, width = _read_scale(suffix)
        if not width:
            break
        tree = ("multiply", tree, ("number", scale))
        suffix = suffix[width:]
    following = join(suffix).lower()
    if match := _OPERATION.fullmatch(following):
        exponent = ("number", Fraction(2 if match[1] == "squared" else 3))
        tree = ("power", tree, exponent)
        suffix = ()
    elif match := _SHARE.match(following):
        below = _read_value(suffix[2 if match[1] else 1 :])
        return make_leaf(spell(tokens), ("divide", tree, below.tree)) if below else None
    elif (match := _REMAINDER.fullmatch(following)) and suffix[0].roman:
        return Leaf(f"{value.text} remainder {match[1]}")
    unit = read_unit(suffix, glued) if suffix else Unit()
    if unit is None or (suffix and unit == Unit()):
        return None
    # The size of a matrix is a text, but not 4.5*10^3 erg.
    texts = {token.text for token in tokens}
    if unit.words and "cdot" in texts and "^" not in texts:
        return None
    changed = tree is not value.tree
    plain = all(token.kind == "number" or token.text in "+-." for token in tokens)
    letter = any(len(token.text) == 1 and token.kind == "letters" for token in suffix)
    if unit.bare and letter and not plain and not changed:
        return None
    return replace(
        make_leaf(value.text, tree) if changed else value,
        percent=percent,
        unit=unit if unit.powers or unit.words else None,
        code=False,
        reading=_read_value((*tokens, *suffix)) if unit.bare else None,
    )


def _read_compound(tokens: Tokens) -> Leaf | None:
    """Read ``5 ft 9 in``, ``2 h 30 min``, ``30^\\circ 15'``."""
    starts = [
        index
        for index, token in enumerate(tokens)
        if token.kind == "number" and (index == 0 or tokens[index - 1].text not in ("^", "{", "/"))
    ]
    if not 1 < len(starts) < 5 or starts[0] != 0:
        return None
    degrees = any(token.text == "circ" for token in tokens)
    leaves = []
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        piece = tokens[start:end]
        if piece[-1].text == "'" and (len(piece) == 3 or (degrees and start)):
            small = ("arcsecond" if piece[2:] else "arcminute") if degrees and start else "inch"
            piece = (piece[0], Token("word", small, True, True))
        leaf = _read_quantity(piece)
        if leaf is None:
            return None
        leaves.append(leaf)
    return join_compound(leaves)


def join_compound(items: Sequence[Node]) -> Leaf | None:
    """Add ``2 h`` and ``30 min``: values of one kind in units that get smaller."""
    leaves = [item for item in items if isinstance(item, Leaf)]
    values = [(leaf.number.value, leaf.unit) for leaf in leaves if leaf.number and leaf.unit]
    if len(values) < len(items) or any(unit.words or not unit.powers for _, unit in values):
        return None
    factors = [unit.factor for _, unit in values]
    if len({unit.powers for _, unit in values}) > 1 or factors != sorted(set(factors))[::-1]:
        return None
    total = sum(value * unit.factor for value, unit in values)
    text = " ".join(leaf.text for leaf in leaves)
    unit = replace(values[0][1], bare=False)
    return replace(make_number(Fraction(total) / factors[0]), text=text, unit=unit)
