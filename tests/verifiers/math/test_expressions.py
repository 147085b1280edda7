# SPDX-License-Identifier: Apache-2.0
"""Tokens, the grammar of expressions, and values at sample points, against sympy as an oracle."""

from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from prime_ext.verifiers.math.evaluation import _value, judge
from prime_ext.verifiers.math.expressions import Unreadable, read_expression
from prime_ext.verifiers.math.notation import normalize, tokenize
from prime_ext.verifiers.math.structure import Leaf, read


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (r"\left. x \right|", "x|"),
        ("1,000, 2,000", "1000,2000"),
        (r"2 \text{ and } 3", r"2 and 3"),
        (r"\begin{pmatrix}1\\ 2\\[4pt] 3\end{pmatrix}", r"\begin{pmatrix}1\\2\\3\end{pmatrix}"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        ("x\\leq y", r"x≤y"),
        ("x¹² a₁₀ 10⁻³", "x^{12}a_{10}10^{-3}"),
        ("]1,3[", "(1,3)"),
        ("（１，２）", "(1,2)"),
        ("x_{1}", "x_1"),
        (r"\text{Yes}", "yes."),
    ],
)
def test_spellings_of_the_same_tokens(text, other):
    assert normalize(text) == normalize(other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        ("1 2", "12"),
        ("да", "нет"),
        (r"\text{Müller}", r"\text{Möller}"),
        (r"\text{???}", r"\text{!!}"),
        ("x_1", "x^1"),
        ("A1B2", "B2A1"),
    ],
)
def test_spellings_of_different_tokens(text, other):
    assert normalize(text) != normalize(other)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("+0012", 12),
        ("5.", 5),
        (r"-0.\overline{3}", Fraction(-1, 3)),
        ("0.41(6)", Fraction(5, 12)),
        (r"0.\dot{1}4\dot{2}", Fraction(142, 999)),
        (r"0.333\ldots", Fraction(1, 3)),
        (r"3\overline{6}", None),
        (r"-\frac{0.5}{2}", Fraction(-1, 4)),
        (r"-2\frac{1}{3}", Fraction(-7, 3)),
        (r"2\frac{4}{3}", Fraction(8, 3)),
        ("2 4/3", None),
        ("3/4/5", Fraction(3, 20)),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("1e-3", Fraction(1, 1000)),
        ("1e99999", None),
        ("1" * 1000, int("1" * 1000)),
        ("1" * 1001, None),
        ("", None),
        (".", None),
        ("1.2.3", None),
        ("１", 1),
        (r"\text{2.5}\times\text{10}^{3}", 2500),
    ],
)
def test_numbers_are_exact(text, value):
    node = read(text)
    assert isinstance(node, Leaf)
    assert (None if node.number is None else node.number.value) == value


@pytest.mark.parametrize(
    "text",
    ["==", "1+*2", r"\frac{1}", "(x", "x^", "5_", "x2", r"\sqrt{", r"\foo{7}", "((((" * 9 + "x"],
)
def test_text_that_does_not_parse_is_a_text(text):
    with pytest.raises(Unreadable):
        read_expression(tokenize(text))
    assert judge(text, "3")[0] == "wrong"


# Pairs of what we read and what sympy computes with.
ATOMS = st.sampled_from(
    [
        ("x", "x"),
        ("y", "y"),
        ("2", "2"),
        ("0.5", "Rational(1,2)"),
        (r"\pi", "pi"),
        (r"\frac34", "Rational(3,4)"),
        (r"2\frac13", "Rational(7,3)"),
    ]
)
COMPOUNDS = [
    ("({0}+{1})", "(({0})+({1}))"),
    (r"{0}\cdot {1}", "(({0})*({1}))"),
    ("({0}-{1})", "(({0})-({1}))"),
    (r"\frac{{{0}}}{{{1}}}", "(({0})/({1}))"),
    ("({0})^{{2}}", "(({0})**2)"),
    (r"\sqrt{{({0})^2+1}}", "sqrt(({0})**2+1)"),
    (r"\sin({0})", "sin({0})"),
    (r"\ln(1+({0})^2)", "log(1+({0})**2)"),
    (r"e^{{-({0})}}", "exp(-({0}))"),
    (r"\left|{0}\right|", "Abs({0})"),
]
TREES = st.recursive(
    ATOMS,
    lambda inner: st.tuples(st.sampled_from(COMPOUNDS), inner, inner).map(
        lambda parts: tuple(
            form.format(parts[1][side], parts[2][side]) for side, form in enumerate(parts[0])
        )
    ),
    max_leaves=6,
)


