# SPDX-License-Identifier: Apache-2.0
"""Computer algebra in isolation: the quick reader against the full parser, exactness, and what is not understood."""

import json
from pathlib import Path

import pytest
import sympy
from antlr4.atn.PredictionMode import PredictionMode

from prime_ext.verifiers.math.complexity_limits import refusal
from prime_ext.verifiers.math.normalize import normalize
from prime_ext.verifiers.math.symbolic import Unparsable, _latex, _Reader, judge, parse

PAIRS = [json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()]
TEXTS = sorted({text for pair in PAIRS for text in map(normalize, (pair["gold"], pair["pred"])) if "\\{" not in text})


def read(text, mode):
    try:
        return str(_Reader(mode).parse(text))
    except Exception:
        return None


def test_the_quick_mode_agrees_with_the_slow_one_wherever_it_succeeds():
    texts = [_latex(text) for text in TEXTS if refusal(text) is None]
    quick = {text: found for text in texts if (found := read(text, PredictionMode.SLL)) is not None}
    assert len(quick) > 400
    assert {text: found for text, found in quick.items() if read(text, PredictionMode.LL) != found} == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2(3)", 6),
        ("(2)(3)", 6),
        (r"2\frac{1}{3}", sympy.Rational(7, 3)),
        (r"2\frac{4}{3}", sympy.Rational(8, 3)),
        ("0.1+0.2", sympy.Rational(3, 10)),
        ("2^{10}", 1024),
        ("R^{2}-r^{2}", sympy.Symbol("R", real=True) ** 2 - sympy.Symbol("r", real=True) ** 2),
        (r"\sin 90\text{degrees}", 1),
        (r"\gcd(12,18)", 6),
        (r"\hbar-\hbar_{1}", sympy.Symbol("N5c68626172", real=True) - sympy.Symbol("N5c686261725f31", real=True)),
        ("x(y+1)", sympy.Symbol("x", real=True) * (sympy.Symbol("y", real=True) + 1)),
    ],
)
def test_what_the_grammar_alone_would_misread(text, value):
    assert sympy.simplify(parse(text).doit() - value) == 0


@pytest.mark.parametrize("text", ["", "1+", r"\frac{1}", "x)", "@"])
def test_syntax_errors_have_a_name(text):
    with pytest.raises(Unparsable):
        parse(text)


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("2^{2008}-2", "2^{2008}-3", "wrong"),
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
        ("1+*2", "3", "error"),
        ("x", "1+*2", "wrong"),
        ("x", r"\frac{1}{0}", "wrong"),
    ],
)
def test_judgements(gold, answer, outcome):
    assert judge((gold,), answer)[0] == outcome
