# SPDX-License-Identifier: Apache-2.0
"""The stage that runs reference programs: tests that no program of several passes cannot judge a policy.

The programs are as hostile as any other text of the internet: nothing here looks at them, they run in the sandbox of
:mod:`prime_ext.verifiers` and nowhere else.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from tqdm import tqdm

from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.stage import Changed, Removal, Result, Stage, StageKind
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox import Limits, Sandbox, SandboxUnavailable
from prime_ext.verifiers.verdict import Verdict

FAILED, UNJUDGED, NONE = "solutions_fail", "unjudged", "no_solutions"
_SHOWN = 120


@dataclass(frozen=True)
class SolutionOptions:
    """Options of the stage; ``settings/code.yaml`` says what they mean."""

    most_programs: PositiveInt = 3
    without_solutions: Literal["keep", "remove"] = "keep"
    seconds: PositiveFloat = 10.0
    seconds_per_problem: PositiveFloat = 60.0
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    sandbox_workers: NonNegativeInt = 0


_verifiers: dict[SolutionOptions, tuple[Sandbox, CodeVerifier]] = {}


def _verifier(options: SolutionOptions) -> CodeVerifier:
    """One sandbox for all parts.

    Raises:
        SourceError: this machine cannot confine programs.
    """
    if options not in _verifiers:
        limits = Limits(seconds=options.seconds, memory_bytes=options.memory_mb << 20)
        try:
            sandbox = Sandbox(limits, options.sandbox_workers or None)
        except SandboxUnavailable as error:
            raise SourceError(
                f"check_solutions: {error}; stages.check_solutions=null leaves the tests unchecked"
            ) from error
        verifier = CodeVerifier(sandbox, limits=limits, seconds_per_problem=options.seconds_per_problem)
        _verifiers[options] = sandbox, verifier
    return _verifiers[options][1]


def close_sandboxes() -> None:
    """End the sandboxes of this process."""
    while _verifiers:
        _, (sandbox, _) = _verifiers.popitem()
        sandbox.close()


def stage(options: SolutionOptions, plan: Path | None) -> Stage:
    """The stage: round by round, the next program of every problem that has not passed yet."""

    def run(problems: Sequence[CodeProblem]) -> list[Result]:
        results: list[Result] = list(problems)
        found: dict[int, list[Verdict]] = {}
        for place, problem in enumerate(problems):
            if problem.split != "train":
                continue
            if problem.programs:
                found[place] = []
            elif options.without_solutions == "remove":
                results[place] = Removal(NONE, "no Python 3 program")
            else:
                results[place] = Changed(problem, {"kept without a Python program": 1})
        for attempt in range(options.most_programs):
            tried = [place for place in found if attempt < len(problems[place].programs)]
            for place, verdict in zip(tried, _verdicts(options, problems, tried, attempt), strict=True):
                found[place].append(verdict)
                if verdict.correct:
                    results[place] = Changed(problems[place], {f"passed by program {attempt + 1}": 1})
                    del found[place]
        for place, verdicts in found.items():
            results[place] = _removal(verdicts, len(problems[place].programs))
        return results

    return run


def _removal(verdicts: Sequence[Verdict], n_programs: int) -> Removal:
    words = "; ".join(f"{verdict.outcome}, {verdict.detail[:_SHOWN]}" for verdict in verdicts)
    rule = UNJUDGED if any(verdict.grader_failure for verdict in verdicts) else FAILED
    return Removal(rule, f"{len(verdicts)} of {n_programs} programs tried: {words}")


def _verdicts(
    options: SolutionOptions, problems: Sequence[CodeProblem], places: Sequence[int], attempt: int
) -> list[Verdict]:
    """Run one program of each of these problems, as many at a time as the sandbox has workers."""
    if not places:
        return []
    verifier = _verifier(options)
    waiting = [
        verifier.submit_program(problems[place].programs[attempt], problems[place].ground_truth()) for place in places
    ]
    bar = tqdm(waiting, desc=f"program {attempt + 1}", unit=" problems", leave=False, disable=not sys.stderr.isatty())
    return [future.result() for future in bar]


CHECK_SOLUTIONS = StageKind(
    name="check_solutions",
    title="tests that no reference program passes in the sandbox",
    of=(CodeProblem,),
    options=SolutionOptions,
    rules=lambda options: {
        FAILED: f"none of the first {options.most_programs} Python programs passes all tests",
        UNJUDGED: "no program passes, and of one of them the sandbox could not say why",
        **({NONE: "no Python program to try the tests with"} if options.without_solutions == "remove" else {}),
    },
    make=stage,
    one_process=True,
    close=close_sandboxes,
)
