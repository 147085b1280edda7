# SPDX-License-Identifier: Apache-2.0
"""Problems of a task, from local files or from the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_ext.tasks.benchmark_task import BenchmarkProblem, Task
from prime_ext.tasks.gym_problems import generate
from prime_ext.tasks.last_digit_chain import GENERATED
from prime_ext.utils.rows import BadRow, SourceError, fetch_hub_file, read_source


def choose_default_split(task: Task, local: bool) -> str:
    """Return the split that is evaluated: test, or all where the files have no test."""
    if task.source.generated:
        return "test"
    splits = task.source.places(local)
    return "all" if "all" in splits and "test" not in splits else "test"


def load_problems(
    task: Task, data: Path | None = None, split: str | None = None
) -> dict[str, BenchmarkProblem]:
    """Load the problems of a split by their ids, in the order of the files.

    Rows without an id have their number; with several files, after the name of the file, which is
    also their column ``file``. ``data`` is the folder of the files of ``source.local``, None for
    those of the hub. Raises SourceError: a split, a file or rows are missing, a row does not fit
    the task, or an id repeats.
    """
    try:
        return _load(task, data, split or choose_default_split(task, local=data is not None))
    except SourceError as error:
        raise SourceError(f"{task.name}: {error}") from error


def _load(task: Task, data: Path | None, split: str) -> dict[str, BenchmarkProblem]:
    files = _rows(task, data, split)
    problems: dict[str, BenchmarkProblem] = {}
    for source, rows in files:
        stem = Path(source).name.partition(".")[0] if len(files) > 1 else ""
        for number, row in rows:
            try:
                if isinstance(row, BadRow):
                    raise row
                row = {"file": stem, **row} if stem else row
                if not task.source.holds(row):
                    continue
                problem = task.problem(row)
            except BadRow as error:
                raise SourceError(f"{source} row {number}: {error}") from error
            name = problem.id or f"{stem}:{number}".lstrip(":")
            if name in problems:
                raise SourceError(
                    f"{source} row {number}: the id {name!r} is not the first of that name"
                )
            problems[name] = problem
    published = task.source.rows.get(split)
    if not problems or (data is not None and published not in (None, len(problems))):
        expected = f"; {published} were published" if published is not None else ""
        sources = ", ".join(source for source, _ in files)
        raise SourceError(f"{sources} has {len(problems)} rows of the task{expected}")
    return problems


def _rows(task: Task, data: Path | None, split: str) -> list[tuple[str, Iterator[tuple[int, Any]]]]:
    """Return places and their numbered rows."""
    source = task.source
    splits = source.rows if source.generated else source.places(local=data is not None)
    if not splits:
        on_hub = "no hub: give --data with a folder of local files"
        lacks = on_hub if data is None else "no local file: leave out --data"
        raise SourceError(lacks + _hint(task, split))
    if split not in splits:
        raise SourceError(f"no split {split!r}; it has {', '.join(splits)}")
    if source.generated:
        count = source.rows[split]
        name = source.generated
        rows = GENERATED[name](split, count, 0) if name in GENERATED else generate(name, count, 0)
        return [(f"{task.name} {split}", enumerate(rows, start=1))]
    return [(str(path), read_source(path)) for path in find_source_files(task, data, split)]


def find_source_files(task: Task, data: Path | None, split: str) -> list[Path]:
    """Return a split's files; a local .gz may be unpacked. ``SourceError``: one is missing."""
    source = task.source
    names = source.places(local=data is not None)[split]
    try:
        if data is None:
            return [fetch_hub_file(source.hub, name, source.revision or None) for name in names]
    except SourceError as error:
        raise SourceError(f"{error}{_hint(task, split)}") from error
    paths = []
    for path in (data / name for name in names):
        unpacked = path.with_suffix("") if path.suffix == ".gz" else path
        existing = next((candidate for candidate in (path, unpacked) if candidate.is_file()), None)
        if existing is None:
            raise SourceError(f"{path} does not exist{_hint(task, split)}")
        paths.append(existing)
    return paths


def _hint(task: Task, split: str) -> str:
    source = task.source
    if source.origin:
        return f"; it is published as {source.origin}"
    if split not in source.files:
        return ""
    end = ", and leave out --data"
    if len(source.files[split]) > 1:
        end = f" --local-dir DATA/{Path(source.local.get(split, ('',))[0]).parent}"
    return (
        f"; get it with: hf download --repo-type dataset {source.hub}"
        f" {' '.join(source.files[split])}{end}"
    )
