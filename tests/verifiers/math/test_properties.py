# SPDX-License-Identifier: Apache-2.0
"""Properties of all answers: no exceptions, changed numbers are wrong, typography is ignored."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers import Outcome
from prime_ext.verifiers.math import STYLES, extract
from prime_ext.verifiers.math.answer_tree import PlainNumber
from prime_ext.verifiers.math.math_verifier import decide
from prime_ext.verifiers.math.notation import normalize

# Text that a policy could try as a loophole: LaTeX pieces in any order, and anything else.
PIECES = st.sampled_from(
    r"\boxed{ \frac \sqrt \text{ \left( \right] \pm \cup \infty \pi \le \in \approx"
    r" \begin{pmatrix} "
    r"\end{pmatrix} \\ \binom \sin \log_ ^ _ { } ( ) [ ] \{ \} , ; : = < > + - * / ! | % $ & ' . 0"
    r" 1 2 12 "
    r"1,000 0.5 x y e i n "
    r"E or and cm ² − １".split()
    + [" ", "\n"]
)
TEXT = st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=60))
INTEGERS = st.integers(-(10**12), 10**12)
FRACTIONS = st.fractions(max_denominator=500).filter(lambda value: abs(value) < 10**6)


def frac(value):
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@given(TEXT, TEXT)
def test_the_verifier_never_raises(verifier, gold, answer):
    for style in STYLES:
        extract(answer, style)
    verdict = verifier.verify_answer(answer, gold)
    assert verdict.outcome in Outcome and (verdict.score is None) == verdict.grader_failure
    verifier.verify(answer + rf"\boxed{{{answer}}}", gold)


@given(TEXT.filter(str.strip))
def test_every_answer_equals_itself(text):
    assert decide(text, f" {text}\n")[0] == "correct"
    assert isinstance(normalize(text), str)


@given(FRACTIONS, FRACTIONS)
def test_fractions_are_compared_exactly_and_both_ways(left, right):
    expected = "correct" if left == right else "wrong"
    assert decide(frac(left), frac(right))[0] == decide(frac(right), frac(left))[0] == expected
    assert decide(frac(left), f"{left.numerator * 3}/{left.denominator * 3}")[0] == "correct"


@given(INTEGERS, st.integers(1, 10**6))
def test_a_changed_integer_is_never_correct(value, difference):
    for changed in (value + difference, value - difference):
        assert decide(str(value), str(changed))[0] == "wrong"
        assert decide(f"{value:,}", f"{changed:,}")[0] == "wrong"
        assert decide(str(value), f"x={changed}\\text{{ cm}}")[0] == "wrong"


@given(FRACTIONS, st.integers(1, 6), st.sampled_from([10, 100, 1000]))
def test_a_decimal_never_equals_a_fraction_that_it_only_approximates(value, places, scale):
    decimal = f"{float(value):.{places}f}"
    expected = "correct" if Fraction(decimal) == value else "wrong"
    assert decide(frac(value), decimal)[0] == expected
    # No power of ten is forgiven.
    assert value == 0 or decide(frac(value), frac(value * scale))[0] == "wrong"


@given(FRACTIONS.filter(lambda value: not PlainNumber(value).terminates), st.integers(2, 6))
def test_a_fraction_equals_the_gold_decimal_that_it_rounds_to(value, places):
    decimal = f"{float(value):.{places}f}"
    enough = len(decimal.replace(".", "").lstrip("-0")) >= 2
    assert (decide(decimal, frac(value))[0] == "correct") == enough
    last = Fraction(1, 10**places)
    assert (
        decide(decimal, frac(value + last))[0] == decide(decimal, frac(value - last))[0] == "wrong"
    )


@given(st.lists(INTEGERS, min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_lists_and_sets_have_no_order_and_tuples_do(values, generator):
    shuffled = list(values)
    generator.shuffle(shuffled)
    text, other = (", ".join(map(str, items)) for items in (values, shuffled))
    assert decide(text, other)[0] == "correct"
    assert decide(rf"\{{{text}\}}", rf"\{{{other}\}}")[0] == "correct"
    assert decide(f"({text})", f"({other})")[0] == ("correct" if values == shuffled else "wrong")
    assert decide(text, text + f", {max(values) + 1}")[0] == "wrong"
    assert decide(text, ", ".join(map(str, values[1:])))[0] == "wrong"
    assert decide(str(values[0]), text)[0] == "wrong"


BRACKETS = st.sampled_from(["()", "(]", "[)", "[]"])


@given(INTEGERS, st.integers(1, 99), BRACKETS, BRACKETS)
def test_the_ends_of_intervals_matter(low, width, left, right):
    one, other = (f"{ends[0]}{low},{low + width}{ends[1]}" for ends in (left, right))
    assert decide(one, other)[0] == ("correct" if left == right else "wrong")
    operators = {"(": "<", "[": r"\le ", ")": "<", "]": r"\le "}
    chain = f"{low}{operators[right[0]]}x{operators[right[1]]}{low + width}"
    assert (
        decide(one, chain)[0] == decide(chain, one)[0] == ("correct" if left == right else "wrong")
    )


ATOMS = st.sampled_from(["x", "y", "2", "3", "7", r"\pi", r"\sqrt{2}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}+{pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: rf"{pair[0]}\cdot {pair[1]}"),
        st.tuples(inner, inner).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        inner.map(lambda base: f"({base})^{{2}}"),
    ),
    max_leaves=5,
)
STYLINGS = [
    lambda text: f"${text}$",
    lambda text: rf"\[ {text} \]",
    lambda text: text.replace("+", " + "),
    lambda text: text.replace(r"\frac", r"\dfrac"),
    lambda text: text.replace("(", r"\left(").replace(")", r"\right)"),
    lambda text: text + ".",
    lambda text: f"y = {text}",
    lambda text: text.replace(r"\cdot", r"\times"),
]


@given(EXPRESSIONS, st.sampled_from(STYLINGS))
def test_typography_does_not_matter(text, style):
    assert decide(text, style(text))[0] == "correct"


@given(EXPRESSIONS, EXPRESSIONS)
def test_algebra_is_symmetric_and_sees_a_difference(verifier, left, right):
    if "x" not in left + right:
        # A plain number must not be restated; that rule is not symmetric.
        return
    assert (
        verifier.verify_answer(left, right).outcome == verifier.verify_answer(right, left).outcome
    )
    assert verifier.verify_answer(f"{right}+{left}", f"{left}+{right}").correct
    assert not verifier.verify_answer(f"{left}+x+1", f"{left}+x").correct
