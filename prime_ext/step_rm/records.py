# SPDX-License-Identifier: Apache-2.0
"""Labeled steps, and the parquet file that holds them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.step_rm.labels import LABELS
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.utils.files import write_atomically
from prime_ext.utils.rows import SourceError, make_batches, read_rows

ROWS_PER_WRITE = 20_000


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """One step with its label, a row of the file; ``split`` and ``group`` are chosen later."""

    question: str
    previous: tuple[str, ...]
    current: str
    label: int
    source: str
    split: str = ""
    group: str = ""


_TYPES = {"previous": pa.list_(pa.string()), "label": pa.int8()}
SCHEMA = pa.schema({each.name: _TYPES.get(each.name, pa.string()) for each in fields(LabelledStep)})
METADATA = b"prime_ext.step_rm"


def write_steps(path: Path, steps: Iterable[LabelledStep], description: str) -> None:
    """Write the file atomically, with the description in its metadata."""
    with write_atomically(path) as temporary, pq.ParquetWriter(temporary, SCHEMA) as writer:
        for part in make_batches(map(asdict, steps), ROWS_PER_WRITE):
            writer.write_table(pa.Table.from_pylist(part, SCHEMA))
        writer.add_key_value_metadata({METADATA: description.encode()})


def read_steps(path: str | Path) -> Iterator[LabelledStep]:
    """Yield the rows. Raises ``SourceError``, with file and row: absent, other schema, or wrong."""
    for number, row in enumerate(read_rows(Path(path)), start=1):
        absent = [name for name in SCHEMA.names if name not in row]
        if absent:
            raise SourceError(
                f"{path} has no column {absent[0]!r}; prime_ext.step_rm.convert writes such files"
            )
        if (
            row["label"] not in LABELS
            or row["split"] not in SPLITS
            or not (row["current"] or "").strip()
        ):
            raise SourceError(
                f"{path} row {number}: label {row['label']!r}, split {row['split']!r} and step"
                f" {str(row['current'])[:40]!r} must be one of {LABELS}, one of {SPLITS}, and not"
                " empty"
            )
        known = {name: row[name] for name in SCHEMA.names}
        yield LabelledStep(
            **{**known, "previous": tuple(row["previous"] or ()), "question": row["question"] or ""}
        )
