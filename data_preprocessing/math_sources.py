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
"""Where the problems of math RL come from: sets on the hub or in local files, and the generated task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_preprocessing.math_problem import MathProblem, gsm8k_row, solved_row
from data_preprocessing.source_rows import BadRow, SourceError, hub_rows, read_source
from eval.cells import text_of_cell
from recipes.quickstart import task as last_digit_chain

Raw = Mapping[str, Any] | BadRow


@dataclass(frozen=True)
class MathSource:
    """A set of problems.

    Attributes:
        name: on the command line.
        title: what it is.
        data_source: of its rows; with ``{source}``, each row's column of that name goes there.
        parse: problem, solution and answer of a row.
        hub: id on the Hugging Face hub; empty if it is not there.
        config: its configuration on the hub.
        hub_splits: name on the hub by split.
        local: file below a data folder by split.
        generate: makes a row from a problem's number, split and seed instead; see :func:`generated`.
        bare: the policy sees the problem and nothing else: neither system prompt nor suffix.
        id_column: names the problem; a second row with the same name is bad.
    """

    name: str
    title: str
    data_source: str
    parse: Callable[[Mapping[str, Any]], tuple[str, str, str]]
    hub: str = ""
    config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)
    generate: Callable[[str, int, int], Iterator[Mapping[str, Any]]] | None = None
    bare: bool = False
    id_column: str = ""

    def problem(self, row: Raw, split: str, index: int) -> MathProblem:
        """A row of the source as a problem.

        Raises:
            BadRow, RowError: see their messages.
        """
        if isinstance(row, BadRow):
            raise row
        problem, solution, answer = self.parse(row)
        data_source = self.data_source
        if "{source}" in data_source:
            if "source" not in row:
                raise BadRow(f"no column source; it has {', '.join(map(str, row)) or 'none'}")
            data_source = data_source.replace("{source}", text_of_cell(row["source"], "source"))
        return MathProblem(data_source, split, index, problem, solution, answer)


def generated(split: str, count: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Rows of the quickstart's task; its splits are disjoint whatever their sizes.

    Raises:
        SourceError: there are not so many problems.
    """
    try:
        problems = last_digit_chain.generate_problems(_QUICKSTART_SPLITS[split], count, seed)
    except ValueError as error:
        raise SourceError(f"last_digit_chain: {error}") from error
    for problem in problems:
        yield {"problem": problem.prompt, "answer": str(problem.answer), "operations": len(problem.operations)}


_QUICKSTART_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_TRAIN_TEST = {"train": "train", "test": "test"}

SOURCES = {
    source.name: source
    for source in (
        MathSource(
            "gsm8k",
            "GSM8K, grade-school word problems",
            data_source="openai/gsm8k",
            parse=gsm8k_row,
            hub="openai/gsm8k",
            config="main",
            hub_splits=_TRAIN_TEST,
            local={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
        ),
        MathSource(
            "math",
            "MATH, competition problems",
            data_source="DigitalLearningGmbH/MATH-lighteval",
            parse=solved_row,
            hub="DigitalLearningGmbH/MATH-lighteval",
            hub_splits=_TRAIN_TEST,
            local={"train": "math/train.jsonl"},
            id_column="unique_id",
        ),
        MathSource(
            "numina",
            "NuminaMath-CoT, and any set with columns problem, solution or answer, and source",
            data_source="numina_{source}",
            parse=solved_row,
            hub="AI-MO/NuminaMath-CoT",
            hub_splits=_TRAIN_TEST,
            local={"train": "numina/train.jsonl"},
            id_column="id",
        ),
        MathSource(
            "last_digit_chain",
            "the generated task of the quickstart",
            data_source=last_digit_chain.DATA_SOURCE,
            parse=solved_row,
            generate=generated,
            bare=True,
        ),
    )
}


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split of a source, not yet read.

    Attributes:
        source: which.
        split: of the output that they go to.
        path: local file, or None.
        count: rows to generate.
        seed: of the generator.
    """

    source: MathSource
    split: str
    path: Path | None = None
    count: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        """The file, or where else the rows come from; nothing about the machine."""
        if self.path is not None:
            return "/".join(self.path.parts[-2:]).lstrip("/")
        return self.source.hub or "generated"

    def identity(self) -> dict[str, Any]:
        """What tells these rows from others, for resuming."""
        found: dict[str, Any] = {"source": self.source.name, "split": self.split}
        if self.path is not None and self.path.is_file():
            status = self.path.stat()
            found |= {"path": str(self.path.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}
        elif self.source.generate is not None:
            found |= {"count": self.count, "seed": self.seed}
        return found

    def rows(self) -> Iterator[tuple[int, Raw]]:
        """Numbers from 1 and rows.

        Raises:
            SourceError: they cannot be read.
        """
        if self.path is not None:
            yield from read_source(self.path)
        elif self.source.generate is not None:
            yield from enumerate(self.source.generate(self.split, self.count, self.seed), start=1)
        else:
            yield from hub_rows(self.source.hub, self.source.config, self.source.hub_splits[self.split])
