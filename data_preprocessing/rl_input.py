# SPDX-License-Identifier: Apache-2.0
"""RL rows as stages after ``rl_data`` read them, parquet or JSON Lines of verl's schema, and their faults."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_preprocessing.row_source import batched, parsed_rows
from prime_ext.tasks.action_prompt import SUFFIXES
from prime_ext.tasks.cells import held, is_whole
from prime_ext.utils.rows import BadRow, SourceError

COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
ROLES = ("system", "user", "assistant")
BATCH = 1_000
# The first set of columns that a row has wholly.
KNOWN_COLUMNS = (
    ("premise", "hypothesis"),
    ("statement1", "statement2"),
    ("sentence1", "sentence2"),
    ("question",),
    ("problem",),
    ("prompt",),
    ("instruction",),
    ("text",),
)
Row = dict[str, Any]


def schema_faults(schema: pa.Schema) -> list[str]:
    """What is wrong with the columns of a file."""
    faults = [f"no column {name}" for name in COLUMNS if name not in schema.names]
    types = {name: schema.field(name).type for name in COLUMNS if name in schema.names}
    for name in ("data_source", "ability"):
        if not _is_text(types.get(name, pa.string())):
            faults.append(f"{name} must be text, is {types[name]}")
    prompt = types.get("prompt")
    if prompt is not None:
        messages = prompt.value_type if pa.types.is_list(prompt) or pa.types.is_large_list(prompt) else pa.null()
        if not pa.types.is_struct(messages):
            faults.append(f"prompt must be a list of messages, is {prompt}")
        elif not all(_is_text(_fields(messages).get(name, pa.null())) for name in ("role", "content")):
            faults.append("messages of prompt must have the texts role and content")
    for name, needed in (("reward_model", ("style", "ground_truth")), ("extra_info", ("split", "index"))):
        if name in types and not pa.types.is_struct(types[name]):
            faults.append(f"{name} must be a struct, is {types[name]}")
        elif name in types:
            faults += [f"{name} has no {field}" for field in needed if field not in _fields(types[name])]
    return faults


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _fields(kind: pa.StructType) -> dict[str, pa.DataType]:
    return {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}


def row_faults(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a row; it may have anything in its columns."""
    missing = [name for name in COLUMNS if name not in row]
    if missing:
        return [f"no column {missing[0]}; {held(row)}"]
    faults = [f"{name} must be a text that is not empty" for name in ("data_source", "ability") if not _text(row[name])]
    messages = row["prompt"] if isinstance(row["prompt"], list) else []
    if not messages:
        faults.append("prompt has no message")
    for message in map(_mapping, messages):
        if message.get("role") not in ROLES:
            faults.append(f"role {message.get('role')!r} must be one of {', '.join(ROLES)}")
        elif not _text(message.get("content")):
            faults.append(f"the message of the {message['role']} is empty")
    if messages and _mapping(messages[-1]).get("role") != "user":
        faults.append("the last message is not the user's")
    model, extra = _mapping(row["reward_model"]), _mapping(row["extra_info"])
    if model.get("style") != "rule":
        faults.append(f"reward_model.style must be 'rule', is {model.get('style')!r}")
    if not _text(model.get("ground_truth")):
        faults.append(f"reward_model.ground_truth must be text, is {model.get('ground_truth')!r}")
    if not isinstance(extra.get("index"), int) or not isinstance(extra.get("split"), str):
        has = f"{extra.get('split')!r} and {extra.get('index')!r}"
        faults.append(f"extra_info must have a split and an index, has {has}")
    said = [_mapping(message).get("content") for message in messages]
    texts = [row["data_source"], row["ability"], model.get("ground_truth"), *said]
    if not all(is_whole(text) for text in texts if isinstance(text, str)):
        faults.append("half a character (a lone surrogate)")
    return faults


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def checked_row(raw: Mapping[str, Any], *place: object) -> Row:
    """A row of verl's schema, else BadRow; where it stands plays no part in it."""
    faults = row_faults(raw)
    if faults:
        raise BadRow("; ".join(faults))
    return dict(raw)


def rl_schema_of(path: Path) -> pa.Schema:
    """The schema of a file, else SourceError; that of JSON Lines is what all of its rows need."""
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
    rows = (row for _, row in parsed_rows(path, checked_row) if not isinstance(row, BadRow))
    try:
        for batch in batched(rows, BATCH):
            schemas = [unified([*schemas, pa.Table.from_pylist(batch).schema])]
    except (SourceError, pa.ArrowException) as error:
        raise SourceError(f"{path}: its rows do not fit one schema: {str(error).splitlines()[0]}") from error
    if not schemas:
        raise SourceError(f"{path} has no RL row")
    return schemas[0]


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The schema that rows of all of these fit; SourceError if there is none."""
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(f"columns of different types: {str(error).splitlines()[0]}") from error


def with_extra(path: Path, fields: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of a file with further fields in ``extra_info``; fields of these names are replaced."""
    schema = rl_schema_of(path)
    place = schema.get_field_index("extra_info")
    known = schema.field(place).type
    kept = [known.field(i) for i in range(known.num_fields) if known.field(i).name not in fields]
    return schema.set(place, pa.field("extra_info", pa.struct([*kept, *(pa.field(*item) for item in fields.items())])))


def problem_of(row: Mapping[str, Any]) -> str:
    """What the user of a row asks, without the suffix that says how the answer is written."""
    return str(row["prompt"][-1]["content"]).removesuffix(SUFFIXES.get(str(row["ability"]), ""))


def problem_texts(row: Mapping[str, Any], columns: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, ...]:
    """What a row of any benchmark asks, without templates and answers, to be compared; BadRow if it has no text.

    Rows of verl's schema may say it in ``extra_info.texts``, or in ``extra_info.question``; otherwise it is what the
    user says in ``prompt``, instructions included.

    Args:
        columns: names of columns, by default the first of :data:`KNOWN_COLUMNS` that the row has.
        remove: literal texts to cut out, for instructions that all rows share.
    """
    extra = row.get("extra_info")
    if not columns and isinstance(extra, Mapping) and (extra.get("texts") or extra.get("question")):
        found = list(extra["texts"]) if extra.get("texts") else [extra["question"]]
    else:
        names = columns or next((known for known in KNOWN_COLUMNS if all(name in row for name in known)), ())
        missing = [name for name in names if name not in row]
        if missing or not names:
            raise BadRow(f"no column {missing[0] if missing else 'with a question'}; it has {', '.join(map(str, row))}")
        found = [_said(row[name]) for name in names]
    for text in remove:
        found = [part.replace(text, " ") for part in found]
    if any(not isinstance(part, str) or not part.strip() for part in found):
        raise BadRow("an empty text")
    if not all(is_whole(part) for part in found):
        raise BadRow("half a character (a lone surrogate)")
    return tuple(part.strip() for part in found)


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(message, Mapping) for message in value):
        return "\n".join(str(message.get("content", "")) for message in value if message.get("role") == "user")
    raise BadRow(f"neither a text nor chat messages but {str(value)[:40]!r}")
