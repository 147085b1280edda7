# SPDX-License-Identifier: Apache-2.0
"""Problems of all kinds and their sources: sets on the hub or in local files."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from prime_ext.tasks.action_prompt import messages
from prime_ext.tasks.cells import cell, describe_columns, read_cell
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.rows import BadRow, SourceError, read_hub_rows, read_source

Raw = Mapping[str, Any] | BadRow
Numbered = Iterator[tuple[int, Raw]]
T = TypeVar("T")
TRAIN_TEST = {"train": "train", "test": "test"}


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """The fields that problems of all kinds have.

    ``index`` is the number of the row in its source and split, from 0; ``row`` that in its file,
    from 1.
    """

    data_source: str
    split: str
    index: int
    problem: str
    file: str = field(default="", kw_only=True)
    row: int = field(default=0, kw_only=True)

    ability: ClassVar[str]

    def ground_truth(self) -> str:
        """Return what the verifier needs."""
        raise NotImplementedError

    def gist(self) -> str:
        """Return the gold answer in a few words, for samples."""
        return self.ground_truth()

    def statement(self) -> str:
        """Return what the policy sees."""
        return self.problem

    def rl_row(self, system: str, answer_format: bool = True) -> dict[str, Any]:
        """Return the row of RL with this system message (none if it is empty)."""
        prompt = messages(self.statement(), self.ability, system, answer_format)
        extra = {"split": self.split, "index": self.index}
        return rl_row(self.data_source, prompt, self.ability, self.ground_truth(), extra)


@dataclass(frozen=True)
class ProblemSource:
    """A set of problems.

    Attributes:
        kind: class of its problems.
        parse: turns a row into the fields of that class without data source, split and index.
        data_source: of its rows, if not ``name``; ``{source}`` stands for the column of that name.
        hub, config, hub_splits: of the Hugging Face hub; without ``hub`` only files are read.
        hub_files: files on the hub by split, for sets whose own loading needs a script.
        local: file below a data folder by split.
        id_column: names the problem; a second row with the same name is bad.
        joined: makes problems from sets that repeat a problem in several rows.
    """

    name: str
    title: str
    kind: type
    parse: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    hub: str
    data_source: str = ""
    config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=lambda: TRAIN_TEST)
    hub_files: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)
    id_column: str = ""
    joined: Callable[[Numbered], Numbered] | None = None

    def problem(self, raw: Raw, split: str, index: int, **location: Any) -> SourceProblem:
        """Turn a row into a problem. Raises BadRow."""
        if isinstance(raw, BadRow):
            raise raw
        fields = self.parse(raw)
        name = self.data_source or self.name
        if "{source}" in name:
            if "source" not in raw:
                raise BadRow(
                    f"no column source; {describe_columns(raw)}; --source NAME stands for it"
                )
            name = name.replace("{source}", read_cell(cell(raw, "source"), "source"))
        values = {"data_source": name, "split": split, "index": index, **location, **fields}
        return self.kind(**values)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split of a source, not yet read: of the file ``path``, or the hub's."""

    source: ProblemSource
    split: str
    path: Path | None = None

    @property
    def name(self) -> str:
        """Return the file with its folder, or the set on the hub."""
        return self.source.hub if self.path is None else "/".join(self.path.parts[-2:]).lstrip("/")

    def rows(self) -> Numbered:
        """Yield numbers from 1 and rows. Raises SourceError: they cannot be read."""
        source = self.source
        rows: Numbered
        if self.path is not None:
            rows = read_source(self.path)
        else:
            rows = read_hub_rows(
                source.hub,
                source.config,
                source.hub_splits[self.split],
                source.hub_files.get(self.split),
            )
        return rows if source.joined is None else source.joined(rows)


def find_splits(
    source: ProblemSource, files: Mapping[str, Path], data_dir: Path | None, splits: Sequence[str]
) -> list[SplitRows]:
    """Return the splits of a source: those of ``files``, else below ``data_dir``, else on the hub.

    A file of the split ``all`` is for training. Without ``splits`` all are returned. SourceError:
    one is missing.
    """
    if files:
        named = {"train" if split == "all" else split: path for split, path in files.items()}
        if len(named) < len(files):
            raise SourceError(
                f"--input {source.name}=FILE and {source.name}:train=FILE are the same"
            )
        available = [SplitRows(source, split, path) for split, path in named.items()]
    elif not source.hub:
        raise SourceError(f"{source.name} needs a file: give --input {source.name}=FILE")
    elif data_dir is not None:
        available = [
            SplitRows(source, split, data_dir / local) for split, local in source.local.items()
        ]
    else:
        available = [SplitRows(source, split) for split in source.hub_splits]
    missing = [split for split in splits if split not in [rows.split for rows in available]]
    if missing:
        raise SourceError(
            f"{source.name} has no {missing[0]} split here; leave that split out, or give --input"
        )
    return [rows for rows in available if not splits or rows.split in splits]


def number_rows(inputs: Sequence[SplitRows]) -> Iterator[tuple[SplitRows, int, int, Raw]]:
    """Yield split, index (from 0), number in the file and content of all rows.

    A row with a repeated id is a bad row. Raises SourceError: an input cannot be read or is empty.
    """
    # Hashes, not texts: memory stays low on a million rows.
    ids: set[bytes] = set()
    for rows in inputs:
        index = -1
        for index, (number, row) in enumerate(rows.rows()):
            yield rows, index, number, _reject_repeated(rows.source, row, ids)
        if index < 0:
            raise SourceError(f"{rows.path or rows.name} has no rows")


def _reject_repeated(source: ProblemSource, row: Raw, ids: set[bytes]) -> Raw:
    if isinstance(row, BadRow) or not isinstance(row.get(source.id_column), (str, int)):
        return row
    key = hashlib.blake2b(
        repr((source.name, row[source.id_column])).encode(), digest_size=16
    ).digest()
    if key in ids:
        return BadRow(f"{source.id_column} {row[source.id_column]!r} was there before")
    ids.add(key)
    return row


def parse_rows(
    path: Path, parse: Callable[[Mapping[str, Any], Path, int], T]
) -> Iterator[tuple[int, T | BadRow]]:
    """Yield the number of each row with ``parse(row, path, number)``, or with a BadRow."""
    for number, raw in read_source(path):
        try:
            yield number, raw if isinstance(raw, BadRow) else parse(raw, path, number)
        except BadRow as error:
            yield number, BadRow(str(error))
