# SPDX-License-Identifier: Apache-2.0
"""The surface form of answers, and numbers read exactly, in addition to the labeled pairs."""

from fractions import Fraction

import pytest

from prime_ext.verifiers.math.normalize import normalize
from prime_ext.verifiers.math.numbers import read_number


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\frac\pi2+2^\frac12+\sqrt[3]2", r"\frac{\pi}{2}+2^{\frac{1}{2}}+\sqrt[3]{2}"),
        (r"\left. x \right|", "x|"),
        ("1,000, 2,000", "1000,2000"),
        (r"2 \text{ and } 3", "2,3"),
        (r"12 cm^2", r"12\text{cm}^{2}"),
        (r"100^\circ\text{C}", r"100\text{degrees C}"),
        (r"\begin{pmatrix}1\\ 2\\[4pt] 3\end{pmatrix}", r"\begin{pmatrix}1\\2\\3\end{pmatrix}"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        ("x\\leq y", r"x\le y"),
        ("x^10+a_12", "x^{10}+a_{12}"),
        (r"\text{(C)}", "C"),
        (r"3+4\mathrm{i}", "3+4i"),
        (r"4\mathrm{m}", r"4\text{m}"),
        ("x¹² a₁₀ 10⁻³", "x^{12}a_{10}10^{-3}"),
        (r"{x+1\over 2}", r"\frac{x+1}{2}"),
        ("0.41(6)", r"0.41\overline{6}"),
        ("]1,3[", "(1,3)"),
        (r"n\pi,n\in\mathbb Z", r"k\pi"),
        (r"\underline{\textcolor{red}{17}}\\", "{{17}}"),
        ("6xyz", "6xyz"),
        ("（１，２）", "(1,2)"),
    ],
)
def test_surface_forms(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("+0012", 12),
        ("5.", 5),
        (r"-0.\overline{3}", Fraction(-1, 3)),
        (r"3\overline{6}", None),
        (r"-\frac{0.5}{2}", Fraction(-1, 4)),
        (r"-2\frac{1}{3}", Fraction(-7, 3)),
        (r"2\frac{4}{3}", None),
        ("3/4/5", None),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("1e99999", None),
        ("1" * 1000, int("1" * 1000)),
        ("1" * 1001, None),
        ("", None),
        (".", None),
        ("1.2.3", None),
        ("１", None),
    ],
)
def test_numbers_are_exact(text, value):
    number = read_number(text)
    assert (None if number is None else number.value) == value
