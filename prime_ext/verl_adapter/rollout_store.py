# SPDX-License-Identifier: Apache-2.0
"""The only module that calls TransferQueue, verl's store of rollouts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from prime_ext.methods.store import group_uid, reward_info

_MULTI_MODAL = "multi_modal_inputs"
_EXTRA = "extra_fields"


def is_padding(tag: Mapping[str, Any]) -> bool:
    """Return whether verl appended this row to make the batch divisible."""
    return bool(tag.get("is_padding", False))


def _get(keys: Sequence[str], partition_id: str | None, *names: str) -> Any:
    """Return fields of rows by name, in the order of the keys."""
    return tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=list(names))


def _list_values(values: Any) -> list[Any]:
    """Return a field that is not a tensor as a list."""
    return [getattr(value, "data", value) for value in list(values)]


def _build_jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


@dataclass(frozen=True)
class TransferQueueStore:
    """Rows of TransferQueue as a :class:`prime_ext.methods.store.RolloutStore`."""

    batch: KVBatchMeta

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def keys(self) -> list[str]:
        """Return the trajectory's key of each row."""
        return list(self.batch.keys)

    @property
    def padding(self) -> list[bool]:
        """Return whether verl appended each row as padding."""
        return [is_padding(tag) for tag in self.batch.tags]

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of prompt and response of each row."""
        return [tag["seq_len"] for tag in self.batch.tags]

    @property
    def response_lengths(self) -> list[int]:
        """Return the number of tokens of the response of each row."""
        return [tag["response_len"] for tag in self.batch.tags]

    @property
    def groups(self) -> list[int]:
        """Return the number of each row's prompt, from 0 in order of appearance."""
        number: dict[str, int] = {}
        return [number.setdefault(group_uid(key), len(number)) for key in self.batch.keys]

    def fetch(self, *names: str) -> dict[str, Any]:
        """Return fields by name: 0-padded ``(B, T)`` tensors, ``(B,)`` numbers, or lists.

        Raises RuntimeError: a field is missing.
        """
        data = self.fetch_present(*names)
        for name in names:
            if name not in data:
                raise RuntimeError(f"rollouts have no field {name!r}; present: {sorted(data)}")
        return data

    def fetch_present(self, *names: str) -> dict[str, Any]:
        """Return the fields that exist, as :meth:`fetch` does."""
        data = _get(self.batch.keys, self.batch.partition_id, *names)
        return {name: _pad(data[name]) for name in names if name in data}

    def fetch_rows(self, *names: str) -> dict[str, list[torch.Tensor]]:
        """Return fields of tokens by name, as one tensor without padding for each row."""
        data = _get(self.batch.keys, self.batch.partition_id, *names)
        return {name: list(data[name].unbind()) for name in names}

    def fetch_reward_infos(self) -> list[Mapping[str, Any]]:
        """Return :func:`prime_ext.methods.store.reward_info` of each row."""
        return fetch_reward_infos(self.keys, self.batch.partition_id)

    def write(self, **fields: torch.Tensor) -> KVBatchMeta:
        """Write fields with a value for each row ``(B,)`` or each response token ``(B, T)``.

        Return the rows with all their fields.
        """
        data = TensorDict({}, batch_size=len(self))
        for name, value in fields.items():
            if value.dim() > 1:
                rows = zip(value, self.batch.tags, strict=True)
                value = _build_jagged([row[: tag["response_len"]] for row, tag in rows])
            data[name] = value
        return tq.kv_batch_put(keys=self.keys, partition_id=self.batch.partition_id, fields=data)

    def select(self, rows: Sequence[int]) -> "TransferQueueStore":
        """Return some of the rows, in this order."""
        picked = {
            "keys": [self.batch.keys[row] for row in rows],
            "tags": [self.batch.tags[row] for row in rows],
        }
        return TransferQueueStore(replace(self.batch, **picked))

    def build_request(self, fields: Sequence[str], **options: Any) -> KVBatchMeta:
        """Return a worker's request: the rows, the fields to fetch, and its options."""
        return replace(self.batch, keys=self.keys, fields=list(fields), extra_info=options)

    @contextmanager
    def add_rows(
        self,
        keys: Sequence[str],
        fields: Mapping[str, Sequence[torch.Tensor]],
        multiple: int,
        end_token: int,
    ) -> Iterator["TransferQueueStore"]:
        """Add rollouts and verl's padding during the block, to a multiple of ``multiple`` rows.

        ``fields`` have a tensor for each rollout, ``prompts`` and ``responses`` among them.
        """
        pairs = zip(fields["prompts"], fields["responses"], strict=True)
        sizes = [(len(prompt), len(response)) for prompt, response in pairs]
        tags = [
            {"prompt_len": left, "response_len": right, "seq_len": left + right}
            for left, right in sizes
        ]
        data = TensorDict(
            {name: _build_jagged(rows) for name, rows in fields.items()}, batch_size=len(keys)
        )
        batch = replace(self.batch, keys=[*self.batch.keys, *keys], tags=[*self.batch.tags, *tags])
        try:
            tq.kv_batch_put(
                keys=list(keys), partition_id=batch.partition_id, fields=data, tags=tags
            )
            batch = upsample_batch_to_divisible_size(batch, multiple, end_token)
            yield TransferQueueStore(batch)
        finally:
            clear(batch.keys[len(self) :], batch.partition_id)

    def refuse_images(self, feature: str) -> None:
        """Raise RuntimeError if a row has images or videos, which ``feature`` does not support."""
        data = _get(self.batch.keys, self.batch.partition_id, _MULTI_MODAL)
        values = _list_values(data[_MULTI_MODAL]) if _MULTI_MODAL in data else []
        for key, value in zip(self.batch.keys, values, strict=False):
            if value:
                raise RuntimeError(
                    f"rollout {key} has images or videos, which are not for {feature}"
                )


