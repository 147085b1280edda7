# SPDX-License-Identifier: Apache-2.0
"""Every task loads its samples, and those of which there are invented rows only know right from wrong."""

import asyncio
from pathlib import Path

import pytest
from benchmark_rows import SAMPLES, benchmark, without_published_rows

from prime_ext.tasks.task_file import load_task, task_names
from prime_ext.tasks.task_rows import NoData, load_problems
from prime_ext.utils.rows import read_source
from prime_ext.verifiers.sources import make_task_verifier

TESTS = Path(__file__).resolve().parents[1]
# The tasks whose whole sets have not been read here: their rows are invented.
INVENTED_MATH = ("aime2025", "college_math", "gaokao2023en")
INVENTED_CODE = ("humaneval_plus", "mbpp_plus", "livecodebench_v6")
LIVE = {
    "inv001_a": "print(sum(map(int, input().split())))",
    "90001": "class Solution:\n    def largestPair(self, nums):\n        return sum(sorted(nums)[-2:])",
    "inv002_b": "print(input()[::-1])",
    "inv003_c": "v = list(map(int, input().split()))\nprint(sum(v) / len(v))",
    "90002": "class Solution:\n    def repeatText(self, text, times):\n        return text * times",
    "inv004_d": "print(max(map(int, input().split())))",
    "inv005_e": "import sys\nprint(len(sys.stdin.read().split()))",
    "inv006_f": "print(2 * int(input()))",
}


def invented(name, folder=SAMPLES):
    """The task without the number of rows that were published, and its problems among the invented rows."""
    task = without_published_rows(load_task(name))
    return task, load_problems(task, folder)


def judge(task, pairs):
    async def all_verdicts():
        verifier = make_task_verifier(task.grader)
        return [await verifier.averify(text, problem.gold, **task.grader_options(problem)) for problem, text in pairs]

    return asyncio.run(all_verdicts())


def fenced(program):
    return f"So:\n```python\n{program}\n```"


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_rows_to_be_tried_on(name):
    task = load_task(name)
    if task.source.generated:
        problems = load_problems(task)
    else:
        # The numeric set that EQUATE lacks is among the rows of the conversion's tests.
        _, problems = invented(name, TESTS / "data" / "fixtures") if name == "qqa" else benchmark(name)
    assert problems
    for problem in problems.values():
        *_, message = task.messages(problem)
        assert all(text in message["content"] for text in problem.fields.values())
        assert set(problem.groups) == set(task.groups)


def responses(name, task, problems):
    """For each of the invented problems one that solves it."""
    if name in INVENTED_MATH:
        return [f"Thus \\boxed{{{problem.gold}}}." for problem in problems.values()]
    if name == "livecodebench_v6":
        programs = [LIVE[problem] for problem in problems]
    else:
        (path,) = (SAMPLES / path.removesuffix(".gz") for path in task.source.local["test"])
        programs = [row["prompt"] + row["canonical_solution"] for _, row in read_source(path)]
    return [fenced(program) for program in programs]


@pytest.mark.parametrize("name", INVENTED_MATH + INVENTED_CODE)
def test_gold_answers_and_reference_solutions_are_right_and_those_of_other_problems_wrong(name):
    task, found = invented(name)
    problems, right = list(found.values()), responses(name, task, found)
    verdicts = judge(task, zip(problems, right, strict=True))
    assert [verdict.detail for verdict in verdicts if not verdict.correct] == []
    verdicts = judge(task, zip(problems, right[1:] + right[:1], strict=True))
    assert not any(verdict.correct or verdict.grader_failure for verdict in verdicts)


def test_the_years_of_aime_are_views_of_one_file():
    _, whole = benchmark("aime")
    years = [benchmark(f"aime{year}")[1] for year in (2022, 2023, 2024)]
    assert [3 * len(year) for year in years] == [len(whole)] * 3
    assert set().union(*years) == set(whole)
    assert load_task("aime2022").references == () and load_task("aime2022").prompts == load_task("aime").prompts


def test_rows_of_several_files_are_named_after_them():
    _, problems = invented("aime2025")
    assert list(problems) == ["aime2025-I:1", "aime2025-I:2", "aime2025-II:1"]
    assert [problem.groups["contest"] for problem in problems.values()] == ["2025-I", "2025-I", "2025-II"]


def test_a_missing_file_of_several_is_named(tmp_path):
    (tmp_path / "aime2025").mkdir()
    (tmp_path / "aime2025" / "aime2025-I.jsonl").write_text((SAMPLES / "aime2025" / "aime2025-I.jsonl").read_text())
    with pytest.raises(
        NoData, match="aime2025-II.jsonl does not exist; get it with: hf download .* aime2025-I.jsonl aime"
    ):
        load_problems(load_task("aime2025"), tmp_path)


@pytest.mark.parametrize(
    ("name", "first", "last", "rows"),
    [
        ("livecodebench_v2", "2023-05", "2024-05", 3),
        ("livecodebench_v6", "2023-05", "2025-03", 8),
        # Both days are within the window.
        ("livecodebench_2408_2411", "2024-08", "2024-11", 2),
    ],
)
def test_releases_and_windows_of_livecodebench(name, first, last, rows):
    _, problems = invented(name)
    months = sorted(problem.groups["month"] for problem in problems.values())
    assert (len(months), months[0], months[-1]) == (rows, first, last)


def test_livecodebench_asks_for_the_method_or_for_a_program():
    task, problems = invented("livecodebench_v2")
    (method,) = task.messages(problems["90001"])
    assert "def largestPair(self, nums: List[int]) -> int:" in method["content"] and "stdin" not in method["content"]
    (program,) = task.messages(problems["inv001_a"])
    assert "Read the inputs from stdin" in program["content"] and "starter code" not in program["content"]
    system, user = task.messages(problems["inv001_a"], "official")
    assert system["role"] == "system" and program["content"].startswith(user["content"].rstrip())


def test_base_and_plus_are_scored_apart():
    task, problems = invented("humaneval_plus")
    problem = problems["HumanEval/9000"]
    programs = (
        "def spread(values):\n    return max(values) - min(values)",
        "def spread(values):\n    return 0",
        "def spread(values):\n    return max(values, default=0) - min(values, default=0)",
    )
    verdicts = judge(task, [(problem, fenced(program)) for program in programs])
    assert [tuple(verdict.parts.values()) for verdict in verdicts] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]
    assert [verdict.score for verdict in verdicts] == [0.0, 0.0, 1.0]
