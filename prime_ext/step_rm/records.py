# SPDX-License-Identifier: Apache-2.0
"""Labeled steps, and the parquet file that holds them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.step_rm.labels import LABELS
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.utils.fields import Row, check_text, parse_rows, show_value
from prime_ext.utils.files import write_atomically
from prime_ext.utils.rows import BadRow, make_batches

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
        for rows in make_batches(map(asdict, steps), ROWS_PER_WRITE):
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
        writer.add_key_value_metadata({METADATA: description.encode()})


def read_steps(path: str | Path) -> Iterator[LabelledStep]:
    """Yield the rows. Raises ``SourceError``, with file and row: absent, other schema, or wrong."""
    for _, step in parse_rows(Path(path), _read_step):
        yield step


def _read_step(row: Row) -> LabelledStep:
    absent = [name for name in SCHEMA.names if name not in row]
    if absent:
        raise BadRow(f"no column {absent[0]!r}; prime_ext.step_rm.convert writes such files")
    previous = row["previous"] or []
    if not isinstance(previous, list):
        raise BadRow(f"previous must be a list, got {show_value(previous)}")
    for number, step in enumerate(previous, start=1):
        check_text(step, f"previous {number}", may_be_empty=True)
    for name, allowed in (("label", LABELS), ("split", SPLITS)):
        if isinstance(row[name], bool) or row[name] not in allowed:
            raise BadRow(f"{name} must be one of {allowed}, got {show_value(row[name])}")
    texts = {
        name: check_text("" if row[name] is None else row[name], name, may_be_empty=True)
        for name in ("question", "source", "group")
    }
    return LabelledStep(
        **texts,
        previous=tuple(previous),
        current=check_text(row["current"], "current"),
        label=int(row["label"]),
        split=row["split"],
    )
