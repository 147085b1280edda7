# SPDX-License-Identifier: Apache-2.0
"""The stage that removes problems whose tests no reference program passes.

Such tests cannot judge a policy. The programs are as hostile as any text of the internet: they run
only in the sandbox of :mod:`prime_ext.verifiers`. Verdicts are kept in a file, so that an
interrupted run continues.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from prime_ext.utils.rows import SourceError, make_batches
from prime_ext.utils.run_store import LineFile, Row
from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox.client import Limits, Sandbox, SandboxUnavailable
from prime_ext.verifiers.verdict import Outcome

from .code_sources import CodeProblem
from .pipeline_report import replace_half_characters
from .problem_sources import SourceProblem
from .stages import Changed, Removal, Result, Stage, StageRun, show_progress

FAILED = "solutions_fail"
UNJUDGED = "unjudged"
NONE = "no_solutions"
FIELDS = ("key", "outcome", "detail", "grader_failure")
# Options that affect a verdict.
LIMITS = ("seconds", "seconds_per_problem", "memory_mb")
_SHOWN = 120
# A program and its tests as JSON.
Pair = tuple[str, str]


@dataclass(frozen=True)
class CheckSolutions(Stage):
    """The options of the stage, which ``settings/code.yaml`` describes."""

    most_programs: PositiveInt = 3
    without_solutions: Literal["keep", "remove"] = "keep"
    seconds: PositiveFloat = 10.0
    seconds_per_problem: PositiveFloat = 60.0
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    sandbox_workers: NonNegativeInt = 0

    name = "check_solutions"
    title = "tests that no reference program passes in the sandbox"
    of = CodeProblem

    def meanings(self) -> Mapping[str, str]:
        return {
            FAILED: f"none of the first {self.most_programs} Python programs passes all tests",
            UNJUDGED: "no program passes, and of one of them the sandbox could not say why",
            **(
                {NONE: "no Python program to try the tests with"}
                if self.without_solutions == "remove"
                else {}
            ),
        }

    def run(
        self, problems: Iterator[SourceProblem], run: StageRun
    ) -> Iterator[tuple[SourceProblem, Result]]:
        """Judge batch after batch. Raises SourceError: this machine cannot confine programs."""
        store = LineFile(run.output / "verdicts.jsonl", lambda row: row["key"], FIELDS)
        # Programs that the sandbox could not judge are tried again.
        store.keep(lambda row: not row["grader_failure"])
        with ExitStack() as stack:
            stack.enter_context(store)
            # The sandbox starts with the first program.
            verifier = cache(partial(self._start, stack))
            for batch in make_batches(problems, run.chunk_rows):
                yield from zip(
                    batch,
                    self.judge_all(batch, partial(self._get_verdicts, store, verifier)),
                    strict=True,
                )

    def judge_all(
        self, problems: Sequence[SourceProblem], verdicts_of: Callable[[Sequence[Pair]], list[Row]]
    ) -> list[Result]:
        """Judge round by round, by the next program of every problem that has not passed yet."""
        results: list[Result] = [None] * len(problems)
        code: dict[int, CodeProblem] = {}
        for index, problem in enumerate(problems):
            if not isinstance(problem, CodeProblem) or problem.split != "train":
                continue
            if problem.programs:
                code[index] = problem
            elif self.without_solutions == "remove":
                results[index] = Removal(NONE, "no Python 3 program")
            else:
                results[index] = Changed(problem, {"kept without a Python program": 1})
        unsolved: dict[int, list[Row]] = {index: [] for index in code}
        for attempt in range(self.most_programs):
            tried = [index for index in unsolved if attempt < len(code[index].programs)]
            pairs = [(code[index].programs[attempt], code[index].ground_truth()) for index in tried]
            for index, verdict in zip(tried, verdicts_of(pairs), strict=True):
                unsolved[index].append(verdict)
                if verdict["outcome"] == Outcome.CORRECT:
                    results[index] = Changed(code[index], {f"passed by program {attempt + 1}": 1})
                    del unsolved[index]
        for index, verdicts in unsolved.items():
            words = "; ".join(
                f"{verdict['outcome']}, {verdict['detail'][:_SHOWN]}" for verdict in verdicts
            )
            rule = UNJUDGED if any(verdict["grader_failure"] for verdict in verdicts) else FAILED
            of = len(code[index].programs)
            results[index] = Removal(rule, f"{len(verdicts)} of {of} programs tried: {words}")
        return results

    def _get_verdicts(
        self, store: LineFile, verifier: Callable[[], CodeVerifier], pairs: Sequence[Pair]
    ) -> list[Row]:
        limits = {name: value for name, value in asdict(self).items() if name in LIMITS}
        keys = [hashlib.sha256(json.dumps([pair, limits]).encode()).hexdigest() for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in store.rows}

        async def judge_new() -> None:
            waiting = {
                key: asyncio.create_task(verifier().averify_program(*pair))
                for key, pair in new.items()
            }
            for key, task in show_progress(list(waiting.items()), "programs"):
                verdict = await task
                detail = replace_half_characters(verdict.detail)
                failed = verdict.grader_failure
                store.append(
                    {
                        "key": key,
                        "outcome": verdict.outcome,
                        "detail": detail,
                        "grader_failure": failed,
                    }
                )

        asyncio.run(judge_new())
        return [store.rows[key] for key in keys]

    def _start(self, stack: ExitStack) -> CodeVerifier:
        limits = Limits(seconds=self.seconds, memory_bytes=self.memory_mb << 20)
        try:
            sandbox = Sandbox(limits, self.sandbox_workers or None)
        except SandboxUnavailable as error:
            raise SourceError(
                f"check_solutions: {error}; stages.check_solutions=null leaves the tests unchecked"
            ) from error
        stack.callback(sandbox.close)
        return CodeVerifier(sandbox, limits=limits, seconds_per_problem=self.seconds_per_problem)
