# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the responses of a run, many at the same time; each is kept when it is there."""

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from prime_ext.utils.files import write_json_lines
from prime_ext.utils.run_store import LineFile, Row
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.judging import Query, judge_all
from prime_ext.verifiers.sources import TaskVerifier

from .environment_task import GRADER
from .evaluation_plan import TaskPlan
from .results import PROBLEMS, Key, get_key

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


def list_fields(grader: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the fields of a response and of a judged one; episodes have their turns too."""
    more = ("turns",) if grader == GRADER else ()
    return (*RESPONSE_FIELDS, *more), (*SAMPLE_FIELDS, *more)


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


def build_verdict_fields(verdict: Verdict) -> Row:
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
    failures = 0
    queries = []
    for row in todo:
        problem = problems[row["problem"]]
        options = problem["options"] | ({"episode": row} if "turns" in row else {})
        queries.append(Query(verifier, row["text"], problem["gold"], options))

    def keep(number: int, verdict: Verdict) -> None:
        nonlocal failures
        response = todo[number]
        samples.append(_build_sample(problems[response["problem"]], response, verdict))
        failures += verdict.grader_failure
        bar.update()
        if failures:
            bar.set_postfix({"grader failures": failures}, refresh=False)

    started = time.perf_counter()
    done = len(samples.rows)
    shown = {
        "total": done + len(todo),
        "initial": done,
        "desc": f"{name} graded",
        "unit": " responses",
    }
    with samples, tqdm(**shown, file=sys.stderr) as bar:
        judge_all(queries, keep)
    return time.perf_counter() - started


def _build_sample(problem: Row, response: Row, verdict: Verdict) -> Row:
    return {
        "problem": response["problem"],
        "sample": response["sample"],
        "groups": problem["groups"],
        "prompt": problem["prompt"],
        "response": response["text"],
        "gold": shorten_gold(problem["gold"]),
        **build_verdict_fields(verdict),
        "tokens": response["tokens"],
        "prompt_tokens": response["prompt_tokens"],
        "truncated": response["finish"] == "length",
        **({"turns": response["turns"]} if "turns" in response else {}),
    }
