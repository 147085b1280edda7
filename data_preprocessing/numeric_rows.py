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
"""Problems of the numeric sets as rows of verl's RL schema, and the files that hold them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_preprocessing.source_rows import SourceError
from eval.task import Problem, Task
from prime_ext.files import atomic_path, write_json

OUTPUTS = ("train", "validation", "test")
ROWS_PER_WRITE = 5_000

SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(
            {
                "split": pa.string(),
                "index": pa.int64(),
                "texts": pa.list_(pa.string()),
                "options": pa.list_(pa.string()),
                "n_options": pa.int32(),
                "label": pa.string(),
                "group": pa.string(),
                "file": pa.string(),
                "row": pa.int64(),
            }
        ),
    }
)


@dataclass(frozen=True)
class Place:
    """A usable row: its task, the split of its file, the file and the number in it."""

    task: Task
    split: str
    path: Path
    row: int
    problem: Problem


def rl_row(task: Task, problem: Problem, prompt: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """A problem in the schema of verl's ``RLHFDataset``; ``extra`` is the rest of ``extra_info``."""
    return {
        "data_source": task.data_source,
        "prompt": task.messages(problem, prompt),
        "ability": task.ability,
        "reward_model": {"style": "rule", "ground_truth": problem.gold},
        "extra_info": {
            "texts": list(task.problem_texts(problem)),
            # The verifier takes the names of the options, or how many there are.
            "options": list(task.option_names) or None,
            "n_options": None if task.option_names else task.n_options,
            "label": task.label(problem.gold),
            **extra,
        },
    }


def write_rows(
    folder: Path, places: Sequence[Place], groups: Sequence[str], outputs: Sequence[str], prompt: str, report: object
) -> None:
    """Write ``<output>.parquet`` for each of ``outputs``, and ``report.json``: all of them or none.

    Args:
        folder: where they go.
        places: the rows.
        groups: the group of each row.
        outputs: the split that each row goes to.
        prompt: the name of the prompt that the rows show.
        report: what goes into ``report.json``.

    Raises:
        SourceError: an earlier run left a file that this one would not replace.
    """
    for name in OUTPUTS:
        path = folder / f"{name}.parquet"
        if name not in outputs and path.exists():
            raise SourceError(
                f"{path} is of an earlier run and would not fit the new files; remove it, or write elsewhere"
            )
    with ExitStack() as stack:
        finished = {
            name: stack.enter_context(atomic_path(folder / f"{name}.parquet")) for name in OUTPUTS if name in outputs
        }
        write_json(stack.enter_context(atomic_path(folder / "report.json")), report)
        writers = {name: stack.enter_context(pq.ParquetWriter(path, SCHEMA)) for name, path in finished.items()}
        pending: dict[str, list[dict[str, Any]]] = {name: [] for name in writers}
        written: Counter[str] = Counter()
        for place, group, name in zip(places, groups, outputs, strict=True):
            extra = {"split": name, "index": written[name], "group": group, "file": place.path.name, "row": place.row}
            pending[name].append(rl_row(place.task, place.problem, prompt, extra))
            written[name] += 1
            if len(pending[name]) == ROWS_PER_WRITE:
                writers[name].write_table(pa.Table.from_pylist(pending[name], SCHEMA))
                pending[name] = []
        for name, rows in pending.items():
            if rows:
                writers[name].write_table(pa.Table.from_pylist(rows, SCHEMA))
