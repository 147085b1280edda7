# SPDX-License-Identifier: Apache-2.0
"""Training a language model in its last layers only. Nothing here imports torch or verl."""

import math
from typing import Any


def number_of_layers(wanted: int | float, layers: int) -> int:
    """Number of layers that are trained: ``wanted`` itself, or below 1 that share of them, rounded up."""
    return math.ceil(wanted * layers) if wanted < 1 else int(wanted)


def train_last_layers(model: Any, wanted: int | float) -> Any:
    """Freeze a causal language model of transformers but for its last decoder layers, and return it.

    ``wanted`` is their number, or below 1 a share of all. Raises ValueError where the model has fewer.
    """
    layers = model.get_decoder().layers
    count = number_of_layers(wanted, len(layers))
    if count > len(layers):
        raise ValueError(f"prm.trainable_layers={count} must be at most {len(layers)}, the decoder layers of the model")
    model.requires_grad_(False)
    layers[len(layers) - count :].requires_grad_(True)
    return model
