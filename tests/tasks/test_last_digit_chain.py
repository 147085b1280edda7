# SPDX-License-Identifier: Apache-2.0
"""The quickstart's task: problems, demonstrators, the rule for steps, the rule for outcomes."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart import demonstrators

operations = st.sampled_from(
    [(operator, n) for operator, operands in task.OPERANDS.items() for n in operands]
)
problems = st.builds(
    task.ChainProblem, st.integers(0, 9), st.lists(operations, min_size=1, max_size=8).map(tuple)
)


@given(problems)
def test_prompts_read_back_and_correct_demonstrators_are_judged_correct(problem):
    assert task.parse_prompt(problem.prompt) == problem
    response = demonstrators.solve(problem)
    assert task.outcome_reward(response, str(problem.answer)) == 1.0
    assert all(check.locally_right for check in demonstrators.check_steps(problem.prompt, response))


def test_other_prompts_and_too_many_problems_are_refused():
    for prompt in ("", "3?", "3*9", "3*9+6 ?", "13*9?", "3/9?", "3*9?4"):
        with pytest.raises(ValueError, match="not a last-digit chain"):
            task.parse_prompt(prompt)
    with pytest.raises(ValueError, match="too many"):
        task.generate_problems("val", 200, seed=0, chain_lengths=(1,))


def test_the_splits_share_no_prompt_whatever_the_seeds():
    assert task.generate_problems("train", 300, 1) != task.generate_problems("train", 300, 2)
    seen = set()
    for split in task.SPLITS:
        problems_of_split = [
            problem for seed in (0, 1) for problem in task.generate_problems(split, 300, seed)
        ]
        assert {len(problem.operations) for problem in problems_of_split} == set(task.CHAIN_LENGTHS)
        prompts = {problem.prompt for problem in problems_of_split}
        assert {task.get_split(prompt) for prompt in prompts} == {split} and not prompts & seen
        seen |= prompts


def test_misconceptions_have_the_wanted_mean_and_are_really_wrong():
    means = []
    for seed in range(40):
        table = demonstrators.draw_misconceptions(0.25, seed)
        means.append(sum(fact.error_probability for fact in table.values()) / len(table))
        assert all(fact.wrong_result != task.apply_operation(*key) for key, fact in table.items())
    assert sum(means) / len(means) == pytest.approx(0.25, abs=0.02)


@given(problems, st.integers(0, 10))
def test_the_step_rule_finds_exactly_the_mistakes_of_the_demonstrator(problem, seed):
    misconceptions = demonstrators.draw_misconceptions(0.5, seed)
    response = demonstrators.demonstrate(problem, misconceptions, random.Random(seed))
    checks = demonstrators.check_steps(problem.prompt, response)
    assert len(checks) == len(problem.operations)
    assert all(check.follows_prompt for check in checks)
    value = problem.start
    for check, (operator, operand) in zip(checks, problem.operations, strict=True):
        stated = int(response[check.result])
        assert check.text == f"{value}{operator}{operand}={stated}"
        assert check.locally_right == (stated == task.apply_operation(value, operator, operand))
        if not check.locally_right:
            assert stated == misconceptions[value, operator, operand].wrong_result
        value = stated
    assert task.outcome_reward(response, str(value)) == 1.0


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"3*9=7;7+6=3;\boxed{3}", [True, True]),
        (r"3*9=8;8+6=4;\boxed{4}", [False, True]),  # wrong fact, then right from the wrong value
        (r"3*9=7;3+6=9;\boxed{9}", [True, False]),  # true arithmetic, but not from the value before
        (
            r"3*9=7;7+7=4;\boxed{4}",
            [True, False],
        ),  # true arithmetic, but not the operation of the prompt
        (r"3*9=7;7+6=3;3+1=4;\boxed{4}", [True, True, False]),  # one step too many
        (
            r"3*9==7;7+6=3;\boxed{3}",
            [False, False],
        ),  # unreadable; the next does not follow a stated value
        (r"3*9=7;7+6=3", [True]),  # only what ends in ';' is a step
        (r"\boxed{3}", []),
        ("", []),
    ],
)
def test_local_correctness_of_single_steps(response, right):
    assert [check.locally_right for check in demonstrators.check_steps("3*9+6?", response)] == right


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (r"3*9=8;8+6=3;\boxed{3};", 1.0),
        (r"3*9=7;7+6=3;\boxed{4}", 0.0),
        (r"\boxed{3}\boxed{4}", 0.0),
        ("3", 0.0),
    ],
)
def test_the_outcome_is_the_last_box_in_training_too(response, reward):
    assert task.outcome_reward(response, "3") == reward
    extra_info = {"raw_prompt": [{"role": "user", "content": "3*9+6?"}]}
    assert asyncio.run(compute_score(task.DATA_SOURCE, response, "3", extra_info))["acc"] == reward
