# SPDX-License-Identifier: Apache-2.0
"""Passes of a step over the rollouts' tokens, and their FLOPs.

A forward pass costs 2 FLOPs per token and weight, a backward pass 4 (2 for the gradient of the activations, 2 for that
of the weights), and recomputing activations another forward pass. Attention adds 2 FLOPs per pair of tokens, channel
and layer to a forward pass, causal masking taken into account.
"""

from dataclasses import dataclass

FORWARD, ACTIVATION_GRADIENT, WEIGHT_GRADIENT = 2, 2, 2


@dataclass(frozen=True)
class Passes:
    """How often a model goes over every token of the rollouts in a step.

    Attributes:
        forward: forward passes.
        repeated: forward passes repeated within a backward pass, because activations were not kept.
        backward: backward passes; a fraction where only so much of the model is trained.
        adapter: whether only an adapter is trained, so that the weights get no gradient.
    """

    forward: float = 0
    repeated: float = 0
    backward: float = 0
    adapter: bool = False

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(
            self.forward + other.forward,
            self.repeated + other.repeated,
            self.backward + other.backward,
            self.adapter or other.adapter,
        )

    @property
    def flops_per_token_and_weight(self) -> float:
        """The number before N in "10 N FLOPs per token"."""
        gradients = ACTIVATION_GRADIENT + (0 if self.adapter else WEIGHT_GRADIENT)
        return FORWARD * (self.forward + self.repeated) + gradients * self.backward

    @property
    def attention_forwards(self) -> float:
        """Attention has no weights: its backward pass costs two forward passes, whatever is trained."""
        return self.forward + self.repeated + 2 * self.backward


def training_passes(recompute: bool, adapter: bool = False, share: float = 1) -> Passes:
    """One pass of gradient descent over the rollouts, through the last ``share`` of the layers backwards."""
    return Passes(forward=1, repeated=share * recompute, backward=share, adapter=adapter)


def prm_passes(update_mode: str, reference: str, recompute: bool, adapter: bool = False) -> Passes:
    """All passes of the PRM's phase: reference, score and update.

    Args:
        update_mode: ``prm.update_mode``. ``before`` and ``after`` score in a pass of its own, ``interleaved`` takes the
            scores from the training pass, ``none`` only scores.
        reference: ``own`` (a pass of a frozen copy or of the PRM without its adapter), ``shared`` (log-probabilities
            that the policy's side has computed anyway), or ``twice`` (as verl's recipe for PRIME: once to score, once
            to update).
        recompute: whether activations are recomputed in the backward pass.
        adapter: whether only an adapter is trained.

    Raises:
        KeyError: an unknown mode or reference.
    """
    references = {"shared": 0, "own": 1, "twice": 2}[reference]
    scores = {"interleaved": 0, "before": 1, "after": 1, "none": 1}[update_mode]
    update = Passes() if update_mode == "none" else training_passes(recompute, adapter)
    return Passes(forward=references + scores) + update


def flops(passes: Passes, weights: int, attention_width: int, tokens: int, length: float) -> float:
    """FLOPs of the passes over ``tokens`` tokens in sequences of ``length``.

    Args:
        passes: from :func:`prm_passes` or :func:`training_passes`.
        weights: weights that take part in matrix products: all but the input embedding.
        attention_width: layers x heads x dimensions of a head.
        tokens: prompt and response tokens of all rollouts.
        length: tokens of a sequence.
    """
    products = float(passes.flops_per_token_and_weight) * weights * tokens
    return products + 2.0 * attention_width * length * tokens * passes.attention_forwards
