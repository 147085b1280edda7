# SPDX-License-Identifier: Apache-2.0
"""The task of the PSPO-WRS recipes: the writer chooses the number of steps, and every step has a label."""

import random

import pytest

from prime_ext.tasks.last_digit_chain import draw_misconceptions, outcome_reward, parse_prompt, split_of
from recipes.pspo_wrs import task
from recipes.pspo_wrs.task import (
    SUPERFLUOUS,
    USEFUL,
    WRONG,
    Writer,
    check_steps,
    generate_problems,
    token_count,
    write_solution,
)
from recipes.quickstart.tokenizer import build_tokenizer

PROMPT = "8+2-1+2?"


def kinds(response, prompt=PROMPT):
    return [step.kind for step in check_steps(prompt, response)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"8+2=0;0-1=9;9+2=1;\boxed{1}", [USEFUL] * 3),
        (r"8+2-1=9;9+2=1;\boxed{1}", [USEFUL] * 2),
        (r"8+2-1+2=1;\boxed{1}", [USEFUL]),
        (r"8+2=0;0=0;0=0;0-1=9;9+2=1;1=1;\boxed{1}", [USEFUL, *[SUPERFLUOUS] * 2, *[USEFUL] * 2, SUPERFLUOUS]),
    ],
    ids=["single operations", "a larger step", "all at once", "restatements"],
)
def test_the_same_problem_has_right_solutions_of_different_lengths(response, expected):
    assert kinds(response) == expected
    assert outcome_reward(response, "1") == 1.0


@pytest.mark.parametrize(
    "step",
    ["8+2=1;", "7+2=9;", "8+1=9;", "8+2+1=1;", "8=9;", "9=9;", "nonsense;", "8+2=0", r"8+2=0;\boxed{0}", "8 +2=0;"],
    ids=["result", "value", "operation", "second operation", "restated", "other value", "text", "unfinished", "early"]
    + ["spelling"],
)
def test_a_wrong_step_is_wrong(step):
    assert kinds(step) == [WRONG]


def test_a_step_behind_a_wrong_one_is_judged_by_itself():
    assert kinds(r"8+2=1;1-1=0;0+2=2;\boxed{2}") == [WRONG, USEFUL, USEFUL]
    assert kinds("8+2=1;1=1;0=0;") == [WRONG, SUPERFLUOUS, WRONG]


def test_the_answer_belongs_to_the_last_step_and_must_be_its_result():
    steps = check_steps(PROMPT, r"8+2-1=9;9+2=1;\boxed{2}")
    assert [step.text for step in steps] == ["8+2-1=9;", r"9+2=1;\boxed{2}"]
    assert [step.kind for step in steps] == [USEFUL, WRONG]


def test_steps_beyond_the_last_operation_are_wrong():
    assert kinds("8+2-1+2=1;1+2=3;") == [USEFUL, WRONG]


def test_without_a_response_there_is_no_step():
    assert check_steps(PROMPT, "") == []


def test_labels_of_the_two_labellers_differ_in_superfluous_steps_only():
    steps = check_steps(PROMPT, "8+2=0;0=0;0-1=8;")
    assert [step.label() for step in steps] == [1, 0, -1]
    assert [step.label(lenient=True) for step in steps] == [1, 1, -1]


def solutions(writer, mean_error=0.0, count=300):
    misconceptions, rng = draw_misconceptions(mean_error, 123), random.Random(0)
    problems = generate_problems("sft", count, 0)
    return [(problem, write_solution(problem, misconceptions, writer, rng)) for problem in problems]


def test_a_writer_without_misconceptions_is_right_whatever_the_steps():
    for problem, solution in solutions(Writer()):
        steps = check_steps(problem.prompt, solution)
        assert WRONG not in [step.kind for step in steps]
        assert outcome_reward(solution, str(problem.answer)) == 1.0
        assert sum(step.kind == USEFUL for step in steps) <= len(problem.operations)


def test_the_number_of_steps_is_broadly_distributed():
    counts = [len(check_steps(problem.prompt, solution)) for problem, solution in solutions(Writer())]
    assert 3.5 < sum(counts) / len(counts) < 5.5
    assert min(counts) <= 2 and max(counts) > 10
    assert 0.03 < sum(count > 8 for count in counts) / len(counts) < 0.2


def test_misconceptions_and_slips_make_wrong_steps():
    def wrong(writer, mean_error):
        found = [check_steps(problem.prompt, solution) for problem, solution in solutions(writer, mean_error)]
        return sum(step.kind == WRONG for steps in found for step in steps) / sum(map(len, found))

    assert 0.05 < wrong(Writer(), 0.15) < 0.3
    assert 0.05 < wrong(Writer(slips=0.1), 0.0) < 0.3


def test_tokens_are_counted_as_the_tokenizer_counts_them():
    tokenizer = build_tokenizer()
    for _, solution in solutions(Writer(), count=20):
        assert token_count(solution) == len(tokenizer(solution, add_special_tokens=False)["input_ids"])


def test_problems_are_read_back_differ_and_keep_to_their_split():
    problems = generate_problems("test", 200, 0)
    assert len({problem.prompt for problem in problems}) == 200
    for problem in problems:
        assert parse_prompt(problem.prompt) == problem and split_of(problem.prompt) == "test"
        assert len(problem.operations) in task.OPERATIONS
        assert all(operator in "+-" and operand in task.OPERANDS for operator, operand in problem.operations)


def test_more_different_problems_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="too many for split 'test', which has some 1344"):
        generate_problems("test", 1000, 0)


def test_demonstrations_may_repeat_a_problem():
    problems = generate_problems("sft", 3000, 0, unique=False)
    assert len(problems) == 3000 > len({problem.prompt for problem in problems})
