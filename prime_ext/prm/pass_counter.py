# SPDX-License-Identifier: Apache-2.0
"""How many tokens go through a model forwards and backwards, counted by hooks on the model itself."""

from typing import Any

import torch


class PassCounter:
    """Counts the tokens of the forward and backward passes of a module.

    Padding does not count if the model receives an attention mask. Recomputed activations do not count either: the
    hooks sit on the whole model, not on its layers.

    Attributes:
        forward: tokens since :meth:`take` was last called.
        backward: tokens whose gradient was computed since then.
    """

    def __init__(self, module: torch.nn.Module):
        # Numbers on the device where there is padding, so that no pass waits for it.
        self.forward: int | torch.Tensor = 0
        self.backward: int | torch.Tensor = 0
        module.register_forward_hook(self._after_forward, with_kwargs=True)

    def take(self) -> dict[str, int]:
        """The counts, which start again at 0."""
        counts = {"forward": int(self.forward), "backward": int(self.backward)}
        self.forward = self.backward = 0
        return counts

    def _after_forward(self, module: torch.nn.Module, arguments: tuple, keywords: dict, output: Any) -> None:
        tokens = _tokens(arguments, keywords)
        self.forward = self.forward + tokens
        trained = next((value for value in _tensors(output) if value.requires_grad), None)
        if trained is not None:
            trained.register_hook(lambda gradient: self._after_backward(tokens))

    def _after_backward(self, tokens: int | torch.Tensor) -> None:
        self.backward = self.backward + tokens


def _tokens(arguments: tuple, keywords: dict) -> int | torch.Tensor:
    ids = keywords.get("input_ids", arguments[0] if arguments else None)
    mask = keywords.get("attention_mask")
    if ids is None:
        raise RuntimeError("the model was called without input_ids; its passes cannot be counted")
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape == ids.shape:
        return mask.sum()
    return ids.numel()


def _tensors(output: Any) -> list[torch.Tensor]:
    values = output.values() if hasattr(output, "values") else [output] if torch.is_tensor(output) else output
    return [value for value in values if torch.is_tensor(value)]
