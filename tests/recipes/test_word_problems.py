# SPDX-License-Identifier: Apache-2.0
"""The task of the small pretrained model."""

import asyncio
import re

import pyarrow.parquet as pq

from prime_ext.verifiers.sources import make_task_verifier, source_of
from recipes.pretrained.word_problems import SOURCE, word_problems, write_data


def test_the_answers_are_right_and_no_problem_comes_twice():
    problems = word_problems(500, seed=1)
    assert len({problem.question for problem in problems}) == 500 and problems == word_problems(500, seed=1)
    for question, answer in problems:
        a, b = map(int, re.findall(r"\d+", question))
        assert answer == (a * b if "boxes with" in question else a + b)


def test_the_rows_are_judged_by_the_last_number(tmp_path):
    write_data(tmp_path, train=8, test=4)
    train, test = (pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    assert len(train) == 8 and len(test) == 4
    source, gold = source_of(SOURCE), train[0]["reward_model"]["ground_truth"]
    verifier = make_task_verifier(source.task)

    def score(response):
        return asyncio.run(verifier.averify(response, gold, **source.options)).score

    assert score(f"3 and 4 apples, so that is {gold}.") == 1.0 and score(f"It is {gold}, not 99.") == 0.0
