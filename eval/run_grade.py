# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the responses of a run: each is kept as soon as it is there, many are under way at the same time."""

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.run_plan import Planned, RunError
from eval.run_store import Key, LineFile, Row, key_of
from prime_ext.utils.files import numbered_lines, write_json_lines
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sandbox import SandboxUnavailable
from prime_ext.verifiers.sources import TaskVerifier, make_task_verifier

PROBLEMS = "problems.jsonl"
SAMPLES = "samples.jsonl"
CONCURRENCY = 64
# Characters of a gold answer that the verdicts show as it is.
_LONGEST_GOLD = 10_000
FIELDS: dict[str, type | tuple[type, ...]] = {
    "problem": str,
    "sample": int,
    "groups": dict,
    "prompt": (list, str),
    "response": str,
    "gold": str,
    "verdict": str,
    "score": (float, type(None)),
    "parts": dict,
    "extracted": (str, type(None)),
    "grader_failure": bool,
    "detail": str,
    "tokens": int,
    "prompt_tokens": int,
    "truncated": bool,
}


def recorded_gold(gold: str) -> str:
    """A gold answer as the verdicts show it: long ones, the tests of programs, by their hash.

    Those of LiveCodeBench are megabytes, and there are several responses to each problem.
    """
    if len(gold) <= _LONGEST_GOLD:
        return gold
    return f"sha256:{hashlib.sha256(gold.encode('utf-8', 'surrogatepass')).hexdigest()}"


def write_problems(planned: Planned, folder: Path) -> dict[str, Row]:
    """Keep all that grading needs beside the responses, so that it can be done again without the data. Returns it."""
    rows = [
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
    return read_problems(folder)


def read_problems(folder: Path) -> dict[str, Row]:
    """What :func:`write_problems` wrote, by id.

    Raises:
        RunError: it is missing or broken.
    """
    path = folder / PROBLEMS
    try:
        rows = [json.loads(line) for _, line in numbered_lines(path)]
        return {row["problem"]: row for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); the command of the run, given again, mends it") from error


def open_samples(folder: Path, keys: Iterable[Key]) -> LineFile:
    """The verdicts of a task.

    Raises:
        RunError: see :class:`LineFile`.
    """
    return LineFile(folder / SAMPLES, FIELDS, keys)


@cache
def make_verifier(grader: str) -> TaskVerifier:
    """What judges math, code or choice; one of each in a process.

    Raises:
        RunError: this machine cannot confine programs.
    """
    try:
        return make_task_verifier(grader)
    except SandboxUnavailable as error:
        raise RunError(f"programs cannot be judged on this machine: {' '.join(str(error).split())}") from error


def grade(
    name: str, verifier: TaskVerifier, problems: Mapping[str, Row], responses: Mapping[Key, Row], samples: LineFile
) -> float:
    """Judge the responses that have no verdict yet; a verdict on another text is forgotten.

    Args:
        name: of the task.
        verifier: that judges.
        problems: see :func:`read_problems`.
        responses: by key.
        samples: the verdicts; afterwards with the new ones, in order.

    Returns:
        Seconds that it took.
    """
    samples.keep(
        lambda row: (
            key_of(row) in responses
            and row["response"] == responses[key_of(row)]["text"]
            and row["gold"] == recorded_gold(problems[row["problem"]]["gold"])
        )
    )
    todo = [row for key, row in responses.items() if key not in samples.rows]
    if not todo:
        with samples:
            return 0.0
    started = time.perf_counter()
    asyncio.run(_grade(name, verifier, problems, todo, samples))
    return time.perf_counter() - started


async def _grade(
    name: str, verifier: TaskVerifier, problems: Mapping[str, Row], todo: Sequence[Row], samples: LineFile
) -> None:
    done, failures = len(samples.rows), 0
    bar = tqdm(total=done + len(todo), initial=done, desc=f"{name} graded", unit=" responses", file=sys.stderr)
    with samples, bar:
        async for response, verdict in _verdicts(verifier, problems, todo):
            samples.append(_sample(problems[response["problem"]], response, verdict))
            failures += verdict.grader_failure
            bar.update()
            if failures:
                bar.set_postfix({"grader failures": failures}, refresh=False)


async def _verdicts(
    verifier: TaskVerifier, problems: Mapping[str, Row], todo: Sequence[Row]
) -> AsyncIterator[tuple[Row, Verdict]]:
    """Responses with their verdicts, as they finish."""
    running: dict[asyncio.Task[Verdict], Row] = {}
    waiting = iter(todo)
    try:
        while True:
            while len(running) < CONCURRENCY and (row := next(waiting, None)) is not None:
                problem = problems[row["problem"]]
                work = verifier.averify(row["text"], problem["gold"], **problem["options"])
                running[asyncio.ensure_future(work)] = row
            if not running:
                return
            finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield running.pop(task), task.result()
    finally:
        for task in running:
            task.cancel()


def _sample(problem: Row, response: Row, verdict: Verdict) -> dict[str, Any]:
    return {
        "problem": response["problem"],
        "sample": response["sample"],
        "groups": problem["groups"],
        "prompt": problem["prompt"],
        "response": response["text"],
        "gold": recorded_gold(problem["gold"]),
        "verdict": str(verdict.outcome),
        "score": verdict.score,
        "parts": dict(verdict.parts),
        "extracted": verdict.extracted,
        "grader_failure": verdict.grader_failure,
        "detail": verdict.detail,
        "tokens": response["tokens"],
        "prompt_tokens": response["prompt_tokens"],
        "truncated": response["finish"] == "length",
    }
