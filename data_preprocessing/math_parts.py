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
"""From rows of sources to parts of RL files: conversion, stages, and what was removed."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_preprocessing.action_prompt import messages
from data_preprocessing.math_problem import MathProblem
from data_preprocessing.math_rules import ALWAYS, Removal, rule_filter
from data_preprocessing.math_sources import SOURCES, MathSource, Raw, SplitRows
from data_preprocessing.rl_rows import MATH_SCHEMA, RowWriter, rl_row
from data_preprocessing.source_rows import BadRow, SourceError
from data_preprocessing.tally import BAD, MAX_SHOWN, Tally
from eval.cells import RowError
from prime_ext.files import atomic_path

Stage = Callable[[MathProblem], Removal | None]


@dataclass(frozen=True)
class Chunk:
    """Rows that lie side by side in a source.

    Attributes:
        source: its name.
        split: of the rows.
        file: where they come from, for people.
        first: index of the first of them in the split.
        rows: their numbers in the file, and what is there.
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
    ids: set[int] = set()
    for given in inputs:
        first, rows = 0, []
        for number, row in given.rows():
            rows.append((number, _once(given.source, row, ids)))
            if len(rows) == size:
                yield Chunk(given.source.name, given.split, given.name, first, rows)
                first, rows = first + size, []
        if rows:
            yield Chunk(given.source.name, given.split, given.name, first, rows)
        elif first == 0:
            raise SourceError(f"{given.path or given.name} has no rows")


def _once(source: MathSource, row: Raw, ids: set[int]) -> Raw:
    if isinstance(row, BadRow) or not isinstance(row.get(source.id_column), (str, int)):
        return row
    key = hash((source.name, row[source.id_column]))
    if key in ids:
        return BadRow(f"{source.id_column} {row[source.id_column]!r} was there before")
    ids.add(key)
    return row


@dataclass(frozen=True)
class Conversion:
    """Makes a part: ``<part>.parquet``, ``<part>.removed.jsonl`` with a line for every row that is not in it, and
    ``<part>.choice.jsonl`` with those that were removed as multiple choice, as RL rows.

    Attributes:
        rules: rules of the filter, for the training split; others stay as published but for :data:`ALWAYS`.
        system: the system message; empty for none.
        strict: a bad row is an error.
    """

    rules: tuple[str, ...]
    system: str
    strict: bool

    def __call__(self, chunk: Chunk, part: Path) -> dict[str, Any]:
        tally = Tally()
        with (
            atomic_path(part.with_suffix(".removed.jsonl")) as removed_path,
            atomic_path(part.with_suffix(".choice.jsonl")) as choice_path,
            atomic_path(part.with_suffix(".parquet")) as rows_path,
            removed_path.open("w", encoding="utf-8") as removed,
            choice_path.open("w", encoding="utf-8") as choice,
            RowWriter(rows_path, MATH_SCHEMA) as writer,
        ):
            for row, record in self.converted(chunk, tally):
                if record is None:
                    writer.write(row)
                    continue
                removed.write(json.dumps(record) + "\n")
                if row is not None:
                    choice.write(json.dumps(row) + "\n")
        return {"split": chunk.split, "rows": writer.rows, **tally.described()}

    def converted(self, chunk: Chunk, tally: Tally) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """For every row of the chunk its RL row, the record of its removal, or for multiple choice both.

        Raises:
            SourceError: a bad row, with ``strict``.
        """
        source = SOURCES[chunk.source]
        stages: list[Stage] = [rule_filter(self.rules if chunk.split == "train" else ALWAYS)]
        for offset, (number, raw) in enumerate(chunk.rows):
            try:
                problem = source.problem(raw, chunk.split, chunk.first + offset)
            except (BadRow, RowError) as error:
                if self.strict:
                    raise SourceError(f"{chunk.file} row {number}: {error}") from error
                removal, name, shown = Removal(BAD, str(error)), chunk.source, _shown(raw)
            else:
                found = next((found for stage in stages if (found := stage(problem)) is not None), None)
                name = problem.data_source
                if found is None:
                    tally.read[chunk.split, name] += 1
                    yield self._rl_row(source, problem), None
                    continue
                removal, shown = found, {"problem": problem.problem[:MAX_SHOWN], "answer": problem.answer[:MAX_SHOWN]}
            tally.read[chunk.split, name] += 1
            place = {"file": chunk.file, "row": number, "evidence": _whole(removal.evidence[:MAX_SHOWN])}
            tally.remove(chunk.split, name, removal.rule, {**place, **shown})
            set_aside = self._rl_row(source, problem) if removal.rule == "choice" else None
            yield set_aside, {"split": chunk.split, "data_source": name, "rule": removal.rule, **place}

    def _rl_row(self, source: MathSource, problem: MathProblem) -> dict[str, Any]:
        if source.bare:
            prompt = [{"role": "user", "content": problem.problem}]
        else:
            prompt = messages(problem.problem, "math", self.system)
        extra = {"split": problem.split, "index": problem.index}
        return rl_row(problem.data_source, prompt, "math", problem.answer, extra)


def _whole(text: str) -> str:
    """Half characters, which cannot be written, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(raw: Raw) -> Mapping[str, str]:
    return {} if isinstance(raw, BadRow) else {"problem": _whole(str(dict(raw))[:MAX_SHOWN]), "answer": ""}
