# SPDX-License-Identifier: Apache-2.0
"""The stage that runs reference programs: tests that no program of several passes cannot judge a policy.

The programs are as hostile as any other text of the internet: nothing here looks at them, they run in the sandbox of
:mod:`prime_ext.verifiers` and nowhere else.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from tqdm import tqdm

from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.stage import Changed, Removal, Result, Stage
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox import Limits, Sandbox, SandboxUnavailable
from prime_ext.verifiers.verdict import Verdict

FAILED, UNJUDGED, NONE = "solutions_fail", "unjudged", "no_solutions"
_SHOWN = 120


@dataclass(frozen=True)
class CheckSolutions(Stage):
    """The options; ``settings/code.yaml`` says what they mean."""

    most_programs: PositiveInt = 3
    without_solutions: Literal["keep", "remove"] = "keep"
    seconds: PositiveFloat = 10.0
    seconds_per_problem: PositiveFloat = 60.0
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    sandbox_workers: NonNegativeInt = 0

    name, title, of = "check_solutions", "tests that no reference program passes in the sandbox", (CodeProblem,)
    one_process = True

    def meanings(self) -> Mapping[str, str]:
        return {
            FAILED: f"none of the first {self.most_programs} Python programs passes all tests",
            UNJUDGED: "no program passes, and of one of them the sandbox could not say why",
            **({NONE: "no Python program to try the tests with"} if self.without_solutions == "remove" else {}),
        }

    def results(self, problems: Sequence[CodeProblem], plan: Path | None = None) -> list[Result]:
        """Round by round, the next program of every problem that has not passed yet."""
        results: list[Result] = list(problems)
        found: dict[int, list[Verdict]] = {}
        for place, problem in enumerate(problems):
            if problem.split != "train":
                continue
            if problem.programs:
                found[place] = []
            elif self.without_solutions == "remove":
                results[place] = Removal(NONE, "no Python 3 program")
            else:
                results[place] = Changed(problem, {"kept without a Python program": 1})
        for attempt in range(self.most_programs):
            tried = [place for place in found if attempt < len(problems[place].programs)]
            programs = [(problems[place].programs[attempt], problems[place].ground_truth()) for place in tried]
            for place, verdict in zip(tried, self._verdicts(programs, f"program {attempt + 1}"), strict=True):
                found[place].append(verdict)
                if verdict.correct:
                    results[place] = Changed(problems[place], {f"passed by program {attempt + 1}": 1})
                    del found[place]
        for place, verdicts in found.items():
            words = "; ".join(f"{verdict.outcome}, {verdict.detail[:_SHOWN]}" for verdict in verdicts)
            rule = UNJUDGED if any(verdict.grader_failure for verdict in verdicts) else FAILED
            of = len(problems[place].programs)
            results[place] = Removal(rule, f"{len(verdicts)} of {of} programs tried: {words}")
        return results

    def _verdicts(self, programs: Sequence[tuple[str, str]], title: str) -> list[Verdict]:
        """Run programs on their tests, as many at a time as the sandbox has workers.

        Raises:
            SourceError: this machine cannot confine programs.
        """
        if not programs:
            return []
        if self not in _verifiers:
            limits = Limits(seconds=self.seconds, memory_bytes=self.memory_mb << 20)
            try:
                sandbox = Sandbox(limits, self.sandbox_workers or None)
            except SandboxUnavailable as error:
                raise SourceError(
                    f"check_solutions: {error}; stages.check_solutions=null leaves the tests unchecked"
                ) from error
            verifier = CodeVerifier(sandbox, limits=limits, seconds_per_problem=self.seconds_per_problem)
            _verifiers[self] = sandbox, verifier
        waiting = [_verifiers[self][1].submit_program(*program) for program in programs]
        bar = tqdm(waiting, desc=title, unit=" problems", leave=False, disable=not sys.stderr.isatty())
        return [future.result() for future in bar]

    def close(self) -> None:
        if self in _verifiers:
            _verifiers.pop(self)[0].close()


# One sandbox for all parts.
_verifiers: dict[CheckSolutions, tuple[Sandbox, CodeVerifier]] = {}
