# SPDX-License-Identifier: Apache-2.0
"""Protocol of the store of rollouts, and readers of its keys and rewards.

The key of a prompt is its id. The key of a trajectory is ``{id}_{session}_{output}``, so ids have
no underscore. The ids of verl's padding begin with ``pad``, those of earlier steps' rollouts with
``replay``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import isfinite, nan
from numbers import Real
from typing import Any, Protocol

import torch


def group_uid(key: str) -> str:
    """Return the prompt id of a trajectory."""
    return key.split("_", 1)[0]


def session_key(key: str) -> str:
    """Return the prompt id and session of a rollout, which all of its outputs share."""
    return key.rsplit("_", 1)[0]


def replay_key(number: int) -> str:
    """Return the key of a rollout of an earlier step; each of them counts as another prompt."""
    return f"replay{number:06d}_0_0"


class RolloutStore(Protocol):
    """Rows of verl's store of rollouts in a fixed order, read and written by their keys.

    A training step fetches once, when it begins, and writes once, when it ends. All other writes
    are for the PRM's workers (labels and weights of rows, rollouts of earlier steps), and all other
    reads fetch what they wrote.
    :class:`prime_ext.verl_adapter.rollout_store.TransferQueueStore` implements it.
    """

    def __len__(self) -> int: ...

    @property
    def keys(self) -> list[str]:
        """Return the trajectory's key of each row."""

    @property
    def padding(self) -> list[bool]:
        """Return whether verl appended each row as padding."""

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of prompt and response of each row."""

    @property
    def response_lengths(self) -> list[int]:
        """Return the number of tokens of the response of each row."""

    @property
    def groups(self) -> list[int]:
        """Return the number of each row's prompt, from 0 in order of appearance."""

    def fetch(self, *names: str) -> dict[str, Any]:
        """Return fields by name: 0-padded ``(B, T)`` tensors, ``(B,)`` numbers, or lists.

        Raises RuntimeError: a field is missing.
        """

    def fetch_present(self, *names: str) -> dict[str, Any]:
        """Return the fields that exist, as :meth:`fetch` does."""

    def fetch_rows(self, *names: str) -> dict[str, list[torch.Tensor]]:
        """Return fields of tokens by name, as one tensor without padding for each row."""

    def fetch_reward_infos(self) -> list[Mapping[str, Any]]:
        """Return :func:`reward_info` of each row."""

    def write(self, **fields: torch.Tensor) -> Any:
        """Write fields with a value for each row ``(B,)`` or each response token ``(B, T)``."""

    def select(self, rows: Sequence[int]) -> "RolloutStore":
        """Return some of the rows, in this order."""

    def build_request(self, fields: Sequence[str], **options: Any) -> Any:
        """Return a worker's request: the rows, the fields to fetch, and its options."""

    def add_rows(
        self,
        keys: Sequence[str],
        fields: Mapping[str, Sequence[torch.Tensor]],
        multiple: int,
        end_token: int,
    ) -> AbstractContextManager["RolloutStore"]:
        """Add rollouts and padding during the block, to a multiple of ``multiple`` rows."""

    def refuse_images(self, feature: str) -> None:
        """Raise RuntimeError if a row has images or videos, which ``feature`` does not support."""


def reward_info(key: str, extra: Any) -> Mapping[str, Any]:
    """Return the extra info of a trajectory's reward, or an empty one.

    Raises RuntimeError: it is not a mapping.
    """
    info = extra.get("reward_extra_info", {}) if isinstance(extra, Mapping) else extra
    if not isinstance(info, Mapping):
        raise RuntimeError(
            f"the reward's extra info of rollout {key} is a {type(info).__name__}; a reward"
            " function must return a dict with the key score, and its other keys are the extra"
            " info"
        )
    return info


def turn_rewards(key: str, extra: Any, name: str) -> list[float]:
    """Return a trajectory's ``tool_rewards`` or ``turn_scores``.

    Raises RuntimeError: they are not numbers.
    """
    values = extra.get(name) if isinstance(extra, Mapping) else None
    if not isinstance(values, list) or not all(
        isinstance(value, Real) and isfinite(value) for value in values
    ):
        raise RuntimeError(
            f"the agent loop of rollout {key} reports {name}={values!r}, and prime/turns=rewards"
            " needs a list of numbers; use verl's tool_agent, or choose prime/turns=none"
        )
    return [float(value) for value in values]


def average_counts(extras: Sequence[Any]) -> dict[str, float]:
    """Return the means of the counts in ``extra_fields``, by ``field/name``; missing ones are 0."""
    sums: Counter[str] = Counter()
    for extra in extras:
        for field, values in extra.items() if isinstance(extra, Mapping) else ():
            if field == "reward_extra_info" or not isinstance(values, Mapping):
                continue
            sums.update(
                {
                    f"{field}/{name}": value
                    for name, value in values.items()
                    if isinstance(value, Real)
                }
            )
    return {name: float(value) / len(extras) for name, value in sums.items()}


def read_label(key: str, info: Mapping[str, Any], name: str, is_needed: bool = True) -> float:
    """Return ``name`` of a reward's extra info; NaN where it is missing and not needed.

    Raises RuntimeError: it is missing, or not in [0, 1].
    """
    if name not in info:
        if not is_needed:
            return nan
        raise RuntimeError(
            f"the reward of rollout {key} has no {name!r} in its extra info (it has"
            f" {sorted(info)}); let the reward function return it, or set prime.label_key to one of"
            " those"
        )
    value = float(info[name])
    if not 0.0 <= value <= 1.0:
        raise RuntimeError(
            f"{name}={value} of rollout {key} is not in [0, 1]; PRIME needs an accuracy as label"
        )
    return value