def _pad(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _list_values(value)
    return value.to_padded_tensor(0) if value.is_nested else value


def fetch_reward_infos(keys: Sequence[str], partition_id: str | None) -> list[Mapping[str, Any]]:
    """Return :func:`reward_info` of each trajectory."""
    extras = _list_values(_get(keys, partition_id, _EXTRA)[_EXTRA]) if keys else []
    return [reward_info(key, extra) for key, extra in zip(keys, extras, strict=True)]


# ---- by partition --------------------------------------------------------------------------------

# Tag of a prompt: the error that ended one of its rollouts.
_ERROR = "prime_ext_error"


async def report_error(uid: str, partition_id: str, error: str) -> None:
    """Store the error that ended a rollout of this prompt, for :func:`read_errors`."""
    await tq.async_kv_put(key=uid, partition_id=partition_id, tag={_ERROR: error})


def read_errors(partition_id: str, uids: Collection[str]) -> list[str]:
    """Return the errors that ended rollouts of these prompts, at most one for each prompt."""
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    return [tags[uid][_ERROR] for uid in sorted(uids) if _ERROR in tags.get(uid, {})]


def find_cut_off(
    partition_id: str,
    tags: Mapping[str, dict],
    limit: int,
    longest: float,
    end_tokens: Collection[int],
) -> set[str]:
    """Return the keys of responses that were cut off: their last token is not in ``end_tokens``.

    They have ``limit`` tokens, or ``longest`` together with their prompt.
    """
    full = [
        key
        for key, tag in tags.items()
        if tag["response_len"] >= limit or tag["seq_len"] >= longest
    ]
    if not full:
        return set()
    responses = _get(full, partition_id, "responses")["responses"].unbind()
    return {
        key
        for key, response in zip(full, responses, strict=True)
        if int(response[-1]) not in end_tokens
    }


def clear(keys: Sequence[str], partition_id: str | None) -> None:
    """Delete trajectories from the store."""
    tq.kv_clear(partition_id=partition_id, keys=list(keys))
