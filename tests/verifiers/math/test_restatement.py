# SPDX-License-Identifier: Apache-2.0
"""Restatements of the problem, and texts that must not count as one."""

import pytest

from prime_ext.verifiers.math.restatement import restatement


@pytest.mark.parametrize(
    ("answer", "gold", "prompt", "restated"),
    [
        (r"2+3\times 4", "14", "compute $2 + 3*4$", True),
        ("(2+3)*4", "20", r"Compute \left( 2+3 \right) \cdot 4", True),
        ("x=2+3*4", "14", "Compute 2+3*4", True),
        ("2+3*4, 5", "14,5", "a) 2+3*4 b) 2+3", True),
        (r"\frac{6}{8}", r"\frac34", "Simplify 6/8", True),
        (r"\frac{1}{2}+\frac13", r"\frac56", r"Add \frac12+\frac{1}{3}", True),
        (r"\sqrt{16}", "4", "Find √16", True),
        (r"\binom{10}{5}", "252", r"Evaluate $\dbinom{10}{5}$", True),
        ("2^{10}", "1024", "What is 2**10?", True),
        (r"\left|-10\right|", "10", "Evaluate $|-10|$", True),
        (r"\sin(90°)", "1", "Find sin 90°", True),
        ("x^2-1", "(x-1)(x+1)", "Factor x^2 - 1", True),
        ("|x|<3", "(-3,3)", "Solve |x|<3", True),
        ("2x-y+1=0", "y=2x+1", "Solve 2x - y + 1 = 0 for y.", True),
        ("-7", "-7", "1-7", False),
        (r"\frac{3}{4}", "0.75", "3/4 of the cake", False),
        (r"12\cdot7", "84", "A dozen boxes of 7", False),
        ("2+3*4=14", "14", "Compute 2+3*4", False),
        ("x^2-1", "x^{2}-1", "Is it x^2-1?", False),
        ("3+4", "7", "13+4, 3+45, 3+4.5", False),
        ("x<3", r"(-\infty,3)", "for x<3", False),
        ("x", "y", "x", False),
    ],
)
def test_restatements(answer, gold, prompt, restated):
    assert (restatement(answer, gold, prompt) is not None) is restated
