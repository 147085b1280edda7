# SPDX-License-Identifier: Apache-2.0
"""Environments as tasks: ``environment:NAME``, or the rows that ``data environment`` writes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from prime_ext.environments.first_texts import draw_seeds, read_first_texts
from prime_ext.environments.names import DATA_SOURCE
from prime_ext.tasks.benchmark_task import (
    BenchmarkProblem,
    BenchmarkSource,
    Decoding,
    Gold,
    Prompt,
    Task,
)
from prime_ext.utils.rows import SourceError

PREFIX = "environment:"
GRADER = "environment"
# Episodes of a name without --limit.
EPISODES = 256
MAX_TURNS = 16


@dataclass(frozen=True)
class TurnLimits:
    """Limits of an episode; ``max_episode_tokens`` are those of all its responses together."""

    max_turns: int = MAX_TURNS
    max_episode_tokens: int | None = None


class EnvironmentTask(Task):
    """Episodes of one environment, which judges them.

    The gold answer of a problem is the environment's name; its fields are ``problem``, the first
    observation, ``system``, and ``seed``.
    """

    @property
    def grader(self) -> str:
        return GRADER

    def grader_options(self) -> dict[str, Any]:
        return {}


def make_environment_task(name: str, title: str, environment: str) -> EnvironmentTask:
    return EnvironmentTask(
        name=name,
        title=title,
        description=f"Episodes of {environment}.",
        license="unknown",
        data_source=DATA_SOURCE + environment,
        ability="game",
        source=BenchmarkSource(),
        fields={},
        texts=("problem",),
        gold=(Gold(("reward_model",)),),
        prompts={"default": Prompt(user="{{problem}}", system="{{system}}")},
        metrics=("success",),
        decoding={"greedy": Decoding()},
    )


def read_environment(
    word: str, limit: int | None
) -> tuple[EnvironmentTask, dict[str, BenchmarkProblem]]:
    """Return the task that ``environment:NAME`` names, and its problems by seed, without texts."""
    name = word.removeprefix(PREFIX)
    seeds = islice(draw_seeds(f"evaluation {name}"), limit or EPISODES)
    problems = {
        str(seed): BenchmarkProblem(fields={"system": "", "seed": str(seed)}, gold=name)
        for seed in seeds
    }
    folder = re.sub(r"[^\w.:=-]", "_", word)
    return make_environment_task(folder, name, name), problems


def add_first_texts(
    task: EnvironmentTask, problems: Mapping[str, BenchmarkProblem]
) -> dict[str, BenchmarkProblem]:
    """Return the problems with their first observations.

    Raises SourceError: the environment fails, or a problem has another one than its seed gives.
    """
    name = task.data_source.removeprefix(DATA_SOURCE)
    texts = read_first_texts(name, (int(problem.fields["seed"]) for problem in problems.values()))
    observed = {}
    for (key, problem), text in zip(problems.items(), texts, strict=True):
        if problem.fields.get("problem", text) != text:
            raise SourceError(
                f"{task.title} row {key}: the seed {problem.fields['seed']} of {name} now gives"
                f" {text[:80]!r}; make the rows again, with data environment"
            )
        observed[key] = replace(problem, fields={**problem.fields, "problem": text})
    return observed
