# SPDX-License-Identifier: Apache-2.0
"""Training of only the last layers of a language model. Nothing here imports torch or verl."""

import math
from typing import Any


def count_layers(share: float, layers: int) -> int:
    """Return the number of trained layers: this share, above 0 and below 1, rounded up."""
    return math.ceil(share * layers)


def train_last_layers(model: Any, share: float) -> Any:
    """Freeze all but the last ``share`` of layers of a causal transformers model; return it."""
    layers = model.get_decoder().layers
    model.requires_grad_(False)
    layers[len(layers) - count_layers(share, len(layers)) :].requires_grad_(True)
    return model
