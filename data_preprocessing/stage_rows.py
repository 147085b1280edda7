# SPDX-License-Identifier: Apache-2.0
"""Problems between the steps of a pipeline: files of JSON lines, with where each problem comes from."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_preprocessing.code_sources import CODE_SOURCES
from data_preprocessing.math_sources import SOURCES as MATH_SOURCES
from data_preprocessing.row_source import RowSource
from data_preprocessing.stage import Problem

SOURCES: dict[str, RowSource] = {**MATH_SOURCES, **CODE_SOURCES}


@dataclass(frozen=True, slots=True)
class Item:
    """A problem and its place: the name of its source, its file and the number of its row there."""

    source: str
    file: str
    row: int
    problem: Problem

    def line(self) -> str:
        """As a line of a file; :func:`read_items` reads it."""
        fields = asdict(self.problem)  # type: ignore[call-overload]
        return json.dumps({"source": self.source, "file": self.file, "row": self.row, "problem": fields}) + "\n"


def _problem(source: str, fields: dict[str, Any]) -> Problem:
    """A problem from JSON, which knows no tuples."""
    return SOURCES[source].kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    )


def read_items(path: Path) -> Iterator[Item]:
    """The problems of a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            found = json.loads(line)
            yield Item(found["source"], found["file"], found["row"], _problem(found["source"], found["problem"]))
