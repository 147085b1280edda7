# SPDX-License-Identifier: Apache-2.0
"""What math-verify alone accepts and we must not: the reason for rules of our own. Fails when that is mended."""

import pytest
from math_verify import parse, verify


@pytest.mark.parametrize(
    ("gold", "answer", "why"),
    [
        (r"\pi(R^2-r^2)", "0", "letters are lower-cased"),
        ("52_8", "52_7", "the base is dropped"),
        ("6", "2(3)+1", "a product of integers is read as a mixed number"),
        ("0.00000012", "0.00000034", "six decimals"),
        (r"\frac{1}{3}", "0.333333", "six decimals"),
        ("x^2=-1", "x=x+1", "equations without real solutions are all equal"),
        ("2m", "2", "a letter is cut off as a unit"),
        ("5", "3=5", "the last side of any chain"),
    ],
)
def test_what_math_verify_accepts_and_we_refuse(verifier, gold, answer, why):
    assert verify(
        parse(f"${gold}$", parsing_timeout=None), parse(f"${answer}$", parsing_timeout=None), timeout_seconds=None
    )
    assert not verifier.verify_answer(answer, gold).correct
