# SPDX-License-Identifier: Apache-2.0
"""Rows of verl's RL schema in parquet files; kinds of data differ only in ``extra_info``."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from prime_ext.config.checks import explain
from prime_ext.tasks.value_types import Text
from prime_ext.utils.hub import use_cache_without_hub
from prime_ext.utils.rows import SourceError, make_batches
from prime_ext.verifiers.sources import BUILT_IN, TASKS, UnknownSource, find_source

OUTPUTS = ("train", "validation", "test")
ROWS_PER_WRITE = 5_000
# Data sources that a message names at most.
MAX_NAMED = 10


def build_rl_schema(extra_info: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a file whose ``extra_info`` has these fields."""
    return pa.schema(
        {
            "data_source": pa.string(),
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "ability": pa.string(),
            "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
            "extra_info": pa.struct(dict(extra_info)),
        }
    )


# As in Eurus-2-RL-Data, so that files of both can be trained on together.
MATH_SCHEMA = build_rl_schema({"split": pa.string(), "index": pa.int64()})


def rl_row(
    data_source: str,
    messages: Sequence[Mapping[str, str]],
    ability: str,
    ground_truth: str,
    extra_info: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "data_source": data_source,
        "prompt": [dict(message) for message in messages],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows to parquet as they come; return their number. Equal rows give equal bytes."""
    written = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in make_batches(rows, ROWS_PER_WRITE):
            writer.write_table(pa.Table.from_pylist(chunk, schema))
            written += len(chunk)
    return written


def refuse_leftovers(folder: Path, written: Collection[str]) -> None:
    """Raise ``SourceError`` if outputs of an earlier run would remain next to the new ones."""
    for path in (folder / f"{name}.parquet" for name in OUTPUTS if name not in written):
        if path.exists():
            message = (
                "is of an earlier run and would not fit the new files; remove it, or write"
                " elsewhere"
            )
            raise SourceError(f"{path} {message}")


# ---- what a row must have ------------------------------------------------------------------------


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("must not be null")
    return value


class Message(BaseModel):
    role: Text
    content: str | list[Any]  # a list: with images


class GoldAnswer(BaseModel):
    ground_truth: Annotated[Any, AfterValidator(_refuse_null)]


class PromptRow(BaseModel):
    """Columns of a row that every trainer reads."""

    prompt: Annotated[list[Message], Field(min_length=1)]
    extra_info: dict[str, Any] | None = None


class JudgedRow(PromptRow):
    """Columns of a row that a reward function reads."""

    data_source: Text
    reward_model: GoldAnswer


def _end_with_user(messages: list["CheckedMessage"]) -> list["CheckedMessage"]:
    if messages[-1].role != "user":
        raise ValueError("must end with a message of the user")
    return messages


class CheckedMessage(Message):
    role: Literal["system", "user", "assistant"]
    content: Text


class RewardModel(GoldAnswer):
    # DAPO-Math-17k has "rule-lighteval/MATH_v2".
    style: Annotated[str, Field(pattern="^rule")]
    ground_truth: Text


class ExtraInfo(BaseModel):
    split: str | None = None
    index: StrictInt | StrictStr


class PublishedRow(JudgedRow):
    """A row of a data set that others can use: every column of verl's schema, a text as answer."""

    data_source: Text
    prompt: Annotated[list[CheckedMessage], Field(min_length=1), AfterValidator(_end_with_user)]  # type: ignore[assignment]
    ability: Text
    reward_model: RewardModel
    extra_info: ExtraInfo  # type: ignore[assignment]


def find_row_faults(row: Mapping[str, Any], kind: type[BaseModel]) -> list[str]:
    """Return one line for each fault of a row, which may have anything in its columns."""
    try:
        kind.model_validate(dict(row))
    except ValidationError as error:
        return explain(error, TypeAdapter(kind), top="the row")
    return []


def get_gold(reward_model: Any) -> Any:
    """Return the gold answer of a row's ``reward_model``; None for none or an empty text."""
    gold = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return None if isinstance(gold, str) and not gold else gold


def find_idle_verifiers(data_sources: Iterable[str]) -> list[str]:
    """Return a line for each verifier of the user's that judges none of these data sources."""
    known = sorted(set(data_sources))
    judging = set()
    for name in known:
        with suppress(UnknownSource):
            judging.add(find_source(name).task)
    shown = ", ".join(known[:MAX_NAMED]) + (", ..." if len(known) > MAX_NAMED else "")
    return [
        f"the verifier {task!r} of your modules judges no row: none of its patterns matches a data"
        f" source of the rows, which are {shown}"
        for task in TASKS
        if task not in BUILT_IN and task not in judging
    ]


class NoChatTemplate(SourceError):
    """A tokenizer has no chat template."""


def load_tokenizer(path: str, **options: Any) -> Any:
    """Return a tokenizer. Raises SourceError: there is none; NoChatTemplate: it has none."""
    from transformers import AutoTokenizer

    use_cache_without_hub(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"no tokenizer at {path}: {str(error).strip().splitlines()[0]}"
        ) from error
    if not tokenizer.chat_template:
        raise NoChatTemplate(f"the tokenizer at {path} has no chat template")
    return tokenizer


def count_tokens(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
    """Return the length of a prompt in a chat template, with the start of the answer, in tokens."""
    text = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **options
    )
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
