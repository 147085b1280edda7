# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of math and code: rows, prompts, verdicts on their gold answers and solutions."""

import asyncio
import random

import pytest
from benchmark_rows import SAMPLES, benchmark, data_folder, without_published_rows

from prime_ext.tasks.last_digit_chain import generate_problems
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.tasks.task_rows import choose_default_split, load_problems
from prime_ext.utils.rows import BadRow, read_source
from prime_ext.verifiers.sources import make_task_verifier

MATH = ("aime", "aime2024", "amc", "math500", "minerva_math", "olympiadbench", "gsm8k")
CODE = ("humaneval", "mbpp", "leetcode")
# Those of the six numeric sets whose rows EQUATE has.
CHOICE = ("awpnli", "newsnli", "rte_quant", "redditnli", "stresstest")
# The tasks whose whole sets have not been read here: their rows are invented.
NEW_MATH = ("aime2025", "aime2026", "hmmt_feb2025", "hmmt_nov2025")
INVENTED = (*NEW_MATH, "gpqa_diamond", "livecodebench_v2")
LIVE = {
    "inv001_a": "print(sum(map(int, input().split())))",
    "90001": (
        "class Solution:\n    def largestPair(self, nums):\n        return sum(sorted(nums)[-2:])"
    ),
    "inv002_b": "print(input()[::-1])",
}


def invented(name, folder=SAMPLES):
    """Return the task without its published number of rows, and its problems of invented rows."""
    task = without_published_rows(load_task(name))
    return task, load_problems(task, folder)


def get_rows(name):
    """Return the task and its problems: of whole sets where they are, of samples, or invented."""
    if name == "qqa":
        # The numeric set that EQUATE lacks is among the rows of the conversion's tests.
        return invented(name, SAMPLES.parent / "data" / "fixtures")
    if name == "last_digit_chain":
        return load_task(name), load_problems(load_task(name))
    return invented(name) if name in INVENTED else benchmark(name)


def judge(task, pairs):
    """Return verdicts on (problem, response) pairs."""

    async def verdicts():
        verifier = make_task_verifier(task.grader)
        return [
            await verifier.averify(text, problem.gold, **task.grader_options())
            for problem, text in pairs
        ]

    return asyncio.run(verdicts())


def stated(task, gold):
    """Return a response that states this answer."""
    return (
        f"Thus, the answer is option {gold}. #### {gold}"
        if task.grader == "choice"
        else f"Thus \\boxed{{{gold}}}."
    )


def fenced(program):
    return f"So:\n```python\n{program}\n```"


@pytest.mark.parametrize("name", list_task_names())
def test_every_row_is_a_problem_that_its_prompt_shows(name):
    task, problems = get_rows(name)
    assert problems
    for problem in problems.values():
        *_, message = task.messages(problem)
        assert all(text in message["content"] for text in problem.fields.values())
        assert set(problem.groups) == set(task.groups)


@pytest.mark.parametrize("name", [*MATH, *CHOICE, *NEW_MATH, "gpqa_diamond"])
def test_gold_answers_are_right_and_those_of_other_problems_wrong(name):
    task, by_id = get_rows(name)
    # An eighth of the 7,596 rows of StressTest.
    problems = list(by_id.values())[:: 8 if len(by_id) > 5000 else 1]
    golds = judge(task, [(problem, stated(task, problem.gold)) for problem in problems])
    assert [
        problem.gold
        for problem, verdict in zip(problems, golds, strict=True)
        if not verdict.correct
    ] == []
    # A share of shuffled gold answers is right by chance: options, small numbers.
    some = random.Random(0).sample(problems, min(120, len(problems)))
    others = [
        (problem, stated(task, other.gold))
        for problem, other in zip(some, some[1:] + some[:1], strict=True)
    ]
    right = sum(verdict.correct for verdict in judge(task, others)) / len(others)
    assert right <= (0.65 if task.grader == "choice" else 0.06)
    (silent,) = judge(task, [(problems[0], "I do not know.")])
    assert silent.outcome == "no_answer" and silent.score == 0


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "livecodebench_v2"])
def test_reference_solutions_pass_and_those_of_other_problems_do_not(name):
    task, by_id = get_rows(name)
    if name in INVENTED:
        programs = [LIVE[problem] for problem in by_id]
    else:
        (path,) = task.source.local["test"]
        rows = [row for _, row in read_source(data_folder(path) / path)]
        programs = [
            row["code"] if name == "mbpp" else row["prompt"] + row["canonical_solution"]
            for row in rows
        ]
    problems = list(by_id.values())
    for verdict in judge(task, zip(problems, map(fenced, programs), strict=True)):
        assert verdict.correct, verdict.detail
    verdicts = judge(task, zip(problems, map(fenced, programs[1:] + programs[:1]), strict=True))
    assert not any(verdict.correct or verdict.grader_failure for verdict in verdicts)


