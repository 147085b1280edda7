# SPDX-License-Identifier: Apache-2.0
"""The verifier as a whole: labeled pairs, hostile answers, threads, asyncio, killed workers."""

import asyncio
import json
import os
import random
import threading
import time
from pathlib import Path

import pytest
from hostile import hostile_answers, random_hostile_answer

from prime_ext.verifiers import Outcome
from prime_ext.verifiers.math import MathVerifier
from prime_ext.verifiers.math.answer_comparison import compare, undecided
from prime_ext.verifiers.math.structure import read
from prime_ext.verifiers.worker_pool import WorkerPool

PAIRS = [
    json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()
]


@pytest.fixture
def payload_marker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "executed"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rule", sorted({pair["rule"] for pair in PAIRS}))
def test_labeled_pairs(verifier, rule):
    pairs = [pair for pair in PAIRS if pair["rule"] == rule]
    verdicts = verifier.verify_batch(
        [(rf"\boxed{{{pair['pred']}}}", pair["gold"]) for pair in pairs]
    )
    wrong = [
        (pair["gold"], pair["pred"], str(verdict.outcome), verdict.detail)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict.grader_failure or verdict.correct != pair["label"]
    ]
    assert not wrong


# Gold answers and predictions that equal them, in addition to the labeled pairs.
EQUAL = [
    (r"\{-1,1,2\}", r"\{\pm1,2\}"),
    (r"\{-3,3\}", r"\{\pm3\}"),
    (r"\pm(1,2,3)", "(1,2,3), -(1,2,3)"),
    (r"\text{red and blue}", r"\text{blue \& red}"),
    ("(1,2,3)", "[1,2,3]"),
    ("1:2", r"\sqrt{2}:\sqrt{8}"),
    (r"5\text{ km}", r"5\text{ Km}"),
    ("60 km/h", r"60\ \mathrm{km/h}"),
    (r"60\text{ km/h}", "60 km/h"),
    # Equations: a line, numbers only, names to be calculated; the exact side of an approximation.
    ("x=3", "x-3=0"),
    (r"\frac{1}{4}+\frac{1}{2}=\frac{3}{4}", r"\frac{2}{8}+\frac{4}{8}=0.75"),
    (r"\sin\frac{\pi}{12}=\frac{\sqrt{6}-\sqrt{2}}{4}",
     r"\sin\frac{\pi}{12}=\frac{\sqrt{3}-1}{2\sqrt{2}}"),
    (r"x=\sqrt{8},y=3", r"y=3,x=2\sqrt{2}"),
    (r"\sqrt{2}", r"x=\sqrt{2}\approx1.41"),
    (r"\sqrt{8}=2\sqrt{2}", r"\sqrt{4}\sqrt{2}=\sqrt{8}"),
    ("12", "12**"),
    ("17", r"\underline{\textcolor{red}{17}}\\"),
    (r"(3,\infty)", r"3<X<\infty"),
    ("X+1,X-1", r"X\pm 1"),
]  # fmt: skip
# And predictions that look alike.
DIFFERENT = [
    (r"3\text{ minutes}", r"3\text{ Hours}"),
    ("60 km/h", "60 km/min"),
    (r"(3,\infty)", r"\{2x:x>3\}"),
    ("5", "(5]"),
    ("east", "seat"),
    ("7", r"7=8\approx8.1"),
    (r"5\text{ apples}", r"5\text{ km}"),
    # Not a unit but a sentence.
    ("5", r"5\text{ of them are still here today}"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL + DIFFERENT)
def test_equal_answers_are_right_and_similar_ones_are_wrong(verifier, gold, answer):
    right = (gold, answer) in EQUAL
    assert verifier.verify_answer(answer, gold).outcome is (
        Outcome.CORRECT if right else Outcome.WRONG
    )


def test_the_verdict_says_what_was_found_and_why(verifier):
    verdict = verifier.verify(r"Thus \boxed{\frac{1}{2}}.", "0.5")
    assert (
        verdict.correct
        and verdict.extracted == r"\frac{1}{2}"
        and verdict.detail == "equal by rules"
    )
    assert 0 < verdict.seconds
    assert verifier.verify_answer(r"\sqrt{8}", r"2\sqrt{2}").detail == "equal at sample points"
    verdict = verifier.verify("I do not know.", "0.5")
    assert (
        verdict.outcome is Outcome.NO_ANSWER and verdict.score == 0.0 and verdict.extracted is None
    )
    assert verifier.verify("#### 18", "18", extraction="gsm8k").correct


def test_a_list_differs_from_a_name_and_cases_have_columns():
    assert compare(read("1,2"), read("x"), undecided) is False
    assert read(r"\begin{cases}1&x>0\\2&x\le0\end{cases}").columns == 2


STUFFED = [
    r"\boxed{A or B or C or D}",
    r"\boxed{A}\boxed{B}\boxed{C}\boxed{D}",
    "\\boxed{A}\n\\boxed{B}\n\\boxed{C}",
]
STUFFED += [
    r"\boxed{C, A}",
    r"It is \boxed{C} or \boxed{D}",
    r"\boxed{C \text{ or } D}",
    r"\boxed{C/D}",
]


def test_stuffing_options_is_wrong(verifier):
    verdicts = verifier.verify_batch([(response, "C") for response in STUFFED])
    assert {verdict.outcome for verdict in verdicts} == {Outcome.WRONG}


@pytest.mark.parametrize(
    "gold",
    ["", "  ", "x" * 9999],
)
def test_an_unusable_gold_answer_is_the_graders_failure(verifier, gold):
    verdict = verifier.verify_answer("x+5", gold)
    assert verdict.outcome is Outcome.ERROR and verdict.grader_failure and verdict.score is None
    # Equal text needs no understanding.
    assert not gold.strip() or verifier.verify_answer(gold, gold).correct


@pytest.mark.slow
def test_hostile_answers_neither_hang_nor_pass_nor_run(verifier, payload_marker):
    golds = ("5", r"\frac{\sqrt{3}}{2}", r"\sqrt{2}+x", r"(-\infty,3]", r"\text{east}", "1,2")
    for gold in golds:
        for answer in hostile_answers(str(payload_marker)):
            started = time.process_time()
            for verdict in (
                verifier.verify_answer(answer, gold),
                verifier.verify(rf"\boxed{{{answer}}}", gold),
            ):
                assert verdict.outcome in (Outcome.WRONG, Outcome.NO_ANSWER), (
                    answer[:80],
                    gold,
                    verdict,
                )
            assert time.process_time() - started < 30, answer[:80]
    for gold in hostile_answers(str(payload_marker)):
        verdict = verifier.verify_answer("x+5", gold)
        assert not verdict.correct and verdict.seconds < 30, gold[:80]


def _resident(process):
    """Return memory in MB."""
    return (
        int(Path(f"/proc/{process}/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 2**20
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_hostile_answers():
    generator = random.Random(0)
    with WorkerPool(
        1, time_limit=3.0, warm_up="prime_ext.verifiers.math.evaluation:warm_up"
    ) as pool:
        verifier = MathVerifier(pool)
        sizes = []
        for _ in range(2):
            answers = [random_hostile_answer(generator) for _ in range(250)]
            verifier.verify_batch(
                [(rf"\boxed{{{answer}}}", r"\frac{\sqrt{x}+1}{2}") for answer in answers]
            )
            worker = pool.run(os.getpid)
            sizes.append((_resident(os.getpid()), _resident(worker)))
    assert sizes[1][0] - sizes[0][0] < 20 and sizes[1][1] < 400


def test_many_requests_in_one_event_loop(verifier):
    async def main():
        threads = threading.active_count()
        pairs = [(rf"\boxed{{(x+{n})^2}}", f"x^2+{2 * n}x+{n * n + n % 2}") for n in range(400)]
        requests = asyncio.gather(*(verifier.averify(*pair) for pair in pairs))
        turns = 0
        while not requests.done():
            await asyncio.sleep(0.01)
            turns += 1
            assert threading.active_count() <= threads + 2
        # The loop went on turning while the workers were busy.
        assert turns > 20
        return [verdict.correct for verdict in await requests]

    assert asyncio.run(main()) == [n % 2 == 0 for n in range(400)]


def test_only_a_gold_answer_beyond_algebra_leaves_responses_undecided(pool):
    slow = r"\sum_{k=1}^{\infty}\frac{\sin(k^2)}{\sqrt{k}}"
    verifier = MathVerifier(pool, time_limit=0.2)
    verdict = verifier.verify_answer("n+5", slow)
    assert verdict.outcome is Outcome.TIMEOUT and verdict.grader_failure
    verdict = verifier.verify_answer(slow, "n+5")
    assert verdict.outcome is Outcome.WRONG and verdict.detail == "too complex: more than 0.2 s"
