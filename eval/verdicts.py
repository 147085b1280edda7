# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the responses of a run: each is kept as soon as it is there, many are under way at the same time."""

import asyncio
import hashlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from eval.plan import Planned, choose_ks
from eval.results import PROBLEMS, RESPONSES, RESULTS, SAMPLES, Key, add_timing, key_of, read_results, versions
from eval.summary import measure
from prime_ext.utils.files import numbered_lines, write_json, write_json_lines
from prime_ext.utils.run_store import LineFile, Row, RunError, lock_folder, parse_object
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sandbox import SandboxUnavailable
from prime_ext.verifiers.sources import TaskVerifier, make_task_verifier

CONCURRENCY = 64
# Characters of a gold answer that the verdicts show as it is.
_LONGEST_GOLD = 10_000
RESPONSE_FIELDS = ("problem", "sample", "seed", "text", "tokens", "prompt_tokens", "finish", "detail")
SAMPLE_FIELDS = (
    *("problem", "sample", "groups", "prompt", "response", "gold", "verdict", "score", "extracted"),
    *("grader_failure", "detail", "tokens", "prompt_tokens", "truncated"),
)
Job = TypeVar("Job")


def recorded_gold(gold: str) -> str:
    """A gold answer as the verdicts show it: long ones, the tests of programs, by their hash.

    Those of LiveCodeBench are megabytes, and there are several responses to each problem.
    """
    if len(gold) <= _LONGEST_GOLD:
        return gold
    return f"sha256:{hashlib.sha256(gold.encode('utf-8', 'surrogatepass')).hexdigest()}"


def write_problems(planned: Planned, folder: Path) -> dict[str, Row]:
    """Keep all that grading needs beside the responses, so that it can be done again without the data. Returns it."""
    rows: list[Row] = [
        {
            "problem": name,
            "groups": dict(problem.groups),
            "prompt": planned.shown[name],
            "gold": problem.gold,
            "options": planned.task.grader_options(problem),
        }
        for name, problem in planned.problems.items()
    ]
    write_json_lines(folder / PROBLEMS, rows)
    return {row["problem"]: row for row in rows}


@cache
def make_verifier(grader: str) -> TaskVerifier:
    """What judges math, code or choice, one of each in a process; ``RunError`` where programs cannot be confined."""
    try:
        return make_task_verifier(grader)
    except SandboxUnavailable as error:
        raise RunError(f"programs cannot be judged on this machine: {' '.join(str(error).split())}") from error


def judge_all(
    jobs: Sequence[Job],
    judge: Callable[[Job], Awaitable[Verdict]],
    keep: Callable[[Job, Verdict], None],
    title: str,
    done: int = 0,
    concurrency: int = CONCURRENCY,
) -> None:
    """Judge jobs, ``concurrency`` of them at a time, and keep each verdict as it comes, beside a bar.

    ``done`` are the verdicts of an earlier run, which are part of the whole.
    """
    waiting, failures = iter(jobs), 0

    async def work() -> None:
        nonlocal failures
        for job in waiting:
            verdict = await judge(job)
            keep(job, verdict)
            failures += verdict.grader_failure
            bar.update()
            if failures:
                bar.set_postfix({"grader failures": failures}, refresh=False)

    async def work_together() -> None:
        await asyncio.gather(*(work() for _ in range(min(concurrency, len(jobs)))))

    if jobs:
        with tqdm(total=done + len(jobs), initial=done, desc=title, unit=" responses", file=sys.stderr) as bar:
            asyncio.run(work_together())


def grade(
    name: str, verifier: TaskVerifier, problems: Mapping[str, Row], responses: Mapping[Key, Row], samples: LineFile
) -> float:
    """Judge the responses that have no verdict yet; a verdict on another text is forgotten.

    ``samples`` has the verdicts, and afterwards the new ones too. Returns the seconds that it took.
    """
    samples.keep(
        lambda row: (
            key_of(row) in responses
            and row["response"] == responses[key_of(row)]["text"]
            and row["gold"] == recorded_gold(problems[row["problem"]]["gold"])
        )
    )
    todo = [row for key, row in responses.items() if key not in samples.rows]

    def judge(response: Row) -> Awaitable[Verdict]:
        problem = problems[response["problem"]]
        return verifier.averify(response["text"], problem["gold"], **problem["options"])

    def keep(response: Row, verdict: Verdict) -> None:
        samples.append(_sample(problems[response["problem"]], response, verdict))

    started = time.perf_counter()
    with samples:
        judge_all(todo, judge, keep, f"{name} graded", len(samples.rows))
    return time.perf_counter() - started if todo else 0.0


def _sample(problem: Row, response: Row, verdict: Verdict) -> Row:
    return {
        "problem": response["problem"],
        "sample": response["sample"],
        "groups": problem["groups"],
        "prompt": problem["prompt"],
        "response": response["text"],
        "gold": recorded_gold(problem["gold"]),
        "verdict": str(verdict.outcome),
        "score": verdict.score,
        "extracted": verdict.extracted,
        "grader_failure": verdict.grader_failure,
        "detail": verdict.detail,
        "tokens": response["tokens"],
        "prompt_tokens": response["prompt_tokens"],
        "truncated": response["finish"] == "length",
    }


def regrade(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Judge all responses of a run's folder again, and measure again, without a model and without the data.

    A task's old verdicts are replaced when all of its new ones are there.

    Returns what ``results.json`` now holds, and by task how many verdicts are not what they were.

    Raises:
        RunError: the folder holds no results, or something in it is broken.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder")
    with lock_folder(folder):
        results = read_results(folder)
        verifiers = {task["grader"]: make_verifier(task["grader"]) for task in results["tasks"].values()}
        results["regraded_with"] = versions()
        changed = {}
        for name, task in results["tasks"].items():
            changed[name] = _regrade(folder, name, task, verifiers[task["grader"]])
            write_json(folder / RESULTS, results)
    return results, changed


def _regrade(folder: Path, name: str, task: dict[str, Any], verifier: TaskVerifier) -> int:
    """Judge a task and change its results. Returns how many verdicts are not what they were."""
    path, n = folder / name / PROBLEMS, task["decoding"]["n"]
    if not path.is_file():
        raise RunError(f"{path} does not exist; the command of the run, given again, makes it")
    rows = [parse_object(line, f"{path} line {number}") for number, line in numbered_lines(path)]
    problems = {row["problem"]: row for row in rows}
    keys = [(problem, sample) for problem in problems for sample in range(n)]
    responses = LineFile(folder / name / RESPONSES, key_of, RESPONSE_FIELDS, keys)
    old = LineFile(folder / name / SAMPLES, key_of, SAMPLE_FIELDS, keys)
    unfinished = folder / name / f".{SAMPLES}"
    unfinished.unlink(missing_ok=True)
    new = LineFile(unfinished, key_of, SAMPLE_FIELDS, keys)
    seconds = grade(name, verifier, problems, responses.rows, new)
    unfinished.replace(old.path)
    task["ks"] = choose_ks(task["metrics"], n, None)
    task |= measure(task["grader"], n, {key: row["groups"] for key, row in problems.items()}, new.rows, task["ks"])
    add_timing(folder, name, grading=seconds)
    judged_by = ("verdict", "score", "extracted")
    return sum(
        key not in old.rows or any(old.rows[key][field] != row[field] for field in judged_by)
        for key, row in new.rows.items()
    )
