# SPDX-License-Identifier: Apache-2.0
"""Choice of the answer that counts: styles, several boxes, hostile text."""

import time

import pytest

from prime_ext.verifiers.math import extract, extract_answer


@pytest.mark.parametrize(
    ("style", "response", "answer"),
    [
        # The last complete box.
        ("boxed", r"So \fbox{5}.", "5"),
        ("boxed", r"\boxed {5}", "5"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{ }", None),
        ("boxed", r"\boxed{5", None),
        ("boxed", r"The answer is 5.", None),
        ("boxed", r"\boxed{x = \boxed{5}}", "5"),
        ("boxed", r"\boxed{3}, so it is \boxed 7.", "7"),
        ("boxed", r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        ("boxed", r"First \boxed{3}. Then we add 2. In total \boxed{5}.", "5"),
        ("boxed", r"{{{ \boxed{5} and \boxed{", "5"),
        ("boxed", r"\boxed{3} } }. Now \boxed{5}", "5"),
        ("boxed", r"\boxed{\text{a } b}", r"\text{a } b"),
        # A response cut off in its last box falls back to the one before.
        ("boxed", "The length is \\boxed{3}.\nThe area is \\boxed{9", "3"),
        # Boxes in one statement are a list, and earlier ones do not count.
        ("boxed", r"x = \boxed{2} and y = \boxed{3}.", "2, 3"),
        ("boxed", r"\boxed{2} or \boxed{3}", "2, 3"),
        ("boxed", "\\[\\boxed{2}\\]\n\\[\\boxed{3}\\]", "2, 3"),
        ("boxed", "(a) $\\boxed{2}$\n\n(b) $\\boxed{3}$", "2, 3"),
        ("boxed", r"\boxed{5}, \boxed{5.0}, that is \boxed{5}", "5, 5.0"),
        ("boxed", r"\boxed{5} and \boxed{ 5 }", "5"),
        # A conclusion replaces what came before, even in one sentence.
        ("boxed", r"The sum is \boxed{4}, so the answer is \boxed{16}", "16"),
        ("boxed", "\\boxed{4}.\n\nTherefore, the answer is \\boxed{16}", "16"),
        ("boxed", "We get \\boxed{4}. Now the square of this is needed. It is \\boxed{16}", "16"),
        ("boxed", "#### 18", None),
        ("gsm8k", "#### 17\nno, wait\n#### 1,800", "1,800"),
        ("gsm8k", r"It is \boxed{18}.", "18"),
        ("gsm8k", "#### \nThe answer is 18.", "18"),
        ("gsm8k", "18", None),
        ("answer_is", "The final answer is: $3.5$. I hope it is correct.", "$3.5$"),
        ("answer_is", "the answer is 1. No, the answer is 2.", "2"),
        ("answer_is", "So the answer to the question is 7!", "7"),
        ("lenient", "So she pays $1,200.50 in all", "$1,200.50"),
        ("lenient", "nothing", None),
    ],
)
def test_what_a_style_takes_for_the_answer(style, response, answer):
    assert extract_answer(response, style) == answer


def test_too_many_different_boxes_in_one_statement_are_no_answer():
    extraction = extract(", ".join(rf"\boxed{{{guess}}}" for guess in range(11)))
    assert extraction.answer is None and "more than 10" in extraction.rule


def test_an_unknown_style_is_refused_by_name():
    with pytest.raises(ValueError, match="answer_is, boxed, gsm8k, lenient"):
        extract("5", "last_number")


@pytest.mark.parametrize("piece", ["\\boxed{", "\\boxed{1} and ", "answer is ", "1,"])
def test_the_time_is_linear_in_the_text(piece):
    def seconds(length):
        text = piece * (length // len(piece))
        taken = []
        for _ in range(2):
            started = time.process_time()
            extract(text, "lenient")  # tries what all other styles try
            taken.append(time.process_time() - started)
        return min(taken)

    # Ten times the text may take ten times as long, and some; quadratic would be a hundred times.
    assert seconds(1_000_000) < 0.2 + 30 * seconds(100_000)
