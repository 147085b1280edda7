# SPDX-License-Identifier: Apache-2.0
"""Steps of a text: boundaries, lookalikes, and hostile text, which gains and costs nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.step_rm.splitting import SPLITTERS, split_steps


def steps(text, splitter="auto", argument=None):
    return [text[start:end] for start, end in split_steps(text, splitter, argument)]


# Pieces of which markers, answers and sentences are made, so that random texts look like responses.
PIECES = ["1", "2", "3", "10", "11", ". ", ".", "\n", "\n\n", " ", "[1]", "[2]", "Step 1:",
          "Step 2:", "**", "####",
          "```", "#### 1", "option 1.", "The answer is", "\\boxed{", "}", "x",
          "We add.", "Σ", "だ。", "?", "\t", "\r\n", "\\n 2."]  # fmt: skip
texts = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
splitters = st.one_of(
    st.sampled_from(sorted(SPLITTERS)).map(lambda name: (name, None)),
    st.just(("pattern", r"\d")),
    st.just(("delimiters", [";", ".", "\n\n"])),
)


@given(texts, splitters)
def test_steps_cover_the_text_and_each_contains_content(text, splitter):
    spans = split_steps(text, *splitter)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])][: len(spans)]
    assert all(start < end for start, end in spans) and bool(spans) == bool(text)
    assert "".join(text[start:end] for start, end in spans) == text
    if len(spans) > 1:
        assert all(any(map(str.isalnum, text[start:end])) for start, end in spans)


STYLES = {
    "**1.** a\n**2.** b": 2,
    "\n".join(f"[{k}] step {k} says x" for k in range(1, 13)): 12,
    "Step 1: a\nmore\n\nStep 2: b": 2,
    "**Step 1: a**\nx\n**STEP 2.** b": 2,
    "Step 0: a\nStep 1: b": 2,
    "We add.\n\nWe divide.\n\nSo 5.": 3,
    "We add 3. Then we divide by 2. This gives 5.": 3,
    " \n": 1,
}


@pytest.mark.parametrize("text", STYLES)
def test_the_usual_styles_are_recognized(text):
    assert len(steps(text)) == STYLES[text]


@pytest.mark.parametrize(
    "splitter, argument, expected",
    [
        (
            "auto",
            None,
            [
                "Let's think.\n1. Take 3.5 from 4. That is 0.5.\n",
                "2. Double it.\n\nSo option 1. #### 1",
            ],
        ),
        ("numbered", None, ["1. We add.\n2. #### 5"]),
        ("sentences", None,
         ["We take e.g. Three cats, i.e. A few. 1. ", "Foo cf. Eq. 2 for more! ", "Done."]),
        ("delimiters", ["\n\n", ";"], ["a\n\n", "7+6=3;;", "c"]),
        ("pattern", r"\([a-z]\)|^So", ["(a) x\n", "So y ", "(c) z"]),
    ],
)  # fmt: skip
def test_where_steps_begin(splitter, argument, expected):
    assert steps("".join(expected), splitter, argument) == expected


SPAM = {
    "[1][1][1][1] x": 1,
    "Step 1:\nStep 2:\nStep 3: a": 1,
    "```\n# Step 1: a\n# Step 2: b\n```": 1,
    "...\n\n---\n\n***\n\nx": 1,
    "there are 11. #### 1": 1,
    # Three lines are three sentences; the markers have no part in it.
    "[3] A\n[1] B\n[1] C": 3,
}


@pytest.mark.parametrize("spam", SPAM)
def test_marker_spam_makes_no_steps(spam):
    assert all(len(split_steps(spam, style)) == 1 for style in ("labels", "brackets", "numbered"))
    assert len(split_steps(spam)) == SPAM[spam]


@pytest.mark.parametrize("splitter", sorted(SPLITTERS))
def test_an_answer_line_is_never_a_step_of_its_own(splitter):
    body = "Step 1: We add.\n\nStep 2: We divide."
    for answer in (
        "The answer is option 1. #### 1",
        "\\boxed{1}",
        "**Answer:** 1",
        "So the final answer is 1.",
    ):
        assert len(split_steps(f"{body}\n\n{answer}", splitter)) == len(
            split_steps(body, splitter)
        ), answer
        assert len(split_steps(answer, splitter)) == 1, answer


HOSTILE = ["\n", "1. ", "[1]", "```\n", "A. ", "Step 1:\n", "?\n", "** 1"]


@pytest.mark.slow
@pytest.mark.parametrize("splitter", ["auto", "sentences"])
def test_time_grows_linearly_with_hostile_text(splitter):
    def seconds(piece, copies):
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            split_steps(piece * copies, splitter)
            best = min(best, time.process_time() - start)
        return best

    # Quadratic time would be 256 times as much.
    slow = [
        piece
        for piece in HOSTILE
        if seconds(piece, 32_000) > 150 * max(seconds(piece, 2_000), 2e-4)
    ]
    assert slow == []


def test_a_custom_pattern_that_never_ends_is_stopped():
    with pytest.raises(TimeoutError):
        split_steps("a" * 40 + "!", "pattern", r"(a+|a)+$|(a|aa)+b")