@pytest.mark.parametrize("name", [*MATH, *CODE])
def test_a_benchmark_ends_its_prompt_as_prime_does(name):
    """Compare the bytes that the released models saw, including a space at the end of a line."""
    task = load_task(name)
    math = "\n\nPresent the answer in LaTex format: \\boxed{Your answer}"
    code = (
        "\n\nWrite Python code to solve the problem. Present the code in \n```python\nYour"
        " code\n```\nat the end."
    )
    assert task.prompts["default"].user.endswith(code if name in CODE else math)
    assert task.prompts["default"].system == ""


def test_rows_of_several_files_are_named_after_them():
    _, problems = invented("aime2025")
    assert list(problems) == ["aime2025-I:1", "aime2025-I:2", "aime2025-II:1"]
    assert [problem.groups["contest"] for problem in problems.values()] == [
        "2025-I",
        "2025-I",
        "2025-II",
    ]


def test_livecodebench_asks_for_the_method_or_for_a_program():
    task, problems = invented("livecodebench_v2")
    (method,) = task.messages(problems["90001"])
    assert (
        "def largestPair(self, nums: List[int]) -> int:" in method["content"]
        and "stdin" not in method["content"]
    )
    (program,) = task.messages(problems["inv001_a"])
    assert (
        "Read the inputs from stdin" in program["content"]
        and "starter code" not in program["content"]
    )
    system, user = task.messages(problems["inv001_a"], "official")
    assert system["role"] == "system" and program["content"].startswith(user["content"].rstrip())


OLYMPIAD = load_task("olympiadbench")


def olympiad(answer, unit=None):
    row = {"question": "q", "id": 1, "subfield": "Algebra", "answer_type": "Numerical"}
    return OLYMPIAD.problem({**row, "final_answer": answer, "unit": unit})


@pytest.mark.parametrize(
    ("answer", "unit", "right", "wrong"),
    [
        (["69", "84"], None, ["84, 69", "69 \\text{ and } 84"],
         ["69", "84", "69, 85", "69, 84, 1"]),
        (["45"], "minute", ["45", "45\\text{ minutes}"], ["45\\text{ hours}", "46"]),
        (["4.2"], "%", ["4.2", "4.2\\%", "x = 4.2", "0.042"], ["4.3", "4.3\\%", "x", "0.043"]),
        (["$t(0,4]$"], None, ["(0,4]", "t \\in (0,4]"], ["(0,4)"]),
        (["$221,$8$"], None, ["8, 221"], ["2218"]),
        (["$\\angle B=90$,$\\angle A=90$"], "^{\\circ}", ["90^\\circ, 90^\\circ"],
         ["90^\\circ, 60^\\circ"]),
    ],
)  # fmt: skip
def test_several_answers_and_units_of_olympiadbench(answer, unit, right, wrong):
    problem = olympiad(answer, unit)
    pairs = [(problem, stated(OLYMPIAD, text)) for text in right + wrong]
    verdicts = judge(OLYMPIAD, pairs)
    assert [verdict.correct for verdict in verdicts] == [True] * len(right) + [False] * len(wrong)
    assert not any(verdict.grader_failure for verdict in verdicts)


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        ("so $\\boxed{\\frac{1}{2}}$ m", ["0.5", "1/2"], ["2"]),
        ("\\boxed{np.arcsin(10/13)}", ["\\arcsin\\frac{10}{13}"], ["\\arccos\\frac{10}{13}"]),
        ("\\boxed{4.5e33}", ["4.5 \\times 10^{33}", "4.5\\cdot10^{33} \\text{ erg}"], ["4.5"]),
    ],
)
def test_minerva_gold_answers_are_boxed_and_may_be_python(solution, right, wrong):
    task = load_task("minerva_math")
    row = {"problem": "p", "type": "t", "idx": 3, "solution": solution}
    problem = task.problem(row)
    verdicts = judge(task, [(problem, stated(task, text)) for text in right + wrong])
    assert problem.id == "3"
    assert [verdict.correct for verdict in verdicts] == [True] * len(right) + [False] * len(wrong)
    with pytest.raises(BadRow, match="solution has no answer in style boxed: 'about 3'"):
        task.problem({**row, "solution": "about 3"})


def test_the_quickstart_task_has_its_held_out_problems_and_prompts(
    tmp_path,
):
    task = load_task("last_digit_chain")
    problems = load_problems(task)
    wanted = generate_problems("test", 2000, seed=0)
    assert [problem.gold for problem in problems.values()] == [
        str(problem.answer) for problem in wanted
    ]
    for problem, own in zip(problems.values(), wanted, strict=True):
        assert task.messages(problem) == [{"role": "user", "content": own.prompt}]
        assert problem.groups == {"operations": str(len(own.operations))}
    # Local files of other tasks change nothing.
    assert (
        choose_default_split(task, local=True) == "test"
        and load_problems(task, tmp_path) == problems
    )
