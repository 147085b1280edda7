# SPDX-License-Identifier: Apache-2.0
"""The only module that talks to TransferQueue, verl's store of rollouts.

On the driver a batch is a list of keys; tensors are fetched by key, as nested tensors, and written back the same way.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.workers.utils.padding import response_to_nested

IS_PADDING = "is_padding"
_MULTI_MODAL = "multi_modal_inputs"


def group_uid(key: str) -> str:
    """Prompt id of a trajectory key ``{uid}_{session}_{index}``."""
    return key.split("_", 1)[0]


def group_numbers(keys: Sequence[str]) -> list[int]:
    """Number of the prompt of each trajectory, from 0 on in the order in which they come."""
    number: dict[str, int] = {}
    return [number.setdefault(group_uid(key), len(number)) for key in keys]


def is_padding(tag: Mapping[str, Any]) -> bool:
    """Whether verl appended this row to make the batch divisible."""
    return bool(tag.get(IS_PADDING, False))


def _get(keys: Sequence[str], partition_id: str, *names: str) -> Any:
    """Fields of rows by name, in the order of the keys."""
    return tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=list(names))


def fetch_padded(batch: KVBatchMeta, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Token-level fields as ``(B, T)`` tensors, padded with 0, rows in the order of ``batch.keys``."""
    data = _get(batch.keys, batch.partition_id, *names)
    missing = [name for name in names if name not in data]
    if missing:
        raise RuntimeError(f"rollouts have no field {missing[0]!r}; present: {sorted(map(str, data.keys()))}")
    return {name: data[name].to_padded_tensor(0) if data[name].is_nested else data[name] for name in names}


def fetch_rows(batch: KVBatchMeta, names: Sequence[str]) -> dict[str, list[torch.Tensor]]:
    """Token-level fields, one tensor of the row's own length for each row."""
    data = _get(batch.keys, batch.partition_id, *names)
    return {name: list(data[name].unbind()) for name in names}


def refuse_images(batch: KVBatchMeta, feature: str) -> None:
    """Raise RuntimeError if a row has images or videos; ``feature`` names what they are not for."""
    data = _get(batch.keys, batch.partition_id, _MULTI_MODAL)
    for key, value in zip(batch.keys, list(data[_MULTI_MODAL]) if _MULTI_MODAL in data else [], strict=False):
        if getattr(value, "data", value):
            raise RuntimeError(f"rollout {key} has images or videos, which are not for {feature}")


def _values(keys: Sequence[str], partition_id: str, name: str) -> list[Any]:
    """A field that is no tensor."""
    if not keys:
        return []
    return [getattr(value, "data", value) for value in list(_get(keys, partition_id, name)[name])]


def fetch_reward_infos(keys: Sequence[str], partition_id: str) -> list[Mapping[str, Any]]:
    """Extra info of each trajectory's reward; empty if there is none. RuntimeError: it is not a mapping."""
    infos = []
    for key, extra in zip(keys, _values(keys, partition_id, "extra_fields"), strict=True):
        info = extra.get("reward_extra_info", {}) if isinstance(extra, Mapping) else extra
        if not isinstance(info, Mapping):
            raise RuntimeError(
                f"the reward's extra info of rollout {key} is a {type(info).__name__}; a reward function must return a "
                f"dict with the key score, and its other keys are the extra info"
            )
        infos.append(info)
    return infos


def fetch_turn_rewards(keys: Sequence[str], partition_id: str, name: str) -> list[list[float]]:
    """Return ``tool_rewards`` or ``turn_scores`` of each trajectory. RuntimeError: a loop reports no such numbers."""
    found = []
    for key, extra in zip(keys, _values(keys, partition_id, "extra_fields"), strict=True):
        values = extra.get(name) if isinstance(extra, Mapping) else None
        if not isinstance(values, list) or not all(isinstance(one, Real) and isfinite(one) for one in values):
            raise RuntimeError(
                f"the agent loop of rollout {key} reports {name}={values!r}, and prime.turns.coefficient > 0 needs a "
                f"list of numbers; use verl's tool_agent, or set prime.turns.coefficient=0"
            )
        found.append([float(one) for one in values])
    return found


def fetch_counts(keys: Sequence[str], partition_id: str) -> dict[str, float]:
    """Return means of what agent loops and tools count in ``extra_fields``, by ``field/name``; missing counts are 0."""
    sums: Counter[str] = Counter()
    for extra in _values(keys, partition_id, "extra_fields"):
        for field, values in extra.items() if isinstance(extra, Mapping) else ():
            if field == "reward_extra_info" or not isinstance(values, Mapping):
                continue
            sums.update({f"{field}/{name}": one for name, one in values.items() if isinstance(one, Real)})
    return {name: float(value) / len(keys) for name, value in sums.items()}


def label_of(key: str, info: Mapping[str, Any], name: str) -> float:
    """Return the value ``name`` of a reward's extra info; RuntimeError: it is missing, or not in [0, 1]."""
    if name not in info:
        raise RuntimeError(
            f"the reward of rollout {key} has no {name!r} in its extra info (it has {sorted(info)}); "
            f"let the reward function return it, or set prime.label_key to one of those"
        )
    value = float(info[name])
    if not 0.0 <= value <= 1.0:
        raise RuntimeError(f"{name}={value} of rollout {key} is not in [0, 1]; PRIME needs an accuracy as label")
    return value


