# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the responses of a run, many at the same time; each is kept when it is there."""

import asyncio
import hashlib
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.evaluation_plan import TaskPlan
from eval.results import PROBLEMS, Key, get_key
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.run_store import LineFile, Row, RunError
from prime_ext.verifiers import Outcome, Verdict
from prime_ext.verifiers.sandbox.client import SandboxUnavailable
from prime_ext.verifiers.sources import TaskVerifier, ask_verifier, make_task_verifier
from prime_ext.verifiers.verdict import grader_failed

CONCURRENCY = 64
# Characters of a gold answer that the verdicts show as it is.
_LONGEST_GOLD = 10_000
PROBLEM_FIELDS = ("problem", "groups", "prompt", "gold", "options")
RESPONSE_FIELDS = (
    "problem",
    "sample",
    "seed",
    "text",
    "tokens",
    "prompt_tokens",
    "finish",
    "detail",
)
SAMPLE_FIELDS = (
    *("problem", "sample", "groups", "prompt", "response", "gold", "verdict", "score", "extracted"),
    *("grader_failure", "detail", "tokens", "prompt_tokens", "truncated"),
)


def shorten_gold(gold: str) -> str:
    """Return a gold answer as the verdicts show it; long ones, tests of programs, by hash.

    Those of LiveCodeBench are megabytes, and there are several responses to each problem.
    """
    if len(gold) <= _LONGEST_GOLD:
        return gold
    return f"sha256:{hashlib.sha256(gold.encode('utf-8', 'surrogatepass')).hexdigest()}"


def write_problems(planned: TaskPlan, folder: Path) -> dict[str, Row]:
    """Keep all that grading needs, so that it can be repeated without the data; return it."""
    rows: list[Row] = [
        {
            "problem": name,
            "groups": dict(problem.groups),
            "prompt": planned.shown[name],
            "gold": problem.gold,
            "options": planned.task.grader_options(),
        }
        for name, problem in planned.problems.items()
    ]
    write_json_lines(folder / PROBLEMS, rows)
    return {row["problem"]: row for row in rows}


@cache
def make_verifier(grader: str) -> TaskVerifier:
    """Return the process's judge of math, code or choice. Raises ``RunError``: no sandbox."""
    try:
        return make_task_verifier(grader)
    except SandboxUnavailable as error:
        raise RunError(
            f"programs cannot be judged on this machine: {' '.join(str(error).split())}"
        ) from error


async def ask(
    verifier: TaskVerifier, response: str, gold: str, options: Mapping[str, Any]
) -> Verdict:
    """Return the verdict on a response; an exception of the verifier is a failure of the grader."""
    started = time.perf_counter()
    try:
        return await ask_verifier(verifier, response, gold, options)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:500]
        return grader_failed(Outcome.ERROR, None, time.perf_counter() - started, detail)


def verdict_fields(verdict: Verdict) -> Row:
    """Return a verdict as fields of a line."""
    return {
        "verdict": str(verdict.outcome),
        "score": verdict.score,
        "extracted": verdict.extracted,
        "grader_failure": verdict.grader_failure,
        "detail": verdict.detail,
    }


def grade(
    name: str,
    verifier: TaskVerifier,
    problems: Mapping[str, Row],
    responses: Mapping[Key, Row],
    samples: LineFile,
) -> float:
    """Judge the responses without a verdict in ``samples``, and put it there; return the seconds.

    A verdict on another text or gold answer is forgotten.
    """
    samples.keep(
        lambda row: (
            get_key(row) in responses
            and row["response"] == responses[get_key(row)]["text"]
            and row["gold"] == shorten_gold(problems[row["problem"]]["gold"])
        )
    )
    todo = [row for key, row in responses.items() if key not in samples.rows]
    if not todo:
        with samples:
            return 0.0
    waiting = iter(todo)
    failures = 0

    async def judge_next() -> None:
        nonlocal failures
        for response in waiting:
            problem = problems[response["problem"]]
            verdict = await ask(verifier, response["text"], problem["gold"], problem["options"])
            samples.append(_sample(problem, response, verdict))
            failures += verdict.grader_failure
            bar.update()
            if failures:
                bar.set_postfix({"grader failures": failures}, refresh=False)

    async def judge_all() -> None:
        await asyncio.gather(*(judge_next() for _ in range(min(CONCURRENCY, len(todo)))))

    started = time.perf_counter()
    done = len(samples.rows)
    shown = {
        "total": done + len(todo),
        "initial": done,
        "desc": f"{name} graded",
        "unit": " responses",
    }
    with samples, tqdm(**shown, file=sys.stderr) as bar:
        asyncio.run(judge_all())
    return time.perf_counter() - started


def _sample(problem: Row, response: Row, verdict: Verdict) -> Row:
    return {
        "problem": response["problem"],
        "sample": response["sample"],
        "groups": problem["groups"],
        "prompt": problem["prompt"],
        "response": response["text"],
        "gold": shorten_gold(problem["gold"]),
        **verdict_fields(verdict),
        "tokens": response["tokens"],
        "prompt_tokens": response["prompt_tokens"],
        "truncated": response["finish"] == "length",
    }
