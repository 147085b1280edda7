# SPDX-License-Identifier: Apache-2.0
"""What the pipeline has to know of a stage: its options, what it can remove, and how it is made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_preprocessing.stage import Stage
from data_preprocessing.stage_rows import Item, read_items


@dataclass(frozen=True)
class Rows:
    """All problems that reach a stage, for its survey.

    Attributes:
        parts: files of :mod:`~data_preprocessing.stage_rows`, in order.
        folder: where the survey may keep what an interrupted run should find again.
        identity: what decides about these rows, as JSON.
        workers: processes that it may use.
        data_dir: folder with local data; None for those of the hub.
    """

    parts: Sequence[Path]
    folder: Path
    identity: Any
    workers: int
    data_dir: Path | None = None

    def __iter__(self) -> Iterator[Item]:
        for path in self.parts:
            yield from read_items(path)


@dataclass(frozen=True)
class StageKind:
    """A stage by name, for :data:`data_preprocessing.stage_registry.STAGES`.

    Attributes:
        name: in settings.
        title: what it does, in a line.
        of: the classes of the problems that it looks at; others pass by.
        options: a frozen dataclass; its fields are the keys in settings, their defaults the defaults. It may raise
            ``ValueError`` with a message that names the field.
        rules: what the stage can remove with these options, in order: names that no other stage uses, and meanings.
        make: the stage. Its second argument is the file that the survey wrote, or None.
        survey: looks at all rows before the first part is worked at and writes what the stage has to know to a file;
            None where the stage looks at one problem at a time.
        one_process: the stage brings its own processes or threads; its parts are not divided among workers.
        close: ends what the stage keeps between parts.
        used: lines for the report on what the survey found beside the rows.
    """

    name: str
    title: str
    of: tuple[type, ...]
    options: type
    rules: Callable[[Any], Mapping[str, str]]
    make: Callable[[Any, Path | None], Stage]
    survey: Callable[[Any, Rows, Path], None] | None = None
    one_process: bool = False
    close: Callable[[], None] | None = None
    used: Callable[[Path], list[str]] | None = None
