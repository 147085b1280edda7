# SPDX-License-Identifier: Apache-2.0
"""RL rows as stages after ``rl_data`` read them: parquet files or JSON Lines of verl's schema."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_preprocessing.batches import batched
from data_preprocessing.row_checks import COLUMNS, row_faults, schema_faults
from prime_ext.tasks.action_prompt import SUFFIXES
from prime_ext.tasks.cells import is_whole
from prime_ext.utils.rows import BadRow, SourceError, read_source

BATCH = 1_000
Row = dict[str, Any]


def checked_row(raw: Mapping[str, Any] | BadRow) -> Row:
    """A row of verl's schema.

    Raises:
        BadRow: it is none.
    """
    if isinstance(raw, BadRow):
        raise raw
    missing = [name for name in COLUMNS if name not in raw]
    if missing:
        raise BadRow(f"no column {missing[0]}; it has {', '.join(map(str, raw)) or 'none'}")
    if not isinstance(raw["prompt"], list) or not all(
        isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in raw["prompt"]
    ):
        raise BadRow("prompt is no list of messages with role and content")
    for name in ("reward_model", "extra_info"):
        if not isinstance(raw[name], Mapping):
            raise BadRow(f"{name} is no object")
    texts = [raw["data_source"], raw["ability"], *(m[part] for m in raw["prompt"] for part in ("role", "content"))]
    if not all(isinstance(text, str) for text in texts):
        raise BadRow("data_source, ability, role and content must be texts")
    faults = row_faults(raw)
    if faults:
        raise BadRow("; ".join(faults))
    if not all(map(is_whole, [*texts, raw["reward_model"]["ground_truth"]])):
        raise BadRow("half a character (a lone surrogate)")
    return dict(raw)


def rl_rows(path: Path) -> Iterator[tuple[int, Row | BadRow]]:
    """Rows with their numbers from 1; what is no RL row comes as a :class:`BadRow`.

    Raises:
        SourceError: the file cannot be read.
    """
    for number, raw in read_source(path):
        try:
            yield number, checked_row(raw)
        except BadRow as error:
            yield number, error


def rl_schema_of(path: Path) -> pa.Schema:
    """The schema of a file; that of JSON Lines is what all of its rows need.

    Raises:
        SourceError: the columns are not those of RL rows, or no schema fits all rows.
    """
    if path.suffix == ".parquet" and path.is_file():
        try:
            schema = pq.read_schema(path).remove_metadata()
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        faults = schema_faults(schema)
        if faults:
            raise SourceError(f"{path}: {'; '.join(faults)}")
        return schema
    schemas: list[pa.Schema] = []
    try:
        for batch in batched((row for _, row in rl_rows(path) if not isinstance(row, BadRow)), BATCH):
            schemas = [unified([*schemas, pa.Table.from_pylist(batch).schema])]
    except (SourceError, pa.ArrowException) as error:
        raise SourceError(f"{path}: its rows do not fit one schema: {str(error).splitlines()[0]}") from error
    if not schemas:
        raise SourceError(f"{path} has no RL row")
    return schemas[0]


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The schema that rows of all of these fit.

    Raises:
        SourceError: there is none.
    """
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(f"columns of different types: {str(error).splitlines()[0]}") from error


def with_extra(schema: pa.Schema, fields: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with further fields in ``extra_info``; fields of these names are replaced."""
    place = schema.get_field_index("extra_info")
    known = schema.field(place).type
    kept = [known.field(i) for i in range(known.num_fields) if known.field(i).name not in fields]
    return schema.set(place, pa.field("extra_info", pa.struct([*kept, *(pa.field(*item) for item in fields.items())])))


def problem_of(row: Mapping[str, Any]) -> str:
    """What the user of a row asks, without the suffix that says how the answer is written."""
    text = str(row["prompt"][-1]["content"])
    suffix = SUFFIXES.get(str(row["ability"]), "")
    return text.removesuffix(suffix) if suffix else text
