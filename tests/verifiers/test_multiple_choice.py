# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: stated answers count, and ambiguous ones do not count as answers."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers import Outcome
from prime_ext.verifiers.multiple_choice import MultipleChoiceVerifier

CASES = [
    json.loads(line) for line in Path(__file__).with_name("choices.jsonl").read_text().splitlines()
]
NLI = ("entailment", "contradiction", "neutral")

STATED = [
    ("[1] . 9 + 7 = 16.\n [2] . So it follows.\nThus, the answer is option 1. #### 1", 1),
    ("the correct answer is option 3.", 3),
    ("The answer is (2).", 2),
    ("Answer: B", 2),
    ("The answer is (c).", 3),
    (r"Hence \boxed{option 2}.", 2),
    (r"Hence \boxed{B}", 2),
    ("#### 3", 3),
    ("####2", 2),
    ("The answer is option 1 because option 2 is too small.", 1),
    ("First I thought the answer is option 1. But the answer is option 2.", 2),
    ("The answer is option 2 (B).", 2),
    ('The answer is "option 2".', 2),
    ("THE ANSWER IS OPTION 2", 2),
    (r"\boxed{\textbf{(C)}\ 42}", 3),
    (r"\boxed{C: an answer}", 3),
    ("C.", 3),
    ("(C)", 3),
    ("The answer is:\n\nC", 3),
    ("**Answer**: C", 3),
    ("The correct option is C.", 3),
    ("Therefore, option C is correct.", 3),
    ("The answer is clearly C.", 3),
    ('{"answer": "C"}', 3),
    ("<answer> (C) </answer>", 3),
]

NOT_STATED = [
    "",
    "Option 1 says 16 dimes, option 2 says 9.",
    "The answer is option 1 or option 2.",
    "The answer is 1 and 2",
    "#### 1 #### 2",
    "#### 1 or 2",
    r"\boxed{1} \boxed{2}",
    r"\boxed{1, 2}",
    "The answer is option 1. #### 2",
    "The answer is",
    "The answer is not option 2",
    "The answer is 1.5",
    r"\boxed{(A) or (B)}",
    r"\boxed{(A) 7, (B) 8}",
    "option A is not correct",
    "<answer>A or B</answer>",
]


@pytest.mark.parametrize(("response", "option"), STATED)
def test_stated_options(response, option):
    verifier = MultipleChoiceVerifier(n_options=3)
    assert verifier.verify(response, option).outcome is Outcome.CORRECT
    for other in {1, 2, 3} - {option}:
        verdict = verifier.verify(response, other)
        assert verdict.outcome is Outcome.WRONG and verdict.extracted == str(option)


@pytest.mark.parametrize("response", NOT_STATED)
def test_no_or_ambiguous_answers(response):
    for gold in (1, 2, 3):
        assert (
            MultipleChoiceVerifier(n_options=3).verify(response, gold).outcome is Outcome.NO_ANSWER
        )


@pytest.mark.parametrize("kind", sorted({case["kind"] for case in CASES}))
def test_only_the_stated_option_is_correct(kind):
    for case in CASES:
        if case["kind"] != kind:
            continue
        names = case["options"] if isinstance(case["options"], list) else ()
        count = len(names) or case["options"]
        verifier = MultipleChoiceVerifier(names, None if names else count)
        stated = {verifier.gold_option(case["gold"])} if case["expected"] else set()
        right = {n for n in range(1, count + 1) if verifier.verify(case["pred"], n).correct}
        assert right == stated, case


@pytest.mark.parametrize(
    ("response", "stated"),
    [
        ("#### entailment", "entailment"),
        ("The answer is neutral.", "neutral"),
        ("The answer is option 1 (entailment).", "entailment"),
        (r"\boxed{contradiction}", "contradiction"),
        ("#### Contradiction", "contradiction"),
        ("The answer is option 1 (neutral).", None),
        ("The answer is entailment or neutral.", None),
        ("#### not entailment", None),
        ("entailment", None),
    ],
)
def test_options_with_names(response, stated):
    for name in NLI:
        verdict = MultipleChoiceVerifier(NLI).verify(response, name)
        assert verdict.correct == (name == stated) and (verdict.outcome is Outcome.NO_ANSWER) == (
            stated is None
        )


def test_an_option_that_does_not_exist_is_wrong():
    verdict = MultipleChoiceVerifier(n_options=2).verify("#### 3", 2)
    assert verdict.outcome is Outcome.WRONG and verdict.detail == "there is no option 3"


def test_every_form_of_gold_answer_is_read_or_refused():
    verifier = MultipleChoiceVerifier(NLI)
    for gold in (
        2,
        "2",
        "option 2",
        "B",
        "(b)",
        "Thus, the answer is option 2. #### 2",
        "contradiction",
    ):
        assert verifier.gold_option(gold) == 2
    for gold in ("", 0, 4, "maybe", "option 1 or option 2"):
        with pytest.raises(ValueError, match="names no option; it must be the names"):
            verifier.gold_option(gold)


@given(st.text(alphabet=st.sampled_from("answer is: option#(){}\\boxed123ABab.\n,;or ")))
def test_any_text_gets_a_verdict_and_at_most_one_option(text):
    verdicts = [MultipleChoiceVerifier(n_options=3).verify(text, gold) for gold in (1, 2, 3)]
    assert sum(verdict.correct for verdict in verdicts) <= 1


PIECES = ["#### ", "answer is ", "\\boxed{", "{", "A ", "A or ", "not ", "I ", " ", "<", "\n", "'"]
PIECES += ["option A is ", "the answer ", "A. ", "x_{", "\\boxed{A}", "<answer>", "option "]
PIECES += ["~~", "A x. "]


@pytest.mark.parametrize("piece", PIECES)
def test_long_hostile_text_is_read_in_linear_time(piece):
    verifier = MultipleChoiceVerifier(NLI)
    seconds = []
    for size in (5_000, 50_000):
        start = time.process_time()
        verifier.verify(piece * (size // len(piece)), 1)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 30 * max(seconds[0], 0.1)
