# SPDX-License-Identifier: Apache-2.0
"""Expressions that may reach computer algebra."""

import pytest

from prime_ext.verifiers.math.complexity_limits import refusal


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("x" * 601, "more than 600 characters"),
        ("((((((((((x+1))))))))))", "nested deeper"),
        ("(x", "brackets do not match"),
        ("1" * 61 + "x", "digits in a row"),
        ("9^{9^{9^{9}}}", "tower"),
        ("2^{2^{99}}", "tower"),
        ("((9^{9})^{9999})^{9999}", "beyond 5000"),
        ("x^{-99999}", "beyond 5000"),
        ("2^{x^{10}}", "beyond 5000"),
        ("(10!)!", "nested factorials"),
        ("10!!", "nested factorials"),
        ("1000!", "beyond 200!"),
        ("(x+9999)!", "beyond 200!"),
        (r"\binom{9999}{5}", "binomial"),
        (r"\binom{\binom{9}{3}}{5}", "binomial"),
        (r"\sum_{k=1}^{101}k", "numbers beyond 100"),
        (r"\sum_{a=1}^{9}\sum_{b=1}^{9}ab", "times \\sum"),
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


HONEST = r"""
    \frac{\sqrt{3}+1}{2} 2^{2018}-1 e^{x^{2}} 2^{2^{n}} x^{5000} 200! \binom{n+1}{k}
    x\equiv3\pmod{5} \ln(x^{2}+1)
    \begin{pmatrix}1&2\\3&4\end{pmatrix} (-\infty,3]\cup[5,\infty) \sum_{k=0}^{n}\binom{n}{k}x^{k}
    \frac{n!}{k!(n-k)!}
    1+\sqrt{2+\sqrt{3+\sqrt{5}}}
"""


def test_what_honest_answers_need_passes():
    refused = {answer: refusal(answer) for answer in HONEST.split()}
    assert set(refused.values()) == {None}, refused
