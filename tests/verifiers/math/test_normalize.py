# SPDX-License-Identifier: Apache-2.0
"""The surface form of an answer, and numbers read exactly."""

from fractions import Fraction

import pytest

from prime_ext.verifiers.math.normalize import normalize
from prime_ext.verifiers.math.numbers import read_number


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\dfrac 12", r"\frac{1}{2}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"2^\frac12", r"2^{\frac{1}{2}}"),
        (r"\sqrt2+\sqrt 3+sqrt(5)", r"\sqrt{2}+\sqrt{3}+\sqrt{(5)}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        (r"\left(-\infty, 3\right]", r"(-\infty,3]"),
        (r"\left. x \right|", "x|"),
        ("1{,}008{,}016", "1008016"),
        (r"10,\!000", "10000"),
        ("1,000, 2,000", "1000,2000"),
        ("1 000 000", "1000000"),
        ("1 2", "1 2"),
        ("2 1/2", r"2\frac{1}{2}"),
        ("5 or 7", r"5\lor7"),
        (r"2 \text{ and } 3", "2,3"),
        ("180 miles", r"180\text{miles}"),
        (r"12 cm^2", r"12\text{cm}^{2}"),
        (r"45^\circ", r"45\text{degrees}"),
        (r"100^\circ\text{C}", r"100\text{degrees}"),
        (r"\text{(C)}", r"\text{C}"),
        ("Answer: **5**", "5"),
        (r"\begin{pmatrix}1\\ 2\\[4pt] 3\end{pmatrix}", r"\begin{pmatrix}1\\2\\3\end{pmatrix}"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        ("x\\leq 3", r"x\le3"),
        ("x\\leq y", r"x\le y"),
        ("x^10+a_12", "x^{10}+a_{12}"),
        ("10!", "10!"),
        (r"\$5.00", "5.00"),
        ("20 percent", "20%"),
        ("6xyz", "6xyz"),
        ("sin x", r"\sin x"),
        ("−5", "-5"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("１２", "１２"),
    ],
)
def test_surface_forms(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


def test_commas_may_be_kept():
    assert normalize("1,000") == "1000" and normalize("1,000", thousands=False) == "1,000"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-12", -12),
        ("+0012", 12),
        ("1.50", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"-0.\overline{3}", Fraction(-1, 3)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"-\frac{0.5}{2}", Fraction(-1, 4)),
        (r"2\frac{1}{3}", Fraction(7, 3)),
        (r"-2\frac{1}{3}", Fraction(-7, 3)),
        (r"2\frac{4}{3}", None),
        ("3/4", Fraction(3, 4)),
        ("3/4/5", None),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        (r"4\cdot10^{5}", 400000),
        (r"10^{-3}", Fraction(1, 1000)),
        ("4.5e3", 4500),
        ("1e99999", None),
        ("1" * 1000, int("1" * 1000)),
        ("1" * 1001, None),
        ("", None),
        (".", None),
        ("-", None),
        ("x", None),
        ("1.2.3", None),
        ("٣", None),
        ("１", None),
        (r"3\overline{6}", None),
    ],
)
def test_numbers_are_exact(text, value):
    number = read_number(text)
    assert (None if number is None else number.value) == value


@pytest.mark.parametrize(
    ("value", "decimal", "rounds"),
    [
        ("2/3", "0.667", True),
        ("2/3", "0.67", True),
        ("2/3", "0.66", False),
        ("-2/3", "-0.667", True),
        ("2/3", "-0.667", False),
        ("2/3", "0.7", False),
        ("200/3", "67", False),
        ("200/3", "67.", False),
        ("200/3", "66.7", True),
    ],
)
def test_a_number_rounds_to_decimals_of_two_significant_digits_and_to_no_integer(value, decimal, rounds):
    assert read_number(value).rounds_to(read_number(decimal)) == rounds
