# SPDX-License-Identifier: Apache-2.0
"""What counts as a restatement of the problem, and what must not."""

import pytest

from prime_ext.verifiers.math.restatement import restatement


@pytest.mark.parametrize(
    ("answer", "gold", "prompt"),
    [
        (r"2+3\times 4", "14", "compute $2 + 3*4$"),
        ("(2+3)*4", "20", r"Compute \left( 2+3 \right) \cdot 4"),
        ("x=2+3*4", "14", "Compute 2+3*4"),
        ("2+3*4, 5", "14,5", "a) 2+3*4 b) 2+3"),
        (r"\frac{6}{8}", r"\frac34", "Simplify 6/8"),
        (r"\frac{1}{2}+\frac13", r"\frac56", r"Add \frac12+\frac{1}{3}"),
        (r"\sqrt{16}", "4", "Find √16"),
        (r"\binom{10}{5}", "252", r"Evaluate $\dbinom{10}{5}$"),
        ("2^{10}", "1024", "What is 2**10?"),
        (r"\left|-10\right|", "10", "Evaluate $|-10|$"),
        (r"\sin(90°)", "1", "Find sin 90°"),
        ("x^2-1", "(x-1)(x+1)", "Factor x^2 - 1"),
        ("|x|<3", "(-3,3)", "Solve |x|<3"),
        ("2x-y+1=0", "y=2x+1", "Solve 2x - y + 1 = 0 for y."),
    ],
)
def test_restatements(answer, gold, prompt):
    assert restatement(answer, [gold], prompt)


@pytest.mark.parametrize(
    ("answer", "gold", "prompt"),
    [
        ("-7", "-7", "1-7"),
        (r"\frac{3}{4}", "0.75", "3/4 of the cake"),
        (r"12\cdot7", "84", "A dozen boxes of 7"),
        ("2+3*4=14", "14", "Compute 2+3*4"),
        ("x^2-1", "x^{2}-1", "Is it x^2-1?"),
        ("3+4", "7", "13+4, 3+45, 3+4.5"),
        ("x<3", r"(-\infty,3)", "for x<3"),
        ("x", "y", "x"),
    ],
)
def test_answers_of_their_own(answer, gold, prompt):
    assert restatement(answer, [gold], prompt) is None
