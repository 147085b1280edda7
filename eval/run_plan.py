# SPDX-License-Identifier: Apache-2.0
"""What a run will do, decided before a model is loaded: tasks, problems, decodings, every request with its seed."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.prompting import Shown, Style
from prime_ext.generate.backend import Request, Sampling
from prime_ext.tasks.task import Decoding, Problem, Task
from prime_ext.tasks.task_file import TaskError, load_task, task_names
from prime_ext.tasks.task_rows import NoData, default_split, load_problems

# Names for several tasks, by the ability of their rows; without those whose problems are in another one.
GROUPS = {"math": "math", "code": "code", "numeric": "numeric_reasoning"}
ALL = "all"
GREEDY = "greedy"


class RunError(ValueError):
    """A run cannot be done as asked; the message is one line and says what would be right."""


@dataclass(frozen=True)
class Changes:
    """What the command line changes of a decoding; None leaves it as it is.

    Attributes:
        n: responses per problem.
        temperature: 0 is greedy.
        top_p: of sampling.
        top_k: of sampling; 0 for all tokens.
        num_beams: beams.
        min_new_tokens: shortest response.
        max_new_tokens: longest response.
        batch_size: prompts at a time; 0 leaves it to the backend.
    """

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    num_beams: int | None = None
    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    batch_size: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Planned:
    """A task of a run.

    Attributes:
        task: the task.
        split: of its source.
        problems: by id, in the order of the source.
        prompt_name: in the task file.
        shown: what the model is shown, by the same ids.
        decoding_name: in the task file; with changes marked.
        decoding: how responses are made.
        stop: texts at which a response ends.
        seed: of the run.
    """

    task: Task
    split: str
    problems: Mapping[str, Problem]
    prompt_name: str
    shown: Mapping[str, Shown]
    decoding_name: str
    decoding: Decoding
    stop: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def keys(self) -> Iterator[tuple[str, int]]:
        """Problem and number of every response, in order."""
        return ((problem, sample) for problem in self.problems for sample in range(self.decoding.n))

    def seed_of(self, problem: str, sample: int) -> int:
        """The seed of a response. It depends on nothing that the run does not share with this response."""
        text = json.dumps([self.seed, self.name, problem, sample])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def request(self, problem: str, sample: int) -> Request:
        """What a backend is asked for a response."""
        return Request(
            json.dumps([self.name, problem, sample]),
            self.shown[problem],
            sampling_of(self.decoding, self.stop),
            self.seed_of(problem, sample),
        )

    def identity(self) -> dict[str, Any]:
        """What the responses of the task depend on besides the model and the seed, for JSON."""
        golds = [[name, problem.gold, dict(problem.fields)] for name, problem in self.problems.items()]
        return {
            "split": self.split,
            "prompt_sha256": _digest([self.shown[name] for name in self.problems]),
            "data_sha256": _digest(golds),
            "decoding": {"name": self.decoding_name, **vars(self.decoding)},
            "stop": list(self.stop),
        }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sampling_of(decoding: Decoding, stop: tuple[str, ...]) -> Sampling:
    """A decoding as backends know it."""
    return Sampling(
        temperature=decoding.temperature if decoding.do_sample else 0.0,
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        num_beams=decoding.num_beams,
        min_new_tokens=decoding.min_new_tokens,
        max_new_tokens=decoding.max_new_tokens,
        stop=stop,
    )


def choose_tasks(names: Sequence[str]) -> list[Task]:
    """Tasks by their names, files and groups, each once.

    Raises:
        RunError: there is none of that name; near ones are suggested.
    """
    known = task_names()
    tasks: dict[str, Task] = {}
    for name in names:
        try:
            if name == ALL or name in GROUPS:
                found = [load_task(one) for one in known]
                found = [task for task in found if name == ALL or task.ability == GROUPS[name]]
                found = [task for task in found if not task.overlaps]
            elif name in known or name.endswith(".yaml"):
                found = [load_task(name)]
            else:
                choices = [*known, *GROUPS, ALL]
                near = difflib.get_close_matches(name, choices, n=3, cutoff=0.4)
                hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(choices)}"
                raise RunError(f"no task {name!r}; {hint}")
        except TaskError as error:
            raise RunError(str(error)) from error
        tasks |= {task.name: task for task in found}
    return list(tasks.values())


def choose_decoding(task: Task, name: str | None, changes: Changes) -> tuple[str, Decoding]:
    """A decoding of a task, with what the command line changes; ``greedy`` is there for every task.

    Args:
        task: whose file names it.
        name: None is the first of the file.
        changes: of the command line.

    Returns:
        Its name, and the decoding.

    Raises:
        RunError: the task has none of that name, or the changes contradict it.
    """
    name = name or next(iter(task.decoding))
    if name in task.decoding:
        decoding = task.decoding[name]
    elif name == GREEDY:
        longest = max(known.max_new_tokens for known in task.decoding.values())
        decoding = Decoding(max_new_tokens=longest)
    else:
        known = list(dict.fromkeys([*task.decoding, GREEDY]))
        raise RunError(f"{task.name} has no decoding {name!r}; it has {', '.join(known)}")
    given = changes.given
    if not given:
        return name, decoding
    if changes.temperature is not None:
        given["do_sample"] = changes.temperature > 0
        if changes.temperature == 0:
            # The other settings of sampling have no effect.
            given |= {"temperature": Decoding.temperature, "top_p": Decoding.top_p, "top_k": Decoding.top_k}
            if changes.top_p is not None or changes.top_k is not None:
                raise RunError("--temperature 0 is greedy: --top-p and --top-k have no effect; leave them out")
    if changes.batch_size == 0:
        given["batch_size"] = None
    of_task, decoding = decoding, replace(decoding, **given)
    if not decoding.do_sample:
        if changes.top_p is not None or changes.top_k is not None:
            raise RunError(
                f"--top-p and --top-k have no effect on decoding {name!r} of {task.name}: give --temperature"
            )
        if decoding.n > 1:
            raise RunError(
                f"{decoding.n} responses per problem are all the same with decoding {name!r} of {task.name}: give "
                "--temperature above 0, or --n 1"
            )
    if decoding.min_new_tokens > decoding.max_new_tokens:
        raise RunError(
            f"{task.name}: the shortest response, {decoding.min_new_tokens} tokens, is longer than the longest, "
            f"{decoding.max_new_tokens}"
        )
    # How many at a time is no matter of what the responses are.
    same = replace(of_task, batch_size=decoding.batch_size) == decoding
    return name if same else f"{name}, changed", decoding


def plan(
    task: Task,
    *,
    style: Style,
    data: Path | None,
    split: str | None,
    limit: int | None,
    decoding: str | None,
    changes: Changes,
    stop: tuple[str, ...],
    seed: int,
) -> Planned:
    """Everything that a run will ask about a task.

    Args:
        task: the task.
        style: how its problems are shown.
        data: folder of local files; None for the hub.
        split: None for the one that is evaluated.
        limit: only the first problems; None for all.
        decoding: name; None for the first of the task.
        changes: of the decoding.
        stop: texts at which a response ends.
        seed: of the run.

    Raises:
        NoData, PromptError, RunError: see their messages.
    """
    name, chosen = choose_decoding(task, decoding, changes)
    problems = load_problems(task, data, split)
    if limit is not None:
        problems = dict(list(problems.items())[:limit])
    return Planned(
        task=task,
        split=split or default_split(task, local=data is not None),
        problems=problems,
        prompt_name=style.prompt,
        shown={own: style.shown(task, problem) for own, problem in problems.items()},
        decoding_name=name,
        decoding=chosen,
        stop=stop,
        seed=seed,
    )


__all__ = ["Changes", "NoData", "Planned", "RunError", "choose_decoding", "choose_tasks", "plan", "sampling_of"]