def fetch_labels(keys: Sequence[str], partition_id: str, name: str) -> list[float]:
    """:func:`label_of` each trajectory."""
    infos = fetch_reward_infos(keys, partition_id)
    return [label_of(key, info, name) for key, info in zip(keys, infos, strict=True)]


def _tags(partition_id: str) -> dict[str, dict]:
    return (tq.kv_list(partition_id) or {}).get(partition_id, {})


def statuses(uids: Sequence[str], partition_id: str) -> dict[str, str]:
    """Where the generation of each of these prompts stands: ``pending``, ``running``, ``finished`` or ``failure``."""
    tags = _tags(partition_id)
    return {uid: tags[uid]["status"] for uid in uids}


def trajectories(uids: Sequence[str], partition_id: str) -> list[str]:
    """Keys of the finished trajectories of these prompts."""
    wanted, tags = set(uids), _tags(partition_id)
    return [key for key, tag in tags.items() if not tag.get("is_prompt", False) and group_uid(key) in wanted]


def find_cut_off(
    partition_id: str, tags: Mapping[str, dict], limit: int, longest: float, end_tokens: Collection[int]
) -> set[str]:
    """Return the keys of responses that were cut off: their last token is not in ``end_tokens``.

    They have ``limit`` tokens, or ``longest`` together with their prompt.
    """
    full = [key for key, tag in tags.items() if tag["response_len"] >= limit or tag["seq_len"] >= longest]
    if not full:
        return set()
    responses = _get(full, partition_id, "responses")["responses"].unbind()
    return {key for key, response in zip(full, responses, strict=True) if int(response[-1]) not in end_tokens}


def clear(keys: Sequence[str], partition_id: str) -> None:
    """Forget trajectories."""
    tq.kv_clear(partition_id=partition_id, keys=list(keys))


def put_rollouts(keys: Sequence[str], partition_id: str, fields: Mapping[str, Sequence[torch.Tensor]]) -> KVBatchMeta:
    """Write a tensor per rollout for each field, ``prompts`` and ``responses`` among them; return the new rows."""
    pairs = zip(fields["prompts"], fields["responses"], strict=True)
    lengths = [(len(prompt), len(response)) for prompt, response in pairs]
    tags = [{"prompt_len": left, "response_len": right, "seq_len": left + right} for left, right in lengths]
    values = {name: torch.nested.as_nested_tensor(list(rows), layout=torch.jagged) for name, rows in fields.items()}
    tq.kv_batch_put(
        keys=list(keys), partition_id=partition_id, fields=TensorDict(values, batch_size=len(keys)), tags=tags
    )
    return KVBatchMeta(keys=list(keys), tags=tags, partition_id=partition_id)


def put_rows(batch: KVBatchMeta, fields: Mapping[str, torch.Tensor]) -> KVBatchMeta:
    """Write one value per row; returns the batch that knows the new fields."""
    return tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(dict(fields), batch_size=len(batch))
    )


def put_tokens(batch: KVBatchMeta, fields: Mapping[str, torch.Tensor]) -> KVBatchMeta:
    """Write ``(B, T)`` tensors as nested tensors of each response's length; returns the batch that knows them."""
    mask = _get(batch.keys, batch.partition_id, "response_mask")["response_mask"]
    return put_rows(batch, {name: response_to_nested(value, mask) for name, value in fields.items()})


def select(batch: KVBatchMeta, rows: Sequence[int]) -> KVBatchMeta:
    """Some of the rows, with the same options."""
    return with_fields(batch.select_keys([batch.keys[row] for row in rows]), batch.fields)


def with_options(batch: KVBatchMeta, **options: Any) -> KVBatchMeta:
    """The same rows with exactly these options for the worker method that receives them."""
    return replace(batch, keys=list(batch.keys), extra_info=options)


def joined(batch: KVBatchMeta, more: KVBatchMeta, fields: Sequence[str]) -> KVBatchMeta:
    """The rows of both, of which workers fetch these fields only: other fields may be those of some rows."""
    rows = replace(batch, keys=[*batch.keys, *more.keys], tags=[*batch.tags, *more.tags])
    return with_fields(rows, fields)


def padded(batch: KVBatchMeta, multiple: int, end_token: int) -> KVBatchMeta:
    """The rows, and so many of verl's rows of padding that their number is a multiple of ``multiple``."""
    return upsample_batch_to_divisible_size(batch, multiple, end_token)


def with_fields(batch: KVBatchMeta, names: Sequence[str] | None) -> KVBatchMeta:
    """The same rows, of which workers fetch these fields only; None for all."""
    fields = None if names is None else list(names)
    return replace(batch, keys=list(batch.keys), fields=fields, extra_info=batch.extra_info or {})


def with_field(batch: KVBatchMeta, name: str) -> KVBatchMeta:
    """The same rows, knowing of a field that a worker has written."""
    fields = batch.fields if batch.fields is None or name in batch.fields else [*batch.fields, name]
    return with_fields(batch, fields)


def wait_for(output: Any) -> Any:
    """Wait for a non-blocking worker method whose results went to TransferQueue."""
    return ray.get(output.futures)
