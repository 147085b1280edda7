# SPDX-License-Identifier: Apache-2.0
"""Computer algebra in isolation: quick reader and full parser, exactness, unreadable input."""

import json
from pathlib import Path

import pytest
from antlr4.atn.PredictionMode import PredictionMode

from prime_ext.verifiers.math.complexity_limits import refusal
from prime_ext.verifiers.math.normalize import normalize
from prime_ext.verifiers.math.symbolic import _latex, _Reader, judge

PAIRS = [
    json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()
]
TEXTS = sorted(
    {
        text
        for pair in PAIRS
        for text in map(normalize, (pair["gold"], pair["pred"]))
        if "\\{" not in text
    }
)


def read(text, mode):
    try:
        return str(_Reader(mode).parse(text))
    except Exception:
        return None


@pytest.mark.slow
def test_the_quick_mode_agrees_with_the_slow_one():
    texts = [_latex(text) for text in TEXTS if refusal(text) is None]
    quick = {
        text: answer for text in texts if (answer := read(text, PredictionMode.SLL)) is not None
    }
    assert len(quick) > 400
    assert {
        text: answer for text, answer in quick.items() if read(text, PredictionMode.LL) != answer
    } == {}


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        # What the grammar alone would misread.
        ("x+2(3)", "x+6", "correct"),
        (r"x+2\frac{1}{3}", r"x+\frac{7}{3}", "correct"),
        (r"x+2\frac{4}{3}", r"x+\frac{8}{3}", "correct"),
        ("0.1x+0.2x", "0.3x", "correct"),
        ("R^{2}-r^{2}", "0", "wrong"),
        (r"x+\sin 90^\circ", "x+1", "correct"),
        (r"x+\gcd(12,18)", "x+6", "correct"),
        (r"\hbar-\hbar_{1}", "0", "wrong"),
        ("x(y+1)", "xy+x", "correct"),
        # Sums have a closed form, or are compared as they are.
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
        # Not understood: the gold answer is the grader's fault, the prediction is wrong.
        ("1+*2", "3", "error"),
        (r"\frac{1}", "3", "error"),
        ("x", "1+*2", "wrong"),
        ("x", r"\frac{1}{0}", "wrong"),
    ],
)
def test_judgements(gold, answer, outcome):
    assert judge(gold, answer)[0] == outcome
