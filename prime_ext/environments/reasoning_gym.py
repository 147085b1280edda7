# SPDX-License-Identifier: Apache-2.0
"""Problems of reasoning-gym as environments of one turn: ``reasoning_gym:chain_sum:max_terms=3``.

The task's scorer judges the answer, as it does for rows of ``data_preprocessing.reasoning_gym``.
"""

from collections.abc import Mapping
from typing import Any

from prime_ext.tasks.gym_problems import generate, read_task
from prime_ext.verifiers.gym_verifier import judge, warm_up


class ProblemEnvironment:
    """One problem of a task; the first answer ends the episode."""

    def __init__(self, task: str, **parameters: Any) -> None:
        self._task = ":".join([task, *(f"{key}={value}" for key, value in parameters.items())])

    @classmethod
    def prepare(cls, task: str, **parameters: Any) -> None:
        """Import the library. Raises SourceError: the task or a parameter is not known."""
        read_task(cls(task, **parameters)._task)
        warm_up()

    def reset(self, seed: int) -> str:
        problem = next(generate(self._task, 1, seed))
        self._gold = problem["gold"]
        return f"{problem['question']}\n\nPut the answer into \\boxed{{}}."

    def step(self, text: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        verdict = judge(text, self._gold)
        success = verdict.score or 0.0
        return "", success, True, {"success": success, "invalid": verdict.extracted is None}

    def close(self) -> None:
        pass