@given(TREES)
def test_values_are_those_of_sympy(pair):
    text, code = pair
    point = {"x": 0.37, "y": 1.21}
    with mp.workdps(30):
        ours = _value(
            read_expression(tokenize(text)), {n: mp.mpf(v) for n, v in point.items()}, True
        )
    theirs = sympy.sympify(code).evalf(20, subs=point)
    if ours is None:
        assert theirs.has(sympy.zoo, sympy.nan, sympy.oo) or not theirs.is_real
    else:
        assert abs(complex(ours) - complex(theirs)) <= 1e-9 * max(1, abs(complex(theirs)))


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("x+2(3)", "x+6", "correct"),
        (r"x+2\frac{1}{3}", r"x+\frac{7}{3}", "correct"),
        (r"x+2\frac{4}{3}", r"x+\frac{8}{3}", "correct"),
        ("0.1x+0.2x", "0.3x", "correct"),
        ("R^{2}-r^{2}", "0", "wrong"),
        (r"x+\sin 90^\circ", "x+1", "correct"),
        (r"x+\gcd(12,18)", "x+6", "correct"),
        (r"\hbar-\hbar_{1}", "0", "wrong"),
        ("x(y+1)", "xy+x", "correct"),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", "correct"),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} (k+1)", "wrong"),
        (r"\frac{\pi^2}{6}", r"\sum_{k=1}^{\infty} \frac{1}{k^2}", "correct"),
        (r"\sum_{k=0}^{n} \sin(k^2)", r"\sum_{j=0}^{n} \sin(j^2)", "correct"),
        (r"\sum_{k=0}^{n} \sin(k^2)", r"\sum_{k=0}^{n} \sin(k^3)", "wrong"),
        ("n+5", r"\sum_{k=0}^{n} \sin(k^2)", "wrong"),
        # Close, but not equal.
        ("9^{4000}-2", "9^{4000}-3", "wrong"),
        ("2^{2008}-2", r"2(2^{2007}-1)", "correct"),
        ("x^{2008}-2", "x^{2008}-3", "wrong"),
        (r"10^{-30}\pi", r"2\cdot10^{-30}\pi", "wrong"),
        (r"\sqrt{2}+10^{-20}x", r"\sqrt{2}", "wrong"),
        (r"\sqrt{x^{2}}", "x", "wrong"),
        (r"\lfloor x\rfloor", "x", "wrong"),
        (r"\lfloor x\rfloor+1", r"1+\lfloor x\rfloor", "correct"),
        (r"\frac{x^{2}-1}{x-1}", "x+1", "correct"),
        ("i^{2}x", "-x", "correct"),
        ("f(x)+1", "1+f(x)", "correct"),
        ("f(x)+1", "f(x)+2", "wrong"),
        (r"\mathbb{R}\setminus\{0\}", r"\mathbb{R}\setminus\{1\}", "wrong"),
        ("1+*2", "3", "wrong"),
        ("x", r"\frac{1}{0}", "wrong"),
        # Where answers differ only far out, at a branch or at an end.
        (r"\sqrt{(x-10)^2}", "10-x", "wrong"),
        (r"\min(x,1000)", "x", "wrong"),
        (r"|x-10^6|", "10^6-x", "wrong"),
        (r"\operatorname{sgn}(x-50)", "-1", "wrong"),
        ("x^2<2", r"(-\sqrt{2},\sqrt{2})", "correct"),
        ("x^2<2", r"(-\sqrt{2},\sqrt{2}]", "wrong"),
        ("x^2<2", "(-1.4142,1.4142)", "wrong"),
    ],
)
def test_judgements(gold, answer, outcome):
    assert judge(gold, answer)[0] == outcome
