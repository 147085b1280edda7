# SPDX-License-Identifier: Apache-2.0
"""Plan of a run, made before a model is loaded: tasks, problems, decodings, seeded requests."""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import Request, Sampling
from prime_ext.tasks.action_prompt import NAMED_PROMPTS, read_system_prompt
from prime_ext.tasks.benchmark_task import BenchmarkProblem, BenchmarkSource, Decoding, Task
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.tasks.task_rows import choose_default_split, load_problems
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import RunError

from .environment_task import (
    PREFIX,
    EnvironmentTask,
    TurnLimits,
    add_first_texts,
    read_environment,
)
from .prompting import FewShot, Shown, read_few_shot, show
from .results import Key
from .rl_file import SUFFIXES, read_rl_tasks

# Names for all tasks with an ability, without tasks whose problems are in another one.
GROUPS = {"math": "math", "code": "code", "numeric": "numeric_reasoning"}
ALL = "all"
GREEDY = "greedy"


@dataclass(frozen=True)
class TaskPlan:
    """A task of a run. ``problems`` and ``shown`` are by id, in the order of the source.

    Names are those of the task file; a decoding that was changed has "changed" in its name.
    ``limits`` are of the episodes of an environment, None for tasks with single responses.
    """

    task: Task
    split: str
    problems: Mapping[str, BenchmarkProblem]
    prompt_name: str
    shown: Mapping[str, Shown]
    decoding_name: str
    decoding: Decoding
    ks: Sequence[int]
    stop: tuple[str, ...]
    seed: int
    limits: TurnLimits | None = None

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def keys(self) -> Iterator[Key]:
        """Problem and number of every response, in order."""
        return ((problem, sample) for problem in self.problems for sample in range(self.decoding.n))

    def derive_seed(self, problem: str, sample: int, turn: int = 0) -> int:
        """Return the seed of a response: a hash of the run's seed, task, problem and sample.

        Later turns of an episode have others.
        """
        text = json.dumps([self.seed, self.name, problem, sample, *([turn] if turn else [])])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def request(self, problem: str, sample: int) -> Request:
        """Return the request for a response."""
        sampling = Sampling(
            temperature=self.decoding.temperature if self.decoding.do_sample else 0.0,
            top_p=self.decoding.top_p,
            top_k=self.decoding.top_k,
            min_new_tokens=self.decoding.min_new_tokens,
            max_new_tokens=self.decoding.max_new_tokens,
            stop=self.stop,
        )
        key = json.dumps([self.name, problem, sample])
        return Request(key, self.shown[problem], sampling, self.derive_seed(problem, sample))

    def identity(self) -> dict[str, Any]:
        """Return, for JSON, all that responses depend on except for the model and the seed."""
        golds = [
            [name, problem.gold, dict(problem.fields)] for name, problem in self.problems.items()
        ]
        return {
            "split": self.split,
            "prompt_sha256": _compute_digest([self.shown[name] for name in self.problems]),
            "data_sha256": _compute_digest(golds),
            "decoding": {
                "name": self.decoding_name,
                **asdict(self.decoding),
                **(asdict(self.limits) if self.limits else {}),
            },
            "stop": list(self.stop),
        }


def _compute_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def plan_tasks(options: argparse.Namespace) -> list[TaskPlan]:
    """Plan the tasks that the options of ``eval.run`` name. Raises ``RunError``."""
    # None: the task's own.
    system = read_system_prompt(options.system_prompt, {"default": None, **NAMED_PROMPTS})
    shot = read_few_shot(options.few_shot) if options.few_shot else FewShot()
    planned = []
    environments = [name for name in options.tasks if name.startswith(PREFIX)]
    names = [name for name in options.tasks if name not in environments]
    files = [name for name in names if name.endswith(SUFFIXES)]
    for name in (*files, *environments):
        if options.split is not None:
            raise RunError(f"--split does not go with {name}, which has none")
    named = choose_tasks([name for name in names if name not in files])
    tasks: list[tuple[Task, dict[str, BenchmarkProblem] | None]] = [(task, None) for task in named]
    tasks += [pair for name in dict.fromkeys(files) for pair in read_rl_tasks(Path(name))]
    tasks += [read_environment(name, options.limit) for name in dict.fromkeys(environments)]
    limits = choose_limits(options, [task for task, _ in tasks])
    for task, loaded in tasks:
        if [plan.name for plan in planned].count(task.name):
            raise RunError(f"two tasks are called {task.name}; evaluate them one after the other")
        name, decoding = choose_decoding(task, options.decoding, read_changes(options))
        try:
            if loaded is None:
                loaded = load_problems(task, options.data_dir, options.split)
            problems = dict(list(loaded.items())[: options.limit])
            if isinstance(task, EnvironmentTask):
                problems = add_first_texts(task, problems)
        except SourceError as error:
            if not options.skip_missing:
                raise
            print(f"left out: {error}")
            continue
        shown = {
            key: show(task, problem, options.prompt, system, shot, options.raw)
            for key, problem in problems.items()
        }
        plan = TaskPlan(
            task=task,
            split=_name_split(task, options),
            problems=problems,
            prompt_name=options.prompt,
            shown=shown,
            decoding_name=name,
            decoding=decoding,
            ks=choose_ks(task.metrics, decoding.n, options.k),
            stop=(*shot.stop, *options.stop),
            seed=options.seed,
            limits=limits if isinstance(task, EnvironmentTask) else None,
        )
        planned.append(plan)
    if not planned:
        raise RunError("there are no data for any of the tasks")
    return planned


