# SPDX-License-Identifier: Apache-2.0
"""Ids of prompts, and prompts as JSON in a checkpoint, since JSON cannot execute code."""

import json
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from prime_ext.config.checks import SettingsError


def set_uids(prompts: TensorDict, uids: Sequence[str]) -> None:
    """Set the ids of prompts, in verl's field and type."""
    prompts["uid"] = tu.get_tensordict({"uid": np.array(uids, dtype=object)})["uid"]


def pack_prompts(prompts: TensorDict) -> dict[str, dict]:
    """Return the fields of prompts by name, in a form that JSON preserves.

    Tensors become lists of numbers with their dtype, other fields one value per prompt. Raises
    SettingsError: a value of the dataset is not a text, number, list or mapping of such.
    """
    tensors = {}
    values = {}
    for name in prompts.keys():
        field = prompts.get(name)
        if isinstance(field, torch.Tensor):
            tensors[name] = {
                "dtype": str(field.dtype).removeprefix("torch."),
                "values": field.tolist(),
            }
        else:
            values[name] = field.tolist()
            if not _is_plain(values[name]):
                first = reprlib.repr(values[name][0])
                raise SettingsError(
                    f"data.train_files: {name} of a prompt holds {first}; checkpoints keep prompts"
                    " as JSON, so a dataset may hold texts, numbers, lists and mappings with texts"
                    " as keys"
                )
    return {"tensors": tensors, "values": values}


def unpack_prompts(data: dict[str, dict]) -> TensorDict:
    """Invert :func:`pack_prompts`."""
    tensors = {
        name: torch.tensor(field["values"], dtype=getattr(torch, field["dtype"]))
        for name, field in data["tensors"].items()
    }
    return tu.get_tensordict({**tensors, **data["values"]})


def _is_plain(value: Any) -> bool:
    """Return whether JSON preserves a value, by representations, because NaN != NaN."""
    try:
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError):
        return False
