# SPDX-License-Identifier: Apache-2.0
"""What verl's RL schema asks of a file and of each row, and what makes rows the same."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
ROLES = ("system", "user", "assistant")
# Eurus-2-RL-Data has this split and index 0 in all rows: they name nothing.
NO_SPLIT = "dummy"


def schema_faults(schema: pa.Schema) -> list[str]:
    """What is wrong with the columns of a file."""
    faults = [f"no column {name}" for name in COLUMNS if name not in schema.names]
    types = {name: schema.field(name).type for name in COLUMNS if name in schema.names}
    for name in ("data_source", "ability"):
        if name in types and not _is_text(types[name]):
            faults.append(f"{name} must be text, is {types[name]}")
    if "prompt" in types:
        faults += _prompt_faults(types["prompt"])
    for name, needed in (("reward_model", ("style", "ground_truth")), ("extra_info", ("split", "index"))):
        if name not in types:
            continue
        if not pa.types.is_struct(types[name]):
            faults.append(f"{name} must be a struct, is {types[name]}")
            continue
        have = {types[name].field(i).name for i in range(types[name].num_fields)}
        faults += [f"{name} has no {field}" for field in needed if field not in have]
    return faults


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _prompt_faults(kind: pa.DataType) -> list[str]:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return [f"prompt must be a list of messages, is {kind}"]
    fields = {kind.value_type.field(i).name: kind.value_type.field(i).type for i in range(kind.value_type.num_fields)}
    return [
        f"messages of prompt have no text {name}"
        for name in ("role", "content")
        if not _is_text(fields.get(name, pa.null()))
    ]


def row_faults(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of a row whose columns are right."""
    faults = [f"{name} is empty" for name in ("data_source", "ability") if not (row[name] or "").strip()]
    messages = row["prompt"] or []
    if not messages:
        faults.append("prompt has no message")
    for message in messages:
        if message is None or message["role"] not in ROLES:
            faults.append(f"role {None if message is None else message['role']!r} is none of {', '.join(ROLES)}")
        elif not (message["content"] or "").strip():
            faults.append(f"the message of the {message['role']} is empty")
    if messages and messages[-1] is not None and messages[-1]["role"] != "user":
        faults.append("the last message is not the user's")
    model = row["reward_model"] or {}
    if model.get("style") != "rule":
        faults.append(f"reward_model.style must be 'rule', is {model.get('style')!r}")
    gold = model.get("ground_truth")
    if not isinstance(gold, str) or not gold.strip():
        faults.append(f"reward_model.ground_truth must be text, is {gold!r}")
    extra = row["extra_info"] or {}
    if not isinstance(extra.get("index"), int) or not isinstance(extra.get("split"), str):
        faults.append(
            f"extra_info must have a split and an index, has {extra.get('split')!r} and {extra.get('index')!r}"
        )
    return faults


def row_name(row: Mapping[str, Any]) -> str | None:
    """What no two rows may share: source, split and index. None for rows whose split names nothing."""
    extra = row["extra_info"]
    return None if extra["split"] == NO_SPLIT else f"{row['data_source']} {extra['split']} {extra['index']}"


def digest(value: Any) -> int:
    """64 bits that tell prompts apart."""
    text = json.dumps(value, sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
