# SPDX-License-Identifier: Apache-2.0
"""Training a language model in its last layers only. Nothing here imports torch or verl."""

import math
from typing import Any


def count_layers(share: float, layers: int) -> int:
    """Return the number of trained layers: this share, above 0 and below 1, rounded up."""
    return math.ceil(share * layers)


def train_last_layers(model: Any, share: float) -> Any:
    """Freeze a causal model of transformers but for its last ``share`` of layers; return it."""
    layers = model.get_decoder().layers
    model.requires_grad_(False)
    layers[len(layers) - count_layers(share, len(layers)) :].requires_grad_(True)
    return model
