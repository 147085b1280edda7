# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The problems of a task, from local files or from the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_preprocessing.math_sources import SOURCES
from data_preprocessing.source_rows import BadRow, SourceError, hub_file, read_source
from eval.cells import RowError
from eval.task import Problem, Task


class NoData(ValueError):
    """A task has no usable rows; the message is one line and says what would give some."""


def default_split(task: Task, local: bool) -> str:
    """The split that is evaluated: test, or all where the files, local or on the hub, have no test."""
    if task.source.generated:
        return "test"
    splits = task.source.local if local else task.source.files
    return "all" if "all" in splits and "test" not in splits else "test"


def load_problems(task: Task, data: Path | None = None, split: str | None = None) -> dict[str, Problem]:
    """All problems of a split by their ids, in the order of the file.

    Args:
        task: whose rows.
        data: folder below which the files of ``source.local`` are; None for those of the hub.
        split: default: see :func:`default_split`.

    Raises:
        NoData: no such split or file, a row that does not fit the task, two rows of the same id, or not as many rows of
            a local file as were published.
    """
    split = split or default_split(task, local=data is not None)
    path, rows = _rows(task, data, split)
    problems: dict[str, Problem] = {}
    try:
        for number, row in rows:
            try:
                if isinstance(row, BadRow):
                    raise row
                if not task.source.holds(row):
                    continue
                problem = task.problem(row)
            except (BadRow, RowError) as error:
                raise NoData(f"{task.name}: {path} row {number}: {error}") from error
            name = problem.id or str(number)
            if name in problems:
                raise NoData(f"{task.name}: {path} row {number}: the id {name!r} is not the first of that name")
            problems[name] = problem
    except SourceError as error:
        raise NoData(f"{task.name}: {error}") from error
    wanted = task.source.rows.get(split)
    if not problems or (data is not None and wanted not in (None, len(problems))):
        expected = f"; {wanted} were published" if wanted is not None else ""
        raise NoData(f"{task.name}: {path} has {len(problems)} rows of the task{expected}")
    return problems


def _rows(task: Task, data: Path | None, split: str) -> tuple[Path | str, Iterator[tuple[int, Any]]]:
    """Where the rows come from, and the rows with their numbers."""
    source = task.source
    if not source.generated:
        path = _file(task, data, split)
        return path, read_source(path)
    if split not in source.rows:
        raise NoData(f"{task.name} has no split {split!r}; it has {', '.join(source.rows)}")
    make = SOURCES[source.generated].generate
    assert make is not None
    return f"{source.generated} {split}", enumerate(make(split, source.rows[split], 0), start=1)


def _file(task: Task, data: Path | None, split: str) -> Path:
    source = task.source
    splits = source.files if data is None else source.local
    if split not in splits:
        if not splits:
            where = "hub: give --data with a folder of local files" if data is None else "local file: leave out --data"
            raise NoData(f"{task.name} has no {where}{_hint(task, split)}")
        raise NoData(f"{task.name} has no split {split!r}; it has {', '.join(splits)}")
    if data is None:
        try:
            return hub_file(source.hub, splits[split], source.revision or None)
        except SourceError as error:
            raise NoData(f"{task.name}: {error}{_hint(task, split)}") from error
    path = data / splits[split]
    if not path.is_file():
        raise NoData(f"{task.name}: {path} does not exist{_hint(task, split)}")
    return path


def _hint(task: Task, split: str) -> str:
    """What gives the rows."""
    source = task.source
    if source.origin:
        return f"; it is published as {source.origin}"
    if split in source.files:
        return (
            f"; get it with: hf download --repo-type dataset {source.hub} {source.files[split]}, and leave out --data"
        )
    return ""
