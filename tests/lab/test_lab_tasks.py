# SPDX-License-Identifier: Apache-2.0
"""Tasks of the laboratory: right answers verify, wrong ones do not, and step labels say where."""

import random

import pytest
import torch

from prime_ext.tasks import last_digit_chain as last_digit
from recipes.lab.run import TASKS
from recipes.lab.tasks import CompactChain
from recipes.quickstart.model import VOCABULARY

COMPACT = [name for name, task in TASKS.items() if isinstance(task, CompactChain)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", COMPACT)
def test_perfect_demonstrators_are_right_in_every_step_and_mistakes_of_others_are_seen(name):
    task = TASKS[name]
    problems = task.draw(500, generator())
    response_BT = task.demonstrate(problems, 0.0, generator())
    label_BT, is_result_BT = task.step_labels(problems, response_BT)
    assert task.verify(problems, response_BT).min() == 1 and torch.equal(label_BT.bool(), is_result_BT)
    lengths = [int((problem[1:] >= 0).sum()) for problem in problems]
    assert is_result_BT.sum(1).tolist() == lengths and set(lengths) == set(range(task.shortest, task.longest + 1))
    response_BT = task.demonstrate(problems, 1.0, generator())
    outcome_B = task.verify(problems, response_BT)
    label_BT, is_result_BT = task.step_labels(problems, response_BT)
    all_right_B = (label_BT.bool() == is_result_BT).all(1)
    assert 0.02 < outcome_B.mean() < 0.4 and outcome_B[all_right_B].min() == 1
    # A wrong chain can end at the right value by luck, one in about n_values.
    assert outcome_B[~all_right_B].mean() < 0.15


def test_a_wrong_step_is_labelled_and_steps_that_follow_from_it_are_right():
    task = TASKS["compact"]
    problems = task.draw(1, generator())
    response_BT = task.demonstrate(problems, 0.0, generator())
    # The third result becomes another value, and all later ones follow from it.
    value = (int(response_BT[0, 6]) - task.first_value + 1) % task.n_values
    for t in range(6, 17, 2):
        value = value if t == 6 else int(task.facts[0][problems[0][t // 2], value])
        response_BT[0, t] = value + task.first_value
    label_BT, is_result_BT = task.step_labels(problems, response_BT)
    assert label_BT[0, is_result_BT[0]].tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert task.verify(problems, response_BT).item() == 0


def test_an_answer_without_its_end_is_wrong():
    task = TASKS["variable"]
    problems = task.draw(50, generator())
    response_BT = task.demonstrate(problems, 0.0, generator())
    without_end_BT = torch.where(response_BT == task.eos, task.first_value, response_BT)
    early_BT = response_BT.clone()
    early_BT[:, 3] = task.eos
    early_BT[:, 4:] = task.pad
    assert task.verify(problems, without_end_BT).max() == 0
    assert task.verify(problems, early_BT).max() == 0
    # Steps that were never written have no label.
    assert task.step_labels(problems, early_BT)[1].sum(1).tolist() == [1] * 50


def encoded(texts: list[str], limit: int) -> torch.Tensor:
    """Token ids of responses with ``<eos>`` behind them."""
    rows = []
    for text in texts:
        tokens = [*text.replace("\\boxed{", "#"), "<eos>"]
        ids = [VOCABULARY.index("\\boxed{" if token == "#" else token) for token in tokens]
        rows.append(ids + [0] * (limit - len(ids)))
    return torch.tensor(rows)


@pytest.mark.parametrize("name", ["quickstart", "long_chains"])
def test_the_tasks_of_other_recipes_judge_as_those_do(name):
    task = TASKS[name]
    problems = task.draw(30, generator(), held_out=True)
    misconceptions = last_digit.draw_misconceptions(0.25, 123)
    texts = [last_digit.demonstrate(problem, misconceptions, random.Random(0)) for problem in problems]
    response_BT = encoded(texts, task.limit)
    expected = [last_digit.outcome_reward(t, str(p.answer)) for p, t in zip(problems, texts, strict=True)]
    assert task.verify(problems, response_BT).tolist() == expected
    assert task.verify(problems, encoded([last_digit.solve(p) for p in problems], task.limit)).min() == 1
    label_BT, is_result_BT = task.step_labels(problems, response_BT)
    for row, (problem, text) in enumerate(zip(problems, texts, strict=True)):
        checks = last_digit.check_steps(problem.prompt, text)
        assert is_result_BT[row].nonzero()[:, 0].tolist() == [check.result for check in checks]
        assert label_BT[row, is_result_BT[row]].tolist() == [float(check.locally_right) for check in checks]


def test_training_and_held_out_problems_of_the_quickstart_are_disjoint():
    task = TASKS["quickstart"]
    train = {problem.prompt for problem in task.draw(500, generator())}
    assert not train & {problem.prompt for problem in task.draw(500, generator(), held_out=True)}
