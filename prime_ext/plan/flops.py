# SPDX-License-Identifier: Apache-2.0
"""Passes of a step over its tokens, and their FLOPs; docs/explanation/decisions/plan.md says why not verl's counter.

A forward pass costs 2 FLOPs per token and weight, a backward pass 4 (2 for the gradient of the activations, 2 for that
of the weights), and recomputing activations another forward pass. Attention adds 2 FLOPs per pair of tokens, channel
and layer to a forward pass, causal masking taken into account.
"""

from dataclasses import dataclass

FORWARD, ACTIVATION_GRADIENT, WEIGHT_GRADIENT = 2, 2, 2


@dataclass(frozen=True)
class Passes:
    """How often a model goes over every token of a step; one forward pass unless told otherwise.

    Attributes:
        flops_per_token_and_weight: the number before N in "10 N FLOPs per token".
        attention_forwards: attention has no weights: its backward pass costs two forward passes, whatever is trained.
    """

    flops_per_token_and_weight: float = FORWARD
    attention_forwards: float = 1

    def times(self, number: float) -> "Passes":
        """The same, so many times."""
        return Passes(number * self.flops_per_token_and_weight, number * self.attention_forwards)


def training_passes(recompute: bool, adapter: bool = False, share: float = 1) -> Passes:
    """One pass of gradient descent over the tokens, through the last ``share`` of the layers backwards.

    Args:
        recompute: whether activations are not kept, but computed again within the backward pass.
        adapter: whether only an adapter is trained, so that the weights get no gradient.
        share: of the layers.
    """
    forward, gradients = 1 + share * recompute, ACTIVATION_GRADIENT + (0 if adapter else WEIGHT_GRADIENT)
    return Passes(FORWARD * forward + gradients * share, forward + 2 * share)


def flops(passes: Passes, weights: int, attention_width: int, tokens: int, length: float) -> float:
    """FLOPs of the passes over ``tokens`` tokens in sequences of ``length``.

    Args:
        passes: from :func:`training_passes`, or of another kind.
        weights: weights that take part in matrix products: all but the input embedding.
        attention_width: layers x heads x dimensions of a head.
        tokens: prompt and response tokens of all sequences.
        length: tokens of a sequence.
    """
    products = float(passes.flops_per_token_and_weight) * weights * tokens
    return products + 2.0 * attention_width * length * tokens * passes.attention_forwards
