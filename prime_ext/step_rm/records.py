# SPDX-License-Identifier: Apache-2.0
"""Labelled steps, and the parquet file that holds them."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.utils.files import atomic_path
from prime_ext.utils.rows import SourceError, whole_rows

ROWS_PER_WRITE = 20_000


@dataclass(frozen=True)
class LabelledStep:
    """One step with its label: a row of the file.

    Attributes:
        question: what is asked; empty where the source does not say.
        previous: all steps before it that are known, in order; empty for the first.
        current: the step.
        label: -1 (wrong), 0 (neutral) or 1 (right).
        step_index: its place in the response, from 0.
        source: format and file it comes from, for example ``prm800k:phase2_train``.
        split: ``train``, ``validation`` or ``test``; empty before it is known.
        group: questions of one group are in one split, see :mod:`prime_ext.step_rm.question_split`.
    """

    question: str
    previous: tuple[str, ...]
    current: str
    label: int
    step_index: int
    source: str
    split: str = ""
    group: str = ""


SCHEMA = pa.schema(
    {
        "question": pa.string(),
        "previous": pa.list_(pa.string()),
        "current": pa.string(),
        "label": pa.int8(),
        "step_index": pa.int32(),
        "source": pa.string(),
        "split": pa.string(),
        "group": pa.string(),
    }
)
METADATA = b"prime_ext.step_rm"


def write_steps(path: Path, steps: Iterable[LabelledStep], description: Callable[[], str]) -> None:
    """Write the file under a temporary name and rename it.

    ``description`` says how it was made, as JSON, and is asked after the last row; it is kept in the file's metadata.
    """
    rows = map(asdict, steps)
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, SCHEMA) as writer:
        while part := list(itertools.islice(rows, ROWS_PER_WRITE)):
            writer.write_table(pa.Table.from_pylist(part, SCHEMA))
        writer.add_key_value_metadata({METADATA: description().encode()})


def read_steps(path: str | Path) -> Iterator[LabelledStep]:
    """The rows, checked.

    Raises:
        StepRMError: no such file, not this schema, or a value that it does not allow; with file and row.
    """
    try:
        for number, row in enumerate(whole_rows(Path(path)), start=1):
            absent = [name for name in SCHEMA.names if name not in row]
            if absent:
                raise StepRMError(f"{path} has no column {absent[0]!r}; prime_ext.step_rm.convert writes such files")
            if row["label"] not in LABELS or row["split"] not in SPLITS or not (row["current"] or "").strip():
                raise StepRMError(
                    f"{path} row {number}: label {row['label']!r}, split {row['split']!r} and step "
                    f"{str(row['current'])[:40]!r} must be one of {LABELS}, one of {SPLITS}, and not empty"
                )
            known = {name: row[name] for name in SCHEMA.names}
            yield LabelledStep(**{**known, "previous": tuple(row["previous"] or ()), "question": row["question"] or ""})
    except SourceError as error:
        raise StepRMError(str(error)) from error
