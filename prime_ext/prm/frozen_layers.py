# SPDX-License-Identifier: Apache-2.0
"""Training a language model in its last layers only."""

from typing import Any


def train_last_layers(model: Any, count: int) -> Any:
    """Freeze a causal language model of transformers but for its last ``count`` decoder layers; returns it.

    Raises:
        ValueError: it has fewer.
    """
    layers = model.get_decoder().layers
    if count > len(layers):
        raise ValueError(f"prm.trainable_layers={count} must be at most {len(layers)}, the decoder layers of the model")
    model.requires_grad_(False)
    layers[len(layers) - count :].requires_grad_(True)
    return model
