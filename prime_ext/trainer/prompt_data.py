# SPDX-License-Identifier: Apache-2.0
"""Prompts as data that JSON can hold, so that a checkpoint's file of them can run nothing."""

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from verl.utils import tensordict_utils as tu

from prime_ext.config.settings import SettingsError


def prompts_to_data(prompts: TensorDict) -> dict[str, dict]:
    """Fields of prompts by name: tensors as lists of numbers with their dtype, other fields as one value per prompt.

    Raises:
        SettingsError: a value of the dataset is no text, number, list or mapping of such.
    """
    tensors, values = {}, {}
    for name in prompts.keys():
        field = prompts.get(name)
        if isinstance(field, torch.Tensor):
            tensors[name] = {"dtype": str(field.dtype).removeprefix("torch."), "values": field.tolist()}
        elif isinstance(field, NonTensorStack):
            values[name] = field.tolist()
            _check_plain(name, values[name])
        else:
            raise TypeError(f"field {name} of a prompt is a {type(field).__name__}, not one value per prompt")
    return {"tensors": tensors, "values": values}


def prompts_of_data(data: dict[str, dict]) -> TensorDict:
    """The inverse of :func:`prompts_to_data`."""
    tensors = {
        name: torch.tensor(field["values"], dtype=getattr(torch, field["dtype"]))
        for name, field in data["tensors"].items()
    }
    return tu.get_tensordict({**tensors, **data["values"]})


def _check_plain(name: str, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _check_plain(name, item)
    elif isinstance(value, dict) and all(type(key) is str for key in value):
        for key, item in value.items():
            _check_plain(f"{name}.{key}", item)
    elif value is not None and type(value) not in (str, bool, int, float):
        raise SettingsError(
            f"data.train_files: {name} of a prompt holds a {type(value).__name__}; checkpoints keep prompts as JSON, "
            f"so a dataset may hold texts, numbers, lists and mappings with texts as keys"
        )
