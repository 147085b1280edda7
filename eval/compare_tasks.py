# SPDX-License-Identifier: Apache-2.0
"""Two runs task by task: whether they may be compared, the paired differences, and their mean over tasks."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import t as student

from eval.finished_run import FinishedRun, TaskRun
from eval.paired import Comparison, compare_runs
from eval.published import differing
from eval.run_shape import BadRun
from eval.statistics import CONFIDENCE, NoProblems


@dataclass(frozen=True)
class TaskComparison:
    """A task in both runs.

    Attributes:
        before: in the first run.
        after: in the second run.
        paired: the difference; None where no problem was judged in both.
        changes: decoding or prompts that differ, in words; only if that was allowed.
    """

    before: TaskRun
    after: TaskRun
    paired: Comparison | None
    changes: tuple[str, ...]

    @property
    def title(self) -> str:
        return str(self.after.entry["title"])


@dataclass(frozen=True)
class Overall:
    """Mean of the differences over tasks, each counting the same.

    Attributes:
        value: the mean.
        standard_error: of it; None if that of a task is not known.
        low: lower end of the 95 % interval; None without a standard error.
        high: upper end.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RunComparison:
    """The second run against the first.

    Attributes:
        before: the first run.
        after: the second run.
        tasks: those in both, by name.
        only: names of tasks in one run, with which one.
        overall: mean difference; None with less than two tasks, or where tasks share problems.
        shared: two tasks that share problems, if there are such.
        versions: packages whose versions differ.
    """

    before: FinishedRun
    after: FinishedRun
    tasks: Mapping[str, TaskComparison]
    only: Sequence[tuple[str, str]]
    overall: Overall | None
    shared: tuple[str, str] | None
    versions: Mapping[str, tuple[Any, Any]]


def compare(before: FinishedRun, after: FinishedRun, decoding: bool = False, prompts: bool = False) -> RunComparison:
    """Compare two runs on the tasks that both have.

    Args:
        before: the first run.
        after: the second run.
        decoding: allow different decoding.
        prompts: allow different prompts.

    Raises:
        BadRun: they have no task in common, or a task with other problems, or with another decoding or other prompts
            where that is not allowed.
    """
    common = [name for name in before.tasks if name in after.tasks]
    if not common:
        lists = [f"{run.folder} has {', '.join(run.tasks)}" for run in (before, after)]
        raise BadRun(f"the runs have no task in common: {lists[0]}; {lists[1]}")
    tasks = {name: _compare(before.tasks[name], after.tasks[name], decoding, prompts) for name in common}
    only = [(name, run.name) for run in (before, after) for name in run.tasks if name not in tasks]
    shared = shared_problems([own.after for own in tasks.values()])
    first, second = before.results["versions"], after.results["versions"]
    packages = {name: (first.get(name), second.get(name)) for name in [*first, *second]}
    return RunComparison(
        before,
        after,
        tasks,
        only,
        overall=None if shared else mean_difference([own.paired for own in tasks.values()]),
        shared=shared,
        versions={name: pair for name, pair in packages.items() if pair[0] != pair[1]},
    )


def _compare(before: TaskRun, after: TaskRun, decoding: bool, prompts: bool) -> TaskComparison:
    name = before.name
    for key, what in (("data_sha256", "problems"), ("split", "split"), ("grader", "grader")):
        if before.entry[key] != after.entry[key]:
            pair = f"{before.entry[key][:12]} and {after.entry[key][:12]}"
            raise BadRun(f"{name}: the runs have different {what} ({key} {pair}), so they cannot be compared")
    changes = []
    if before.entry["prompt_sha256"] != after.entry["prompt_sha256"]:
        changes.append(f"prompts differ ({before.entry['prompt']} and {after.entry['prompt']}, by their hashes)")
        if not prompts:
            raise BadRun(f"{name}: {changes[-1]}; --allow-prompts compares all the same")
    pairs = differing(before.entry["decoding"], after.entry["decoding"])
    if before.entry.get("stop") != after.entry.get("stop"):
        pairs["stop"] = (before.entry.get("stop"), after.entry.get("stop"))
    if pairs:
        changes.append("decoding differs: " + ", ".join(f"{key} {a} and {b}" for key, (a, b) in pairs.items()))
        if not decoding:
            raise BadRun(f"{name}: {changes[-1]}; --allow-decoding compares all the same")
    try:
        paired = compare_runs(*_by_problem(before, after))
    except NoProblems:
        paired = None
    return TaskComparison(before, after, paired, tuple(changes))


def _by_problem(*runs: TaskRun) -> list[dict[str, list[float | None]]]:
    """Scores by problem; a problem of which every response failed has none."""
    problems = [run.problems for run in runs]
    names = dict.fromkeys(name for own in problems for name in own)
    return [{name: [row.score for row in own.get(name, ())] for name in names} for own in problems]


def mean_difference(comparisons: Sequence[Comparison | None]) -> Overall | None:
    """Mean of the differences over tasks that share no problem.

    The errors of the tasks are independent, so the standard error of the mean is the root of the sum of their squares,
    over the number of tasks. The interval is Student's with Welch's and Satterthwaite's degrees of freedom (Biometrics
    Bulletin 2, 1946).

    Returns:
        None with less than two tasks.
    """
    there = [own for own in comparisons if own is not None]
    if len(there) < 2:
        return None
    value = sum(own.difference for own in there) / len(there)
    known = [(own.standard_error, own.problems - 1) for own in there if own.standard_error is not None]
    error = math.sqrt(sum(own**2 for own, _ in known)) / len(there)
    if len(known) < len(there) or error == 0:
        return Overall(value, None, None, None)
    freedom = sum(own**2 for own, _ in known) ** 2 / sum(own**4 / degrees for own, degrees in known)
    half = float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return Overall(value, error, max(-1.0, value - half), min(1.0, value + half))


def shared_problems(tasks: Sequence[TaskRun]) -> tuple[str, str] | None:
    """Two tasks in which a model is shown the same prompt; None if there are no such."""
    seen: dict[bytes, str] = {}
    for task in tasks:
        for rows in task.problems.values():
            prompt = json.dumps(task.texts(rows[0])["prompt"]).encode()
            first = seen.setdefault(hashlib.sha256(prompt).digest(), task.name)
            if first != task.name:
                return first, task.name
    return None


def for_json(own: RunComparison) -> dict[str, Any]:
    """The comparison without texts."""
    return {
        "before": {"run": own.before.name, "model": own.before.results["model"]},
        "after": {"run": own.after.name, "model": own.after.results["model"]},
        "overall": None if own.overall is None else asdict(own.overall),
        "tasks": {
            name: {
                "title": task.title,
                "changes": list(task.changes),
                "comparison": None if task.paired is None else asdict(task.paired),
            }
            for name, task in own.tasks.items()
        },
        "only_in_one": {name: run for name, run in own.only},
        "versions": {name: list(pair) for name, pair in own.versions.items()},
    }