def choose_limits(options: argparse.Namespace, tasks: Sequence[Task]) -> TurnLimits:
    """Return the limits of episodes. Raises ``RunError``: options that do not fit the tasks."""
    plays = any(isinstance(task, EnvironmentTask) for task in tasks)
    if plays and options.raw:
        raise RunError("--raw does not go with environments: an episode is a chat; leave it out")
    chosen = {
        name: value
        for name in ("max_turns", "max_episode_tokens")
        if (value := getattr(options, name)) is not None
    }
    for name in chosen:
        if not plays:
            raise RunError(f"--{name.replace('_', '-')} is for environments; leave it out")
    return TurnLimits(**chosen)


def _name_split(task: Task, options: argparse.Namespace) -> str:
    """Return the split of a task that is evaluated; ``all`` for a file of rows."""
    if task.source == BenchmarkSource():
        return "all"
    return options.split or choose_default_split(task, local=options.data_dir is not None)


def choose_tasks(names: Sequence[str]) -> list[Task]:
    """Return tasks by name, file and group, each once. Raises ``SourceError`` with near names."""
    tasks: dict[str, Task] = {}
    for name in names:
        if name == ALL or name in GROUPS:
            known = map(load_task, list_task_names())
            chosen = [
                task
                for task in known
                if not task.overlaps and (name == ALL or task.ability == GROUPS[name])
            ]
        else:
            chosen = [load_task(name)]
        tasks |= {task.name: task for task in chosen}
    return list(tasks.values())


def read_changes(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line changes of the decodings, by the names of :class:`Decoding`."""
    names = ("n", "temperature", "top_p", "top_k", "min_new_tokens", "max_new_tokens")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def choose_decoding(
    task: Task, name: str | None, changes: Mapping[str, Any]
) -> tuple[str, Decoding]:
    """Return a decoding of a task with the changes of the command line, and its name.

    By default it is the task's first; ``greedy`` always exists, and temperature 0 is greedy. Raises
    ``RunError``: the task has none of that name, or the changes contradict it.
    """
    longest = max(known.max_new_tokens for known in task.decoding.values())
    known = {GREEDY: Decoding(max_new_tokens=longest), **task.decoding}
    name = name or next(iter(task.decoding))
    if name not in known:
        there = dict.fromkeys([*task.decoding, GREEDY])
        raise RunError(f"{task.name} has no decoding {name!r}; it has {', '.join(there)}")
    of_task = known[name]
    overrides = dict(changes)
    narrows = "top_p" in overrides or "top_k" in overrides
    if overrides.get("temperature") == 0 and narrows:
        raise RunError(
            "--temperature 0 is greedy: --top-p and --top-k have no effect; leave them out"
        )
    if "temperature" in overrides:
        overrides["do_sample"] = overrides["temperature"] > 0
        if not overrides["do_sample"]:
            # The other settings of sampling have no effect.
            overrides |= {key: getattr(Decoding, key) for key in ("temperature", "top_p", "top_k")}
    decoding = replace(of_task, **overrides)
    where = f"decoding {name!r} of {task.name}"
    if not decoding.do_sample and narrows:
        raise RunError(f"--top-p and --top-k have no effect on {where}: give --temperature")
    if not decoding.do_sample and decoding.n > 1:
        same = f"{decoding.n} responses per problem are all the same with {where}"
        raise RunError(f"{same}: give --temperature above 0, or --n 1")
    if decoding.min_new_tokens > decoding.max_new_tokens:
        lengths = (
            f"the shortest response, {decoding.min_new_tokens} tokens, is longer than the longest"
        )
        raise RunError(f"{task.name}: {lengths}, {decoding.max_new_tokens}")
    if decoding == of_task:
        return name, decoding
    if name == GREEDY and decoding.do_sample:
        name = "sampled"
    return f"{name}, changed", decoding


def choose_ks(metrics: Sequence[str], n: int, chosen: Sequence[int] | None) -> list[int]:
    """Return the k of pass@k and maj@k: the command line's, else the task's, at most ``n``.

    Raises ``RunError``: a k of the command line is above ``n``.
    """
    if chosen is not None:
        most = max(chosen)
        if most > n:
            raise RunError(
                f"--k {most} is larger than the number of responses per problem, {n}; give --n"
                f" {most}"
            )
        return sorted(set(chosen))
    of_task = {
        int(metric.partition("@")[2]) for metric in metrics if metric.startswith(("pass@", "maj@"))
    }
    # With k = 1 both are the mean score.
    return sorted({min(k, n) for k in of_task} - {1})
