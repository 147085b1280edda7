# SPDX-License-Identifier: Apache-2.0
"""Search for answers that tasks of reasoning-gym pay though they ignore the problem.

What is searched for: the docstring of :mod:`prime_ext.verifiers.gym_verifier`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prime_ext.tasks.gym_problems import generate
from prime_ext.verifiers.gym_verifier import (
    REFUSED,
    is_formula,
    make_dataset,
    read_number,
    read_problem,
    score_answer,
)

_INTEGERS = [*range(-3, 13), 15, 16, 20, 24, 25, 42, 50, 64, 90, 99, 100, 180, 256, 360, 1000, -10]
_NUMBERS = """0.0 0.1 0.25 0.5 0.75 1.5 3.14 -0.5 -1.0 1e3 1e-9 1e308 +1 -0 00 .5 1/2 1/3 -1/2 0/1
    nan -nan inf -inf 1e999 nan+nani 0+0i 1+i 0x0 0b0 0,0 1,2,3"""
_WORDS = """None null True False true false yes no Yes No on off x X A B C I E i zzz the unknown
    none impossible infeasible empty Monday red left up Peng Pass P U R pi oo zoo ? . - # ;"""
CONSTANTS = [
    *map(str, _INTEGERS),
    *_NUMBERS.split(),
    *_WORDS.split(),
    *("[]", "{}", "()", '""', "''", "[[]]", "[0]", "[1]", '[""]', "[[0]]", "[{}]", "[0, 0]"),
    *('{"a": 1}', '{"answer": 0}', "[[1, 2], [3, 4]]", "1 2 3 4", "0 0\n0 0", "1 1\n1 1"),
    *("1*2*3*4", "4*6*1*1", "6*4", "1+2+3+4", "x**2", "x + C", "0*x", "x=1", "2 × 3", "1 + 0i"),
    *("P ∨ ¬P", "P ∨ Q", "¬P", "P → P", "(P → Q)", "A → B", "A,B", "R U R' U'", "left left"),
    *("Move disk 1 from Peg 1 to Peg 3", "0 days", "00:00:00", "I do not know", "sqrt(-1)"),
]


def cut_pieces(question: str) -> list[str]:
    """Return a question, its lines, and parts of them that look like formulas or answers."""
    pieces = [question.strip()]
    for line in question.splitlines():
        text = re.sub(r"^[.\s]*(?:\d+[.)]|[-*])\s*", "", line)
        after_colon = text.partition(": ")[2]
        pieces += [text, after_colon, text.partition(" = ")[0], after_colon.partition(" = ")[0]]
        pieces += [text.rstrip(".?=: "), *re.findall(r"[\"'`$]([^\"'`$]+)[\"'`$]", text)]
    return [*dict.fromkeys(piece.strip() for piece in pieces if piece.strip())][:60]


def flip_sign(gold: Any) -> list[str]:
    """Return a gold answer with the other sign, if it is a number or a formula."""
    if not isinstance(gold, str) or (read_number(gold) is None and not is_formula(gold)):
        return []
    without = gold.strip().removeprefix("-")
    return [without if without != gold.strip() else f"-{without}", f"-({gold})"]


def is_gold(answer: str, gold: Any) -> bool:
    """Return whether an answer is the gold answer: the same text or number, whatever its case."""
    if not isinstance(gold, str):
        return False
    number = read_number(answer)
    same_number = number is not None and number == read_number(gold)
    return same_number or answer.strip().lower() == gold.strip().lower()


def make_problems(task: str, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield questions and problems of a task, also of a refused one."""
    if task not in REFUSED:
        for made in generate(task, count, seed=7):
            yield made["question"], read_problem(made["gold"])
        return
    parameters = {"threshold": 1.0, "extraction": "boxed"}
    dataset = make_dataset(task, repr(parameters), 7, count)
    for index in range(count):
        entry = dataset[index]
        yield entry["question"], {"task": task, "parameters": parameters, **entry}


def find_strategies(task: str) -> list[str]:
    """Return the strategies that win at least 6 of 12 problems, and one of the first 3."""
    wins: Counter[str] = Counter()
    for n, (question, problem) in enumerate(make_problems(task, 12)):
        if n == 3 and not wins:
            return []
        gold = problem["answer"]
        answers = [(repr(constant), constant) for constant in CONSTANTS]
        answers += [("a piece of the question", piece) for piece in cut_pieces(question)]
        answers += [("the other sign", flipped) for flipped in flip_sign(gold)]
        wins.update(
            {
                name
                for name, answer in answers
                if (n < 3 or name in wins)
                and not is_gold(answer, gold)
                and (score_answer(answer, problem)[0] or 0) >= 1
            }
        )
    return [name for name, count in wins.items() if count >= 6]
