# SPDX-License-Identifier: Apache-2.0
"""Rational numbers as they were written, without floats."""

from dataclasses import dataclass
from fractions import Fraction


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
