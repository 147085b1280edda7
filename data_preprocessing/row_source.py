# SPDX-License-Identifier: Apache-2.0
"""Where problems come from, whatever their kind: a set on the hub or in local files, its splits, its rows in chunks."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from prime_ext.tasks.action_prompt import messages
from prime_ext.tasks.cells import RowError, cell, text_of_cell
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.rows import BadRow, SourceError, hub_rows, read_source

Raw = Mapping[str, Any] | BadRow
Numbered = Iterator[tuple[int, Raw]]
GENERATED_ROWS = {"train": 8192, "validation": 256, "test": 2000}
T = TypeVar("T")
TRAIN_TEST = {"train": "train", "test": "test"}


@dataclass(frozen=True, slots=True)
class Problem:
    """What the problems of all kinds have.

    Attributes:
        data_source: decides for the verifier.
        split: of RL.
        index: the number of the row in its source and split, from 0.
        problem: what is asked.
        source: the name of its source.
        file: where it stands there.
        row: its number in the file, from 1.
    """

    data_source: str
    split: str
    index: int
    problem: str
    source: str = field(default="", kw_only=True)
    file: str = field(default="", kw_only=True)
    row: int = field(default=0, kw_only=True)

    ability: ClassVar[str]

    def ground_truth(self) -> str:
        """What the verifier needs."""
        raise NotImplementedError

    def gist(self) -> str:
        """The gold answer in a few words, for samples."""
        return self.ground_truth()

    def statement(self) -> str:
        """What the policy is asked."""
        return self.problem


@dataclass(frozen=True)
class Source:
    """A set of problems.

    Attributes:
        name: on the command line and in settings.
        title: what it is.
        kind: the class of its problems.
        parse: a row's fields of that class, but for data source, split and index; raises ``BadRow`` or ``RowError``.
        data_source: of its rows; with ``{source}``, each row's column of that name goes there.
        hub: id on the Hugging Face hub; empty if it is not there.
        config: its configuration on the hub.
        hub_splits: name on the hub by split; with ``hub_files``, the splits there are.
        hub_files: files on the hub by split, for sets whose own loading needs a script.
        local: file below a data folder by split.
        generate: makes rows from a split, a count and a seed instead.
        bare: the policy sees the problem and nothing else: neither system prompt nor suffix.
        id_column: names the problem; a second row with the same name is bad.
        joined: makes problems from rows that say one several times; None where a row is a problem.
    """

    name: str
    title: str
    kind: type
    parse: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    data_source: str
    hub: str = ""
    config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=lambda: TRAIN_TEST)
    hub_files: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)
    generate: Callable[[str, int, int], Iterator[Mapping[str, Any]]] | None = None
    bare: bool = False
    id_column: str = ""
    joined: Callable[[Numbered], Numbered] | None = None

    def problem(self, raw: Raw, split: str, index: int, **place: Any) -> Problem:
        """A row as a problem with its place; BadRow or RowError if it is none."""
        if isinstance(raw, BadRow):
            raise raw
        fields, name = self.parse(raw), self.data_source
        if "{source}" in name:
            name = name.replace("{source}", text_of_cell(cell(raw, "source"), "source"))
        found = {"data_source": name, "split": split, "index": index, "source": self.name, **place, **fields}
        return self.kind(**found)  # type: ignore[no-any-return]

    def rl_row(self, problem: Problem, system: str) -> dict[str, Any]:
        """A problem as a row of RL, with this system message (none if it is empty)."""
        bare = [{"role": "user", "content": problem.problem}]
        prompt = bare if self.bare else messages(problem.statement(), problem.ability, system)
        extra = {"split": problem.split, "index": problem.index}
        return rl_row(problem.data_source, prompt, problem.ability, problem.ground_truth(), extra)


def by_name(*sources: Source) -> dict[str, Source]:
    return {source.name: source for source in sources}


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split of a source, not yet read: of the file ``path``, ``count`` generated ones, or the hub's."""

    source: Source
    split: str
    path: Path | None = None
    count: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        """The file, or where else the rows come from; nothing about the machine."""
        return short_name(self.path) if self.path is not None else self.source.hub or "generated"

    def identity(self) -> dict[str, Any]:
        """What tells these rows from others, for resuming."""
        found: dict[str, Any] = {"source": self.source.name, "split": self.split}
        if self.path is not None and self.path.is_file():
            status = self.path.stat()
            found |= {"path": str(self.path.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}
        elif self.source.generate is not None:
            found |= {"count": self.count, "seed": self.seed}
        return found

    def rows(self) -> Numbered:
        """Numbers from 1 and rows; SourceError if they cannot be read."""
        source = self.source
        rows: Numbered
        if self.path is not None:
            rows = read_source(self.path)
        elif source.generate is not None:
            rows = enumerate(source.generate(self.split, self.count, self.seed), start=1)
        else:
            rows = hub_rows(source.hub, source.config, source.hub_splits[self.split], source.hub_files.get(self.split))
        return rows if source.joined is None else source.joined(rows)


def short_name(path: Path) -> str:
    """The last folder and the name: enough to recognise a file, and nothing about the machine."""
    return "/".join(path.parts[-2:]).lstrip("/")


def inputs_of(
    source: Source,
    files: Mapping[Any, Path],
    data_dir: Path | None,
    splits: Sequence[str],
    generated_rows: Mapping[Any, int],
    seed: int,
) -> list[SplitRows]:
    """The splits of a source: those of ``files``, else below ``data_dir``, else generated or on the hub.

    A file of the split ``all`` is for training; without ``splits`` all that there are.

    Raises:
        SourceError: there are none, or not those that are wanted.
    """
    if files:
        named = {"train" if split == "all" else split: path for split, path in files.items()}
        if len(named) < len(files):
            raise SourceError(f"--input {source.name}=FILE and {source.name}:train=FILE are the same")
        found = [SplitRows(source, split, path) for split, path in named.items()]
    elif source.generate is not None:
        counts = generated_rows or GENERATED_ROWS
        found = [SplitRows(source, split, count=count, seed=seed) for split, count in counts.items()]
    elif data_dir is not None:
        found = [SplitRows(source, split, data_dir / local) for split, local in source.local.items()]
    else:
        found = [SplitRows(source, split) for split in source.hub_splits]
    missing = [split for split in splits if split not in [given.split for given in found]]
    if missing:
        raise SourceError(f"{source.name} has no {missing[0]} split here; leave that split out, or give --input")
    return [given for given in found if not splits or given.split in splits]


@dataclass(frozen=True)
class Chunk:
    """Rows that lie side by side in a split of a source.

    ``file`` is for people, ``first`` the index of the first row in the split; rows come with their numbers in the file.
    """

    source: str
    split: str
    file: str
    first: int
    rows: Sequence[tuple[int, Raw]]


def chunks(inputs: Sequence[SplitRows], size: int) -> Iterator[Chunk]:
    """All rows, ``size`` at a time; a row whose id was there before in its source becomes a bad one.

    Raises:
        SourceError: an input cannot be read or has no rows.
    """
    # Hashes, not texts: memory stays low on a million rows.
    ids: set[bytes] = set()
    for given in inputs:
        first = 0
        for rows in batched(((number, _once(given.source, row, ids)) for number, row in given.rows()), size):
            yield Chunk(given.source.name, given.split, given.name, first, rows)
            first += len(rows)
        if first == 0:
            raise SourceError(f"{given.path or given.name} has no rows")


def parsed_rows(path: Path, parse: Callable[[Mapping[str, Any], Path, int], T]) -> Iterator[tuple[int, T | BadRow]]:
    """Numbers of the rows of a file, and what ``parse`` makes of a row, the file and the number, or a BadRow."""
    for number, raw in read_source(path):
        try:
            yield number, raw if isinstance(raw, BadRow) else parse(raw, path, number)
        except (BadRow, RowError) as error:
            yield number, BadRow(str(error))


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of ``size``, the last of what is left (``itertools.batched`` of Python 3.12, but lists)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _once(source: Source, row: Raw, ids: set[bytes]) -> Raw:
    if isinstance(row, BadRow) or not isinstance(row.get(source.id_column), (str, int)):
        return row
    key = hashlib.blake2b(repr((source.name, row[source.id_column])).encode(), digest_size=16).digest()
    if key in ids:
        return BadRow(f"{source.id_column} {row[source.id_column]!r} was there before")
    ids.add(key)
    return row
