# SPDX-License-Identifier: Apache-2.0
"""From rows of sources to parts of RL files: conversion, stages, and what was removed."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_preprocessing.math_problem import MathProblem
from data_preprocessing.math_rules import ALWAYS, rule_filter
from data_preprocessing.math_sources import SOURCES
from data_preprocessing.row_source import Chunk, Raw
from data_preprocessing.stage import Removal, whole
from data_preprocessing.tally import BAD, MAX_SHOWN, Tally
from prime_ext.tasks.cells import RowError
from prime_ext.tasks.rl_rows import MATH_SCHEMA, RowWriter
from prime_ext.utils.files import atomic_path
from prime_ext.utils.rows import BadRow, SourceError

Stage = Callable[[MathProblem], Removal | None]


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
                removal, name, sample = Removal(BAD, str(error)), chunk.source, shown(raw)
            else:
                found = next((found for stage in stages if (found := stage(problem)) is not None), None)
                name = problem.data_source
                if found is None:
                    tally.read[chunk.split, name] += 1
                    yield source.rl_row(problem, self.system), None
                    continue
                removal, sample = found, {"problem": problem.problem[:MAX_SHOWN], "answer": problem.answer[:MAX_SHOWN]}
            tally.read[chunk.split, name] += 1
            place = {"file": chunk.file, "row": number, "evidence": whole(removal.evidence[:MAX_SHOWN])}
            tally.remove(chunk.split, name, removal.rule, {**place, **sample})
            set_aside = source.rl_row(problem, self.system) if removal.rule == "choice" else None
            yield set_aside, {"split": chunk.split, "data_source": name, "rule": removal.rule, **place}


def shown(raw: Raw) -> Mapping[str, str]:
    """A bad row for a sample."""
    return {} if isinstance(raw, BadRow) else {"problem": whole(str(dict(raw))[:MAX_SHOWN]), "answer": ""}
