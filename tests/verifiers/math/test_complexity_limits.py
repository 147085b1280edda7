# SPDX-License-Identifier: Apache-2.0
"""What may reach computer algebra."""

import time

import pytest
from hostile import hostile_answers

from prime_ext.verifiers.math.complexity_limits import refusal
from prime_ext.verifiers.math.normalize import normalize


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("x" * 601, "more than 600 characters"),
        ("((((((((((x+1))))))))))", "nested deeper"),
        ("(x", "brackets do not match"),
        ("x}", "brackets do not match"),
        ("1" * 61 + "x", "digits in a row"),
        ("9^{9^{9^{9}}}", "tower"),
        ("9^{9^{9}}", "beyond 5000"),
        ("2^{2^{99}}", "tower"),
        ("((9^{9})^{9999})^{9999}", "beyond 5000"),
        ("10^{1000000}", "beyond 5000"),
        ("x^{-99999}", "beyond 5000"),
        ("(10!)!", "nested factorials"),
        ("10!!", "nested factorials"),
        ("201!", "beyond 200!"),
        ("(x+9999)!", "beyond 200!"),
        (r"\binom{9999}{5}", "binomial"),
        (r"\binom{\binom{9}{3}}{5}", "binomial"),
        (r"\sum_{n=1000}^{m}n", "sum"),
        (r"\sum_{k=1}^{101}k", "numbers beyond 100"),
        (r"\sum_{a=1}^{9}\sum_{b=1}^{9}ab", "times \\sum"),
        (r"\log\log\log\log\log 2", "times \\log"),
        (",".join("x" * 25), "members"),
        (r"\begin{pmatrix}" + r"\\".join(["x&y&z&u&v&w"] * 7) + r"\end{pmatrix}", "cells"),
        ("1e999", "exponent of ten"),
        ("１２", "ASCII"),
        (r"\text{ok}+__x", "__"),
        ("1 2", "side by side"),
    ],
)
def test_what_is_refused(answer, reason):
    assert reason in refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        r"\frac{\sqrt{3}+1}{2}",
        "2^{2018}-1",
        r"e^{x^{2}}",
        "2^{2^{n}}",
        "100!",
        r"\binom{n+1}{k}",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"(-\infty,3]\cup[5,\infty)",
        r"\sum_{k=0}^{n}\binom{n}{k}x^{k}",
        r"\ln(x^{2}+1)",
        r"x\equiv3\pmod{5}",
        r"\text{any words at all}",
        r"1+\sqrt{2+\sqrt{3+\sqrt{5}}}",
        r"\frac{n!}{k!(n-k)!}",
    ],
)
def test_what_honest_answers_need_passes(answer):
    assert refusal(answer) is None


def test_the_limits_and_the_normaliser_are_quick_on_everything():
    for answer in hostile_answers():
        started = time.process_time()
        refusal(normalize(answer[:2400]))
        assert time.process_time() - started < 30, answer[:60]
