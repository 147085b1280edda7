# SPDX-License-Identifier: Apache-2.0
"""What a stage of the pipeline is, and the processes that it uses.

A stage is a frozen dataclass that pydantic checks; its fields are the keys in settings, with their defaults. Its
:meth:`Stage.run` gets the problems that the stage before it leaves and yields each with a result: :class:`Removal`,
:class:`Changed`, or None where nothing changes.
"""

import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BeforeValidator
from tqdm import tqdm

from data_preprocessing.problems import Problem, batched
from prime_ext.utils.rows import SourceError

# Of options that are lists: one text stands for a list of one.
LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
# Characters shown on each side of what a rule sees.
AROUND = 30
Item = TypeVar("Item")


@dataclass(frozen=True)
class Removal:
    """Why a problem is removed: the rule, what it saw, and further fields for ``removed.jsonl``."""

    rule: str
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """A problem that stays, and what the report counts about it, by name."""

    problem: Any
    notes: Mapping[str, int]


Result = Removal | Changed | None


# ---- running ----


def _work_on_batch(work: Callable[[Any], Any], batch: Sequence[Any]) -> list[Any]:
    return [None if sent is None else work(sent) for sent in batch]


class Workers:
    """Processes that work on batches of items, a context manager; with one, the calling process does the work."""

    def __init__(self, n_processes: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self._n = n_processes
        self._pool: ProcessPoolExecutor | None = None

    def map(
        self, work: Callable[[Any], Any], items: Iterable[Item], sent: Callable[[Item], Any] = lambda item: item
    ) -> Iterator[tuple[Item, Any]]:
        """Yield every item with ``work(sent(item))``, or None where ``sent`` is None, in order.

        Few batches are in memory.

        Raises:
            SourceError: a process was killed.
        """
        batches = batched(items, self.batch_size)
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        # A process costs seconds of imports.
        if self._n == 1 or len(first) < 2:
            for batch in batches:
                yield from zip(batch, _work_on_batch(work, list(map(sent, batch))), strict=True)
            return
        if self._pool is None:
            # Not forked: a library's threads in this process would be lost. Ctrl-C is for this process.
            ignore = (signal.SIGINT, signal.SIG_IGN)
            self._pool = ProcessPoolExecutor(self._n, get_context("spawn"), initializer=signal.signal, initargs=ignore)
        waiting: deque[tuple[list[Item], Any]] = deque()
        try:
            for batch in batches:
                waiting.append((batch, self._pool.submit(_work_on_batch, work, list(map(sent, batch)))))
                if len(waiting) > self._n:
                    finished, future = waiting.popleft()
                    yield from zip(finished, future.result(), strict=True)
            for finished, future in waiting:
                yield from zip(finished, future.result(), strict=True)
        except BrokenProcessPool as error:
            raise SourceError("a worker process was killed, perhaps for its memory; try fewer --workers") from error

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@dataclass
class Run:
    """What stages share: processes, the folder of the output, and that of local data.

    ``compared`` takes lines for the report on what the rows were compared with.
    """

    workers: Workers
    output: Path
    data_dir: Path | None = None
    compared: list[str] = field(default_factory=list)


def show_progress(rows: Iterable[Item], title: str) -> Iterable[Item]:
    """Return the rows with a bar of how many have passed."""
    return tqdm(rows, desc=title, unit=" rows", disable=not sys.stderr.isatty())  # type: ignore[no-any-return]


def training_text(problem: Problem) -> str | None:
    """Return the text of a problem of the training split, the only ones that are compared."""
    return problem.problem if problem.split == "train" else None


class Stage:
    """The base of all stages. As it is, :meth:`judge` looks at one problem at a time, in any process.

    Attributes:
        name: in settings.
        title: what it does, in a line.
        of: classes of the problems that it looks at; others pass.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    of: ClassVar[tuple[type, ...]]

    def meanings(self) -> Mapping[str, str]:
        """Return the rules by which it removes problems with these options, in order, and their meanings."""
        raise NotImplementedError

    def judge(self, problem: Any) -> Result:
        """Return what becomes of a problem."""
        raise NotImplementedError

    def run(self, problems: Iterator[Problem], run: Run) -> Iterator[tuple[Problem, Result]]:
        """Yield every problem with its result, in order."""
        return run.workers.map(self.judge, problems, lambda problem: problem if isinstance(problem, self.of) else None)


# ---- rules ----


@dataclass(frozen=True)
class Rule:
    """One rule of a table, which has its name.

    Attributes:
        meaning: what it removes.
        find: returns what the rule sees in a problem and its text, or None.
        hints: the rule applies only where one of these is in the text in lower case; empty: anywhere.
    """

    meaning: str
    find: Callable[[Any, str], str | None]
    hints: tuple[str, ...] = ()


def apply_rules(table: Mapping[str, Rule], names: Sequence[str], problem: Problem, text: str) -> Removal | None:
    """Apply the named rules in the order of the table. Returns what the first that sees something says."""
    lowered = text.lower()
    for name, rule in table.items():
        if name not in names or (rule.hints and not any(hint in lowered for hint in rule.hints)):
            continue
        evidence = rule.find(problem, text)
        if evidence is not None:
            return Removal(name, evidence)
    return None


class RuleStage(Stage):
    """The stage of a table: ``rules`` apply to training problems, ``always`` to all.

    Benchmarks stay as published but for rows that are of no use.
    """

    table: ClassVar[Mapping[str, Rule]]
    always: ClassVar[tuple[str, ...]]
    rules: tuple[str, ...]

    def meanings(self) -> Mapping[str, str]:
        return {name: rule.meaning for name, rule in self.table.items() if name in (*self.rules, *self.always)}

    def judge(self, problem: Any) -> Result:
        names = (*self.rules, *self.always) if problem.split == "train" else self.always
        return apply_rules(self.table, names, problem, self.text(problem.problem))

    def text(self, problem: str) -> str:
        """Return the text that the rules look at."""
        return problem


def show_around(text: str, match: re.Match[str]) -> str:
    """Return a match with a little of the text around it."""
    return text[max(match.start() - AROUND, 0) : match.end() + AROUND].strip()


def search(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first match of a pattern with the text around it, or None."""
    match = pattern.search(text)
    return None if match is None else show_around(text, match)
