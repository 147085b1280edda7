# SPDX-License-Identifier: Apache-2.0
"""Training a language model in its last layers only. Nothing here imports torch or verl."""

import math
from typing import Any


def count_layers(share: float, layers: int) -> int:
    """Return the number of layers that are trained: this share of them, above 0 and below 1,
    rounded up."""
    return math.ceil(share * layers)


def train_last_layers(model: Any, share: float) -> Any:
    """Freeze a causal language model of transformers but for the last ``share`` of its decoder
    layers; return it."""
    layers = model.get_decoder().layers
    model.requires_grad_(False)
    layers[len(layers) - count_layers(share, len(layers)) :].requires_grad_(True)
    return model
