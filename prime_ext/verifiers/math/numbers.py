# SPDX-License-Identifier: Apache-2.0
"""Plain numbers, read exactly. No floats, no ``eval``; up to :data:`MAX_DIGITS` digits, exponents of ten up to 999."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 1000

_D = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:\\(?:overline|bar|dot)\{(\d+)\})?")
_FRACTION = re.compile(rf"([+-]?)(\d*)\\frac\{{([+-]?{_D})\}}\{{([+-]?{_D})\}}")
_SLASH = re.compile(rf"([+-]?{_D})/([+-]?{_D})")
_SCIENTIFIC = re.compile(rf"([+-]?)(?:({_D})(?:\\cdot)?)?10\^\{{([+-]?\d{{1,3}})\}}|([+-]?{_D})[eE]([+-]?\d{{1,3}})")


@dataclass(frozen=True)
class PlainNumber:
    """A rational number as it was written.

    Attributes:
        value: the number.
        places: digits after the decimal point, None if it is not written as a plain decimal or is a repeating one.
        significant: significant digits of a plain decimal, else 0.
    """

    value: Fraction
    places: int | None = None
    significant: int = 0

    @property
    def terminates(self) -> bool:
        """Whether finitely many decimals suffice."""
        rest = self.value.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        return rest == 1

    def rounds_to(self, decimal: "PlainNumber") -> bool:
        """Whether this number, rounded half away from zero to the places of ``decimal``, is ``decimal``."""
        return round_to(self.value, decimal.places or 0) == decimal.value


def round_to(value: Fraction, places: int) -> Fraction:
    """Round half away from zero."""
    scaled = abs(value) * 10**places
    rounded = Fraction((2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator), 10**places)
    return -rounded if value < 0 else rounded


def _decimal(text: str) -> PlainNumber | None:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, places, repeating = match.groups()
    if not whole and not places and not repeating:
        return None
    if repeating and places is None:
        return None
    places = places or ""
    value = Fraction(int((whole + places) or "0"), 10 ** len(places))
    if repeating:
        value += Fraction(int(repeating), 10 ** len(places) * (10 ** len(repeating) - 1))
    value = -value if sign == "-" else value
    if repeating or "." not in text:
        return PlainNumber(value)
    return PlainNumber(value, len(places), len((whole + places).lstrip("0")))


def _exact(text: str) -> Fraction:
    number = _decimal(text)
    assert number is not None
    return number.value


def read_number(text: str) -> PlainNumber | None:
    """Read a normalised answer that is nothing but a number.

    Integers, decimals (also repeating ones, ``0.1\\overline{6}``), fractions of such, mixed numbers (``2\\frac{1}{3}``,
    only if the fraction is proper, else it is a product), scientific notation (``4\\cdot10^{5}``, ``4e5``).

    Returns:
        None if it is anything else, has too many digits or divides by zero.
    """
    if not text or len(text) > MAX_DIGITS or not text.isascii():
        return None
    if "\\frac" in text:
        match = _FRACTION.fullmatch(text)
        if match is None:
            return None
        sign, whole, above, below = match.groups()
        if _exact(below) == 0:
            return None
        value = _exact(above) / _exact(below)
        if whole:
            if not (above.isdigit() and below.isdigit() and int(above) < int(below)):
                return None
            value += int(whole)
        return PlainNumber(-value if sign == "-" else value)
    if "/" in text:
        match = _SLASH.fullmatch(text)
        if match is None or _exact(match.group(2)) == 0:
            return None
        return PlainNumber(_exact(match.group(1)) / _exact(match.group(2)))
    number = _decimal(text)
    if number is not None:
        return number
    match = _SCIENTIFIC.fullmatch(text)
    if match is None:
        return None
    sign, factor, power, mantissa, exponent = match.groups()
    if power is not None:
        value = _exact(factor or "1") * Fraction(10) ** int(power)
        return PlainNumber(-value if sign == "-" else value)
    return PlainNumber(_exact(mantissa) * Fraction(10) ** int(exponent))
