# SPDX-License-Identifier: Apache-2.0
"""Plain numbers up to :data:`MAX_DIGITS` characters, read exactly, without floats or ``eval``."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 1000

_D = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"([+-]?)(?:({_D})"
    r"|(\d*)\.(\d*)\\(?:overline|bar|dot)\{(\d+)\}"
    rf"|(\d*)\\frac\{{([+-]?{_D})\}}\{{([+-]?{_D})\}}"
    rf"|({_D})/([+-]?{_D})"
    rf"|(?:({_D})(?:\\cdot)?)?10\^\{{([+-]?\d{{1,3}})\}}"
    rf"|({_D})[eE]([+-]?\d{{1,3}}))"
)


@dataclass(frozen=True)
class PlainNumber:
    """A rational number as it was written."""

    value: Fraction
    # digits after the point of a plain decimal with at least two significant digits
    places: int = 0

    @property
    def terminates(self) -> bool:
        """Return whether finitely many decimals suffice."""
        return pow(10, self.value.denominator.bit_length(), self.value.denominator) == 0

    def rounds_to(self, decimal: "PlainNumber") -> bool:
        """Return whether this number rounds to a decimal with places; half way does not count."""
        return decimal.places > 0 and abs(self.value - decimal.value) * 2 * 10**decimal.places < 1


def read_number(text: str) -> PlainNumber | None:
    """Read a normalized number; None for anything else, too many digits or a division by zero.

    Integers, decimals (also repeating ones, ``0.1\\overline{6}``), fractions of such, mixed numbers
    (``2\\frac{1}{3}``, only if the fraction is proper, else it is a product), scientific notation
    (``4\\cdot10^{5}``, ``4e5``) with exponents up to 999.
    """
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_DIGITS and text.isascii() else None
    if match is None:
        return None
    (
        sign,
        decimal,
        start,
        rest,
        cycle,
        whole,
        above,
        below,
        over,
        under,
        factor,
        power,
        lead,
        exponent,
    ) = match.groups()
    places = 0
    if decimal:
        value = Fraction(decimal)
        if "." in decimal and len(decimal.replace(".", "").lstrip("0")) >= 2:
            places = len(decimal.partition(".")[2])
    elif cycle:
        value = Fraction(f"{start or 0}.{rest}") + Fraction(
            int(cycle), 10 ** len(rest) * (10 ** len(cycle) - 1)
        )
    elif above or over:
        divisor = Fraction(below or under)
        if divisor == 0:
            return None
        value = Fraction(above or over) / divisor
        if whole:
            if not (above.isdigit() and below.isdigit() and value < 1):
                return None
            value += int(whole)
    else:
        value = Fraction(factor or lead or "1") * Fraction(10) ** int(power or exponent)
    return PlainNumber(-value if sign == "-" else value, places)
