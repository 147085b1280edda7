# SPDX-License-Identifier: Apache-2.0
"""Hours of a run from the FLOPs of its training passes: an estimate that no run on a GPU has confirmed.

FLOPs are divided by the peak of a device and an assumed utilization. Memory and not FLOPs bounds generation; its share
comes from the paper (arXiv 2502.01456, table 2: 8 A800, Eurus-2-7B, responses of up to 3,072 tokens): rollout 281.7 s,
policy update 156.6 s, everything except those and the PRM 91.1 s.

A forward pass costs 2 FLOPs per token and weight, a backward pass 4 (2 for the gradient of the activations, 2 for that
of the weights), and recomputing activations another forward pass. Attention adds 2 FLOPs per pair of tokens, channel
and layer to a forward pass, with causal masking taken into account. docs/explanation/decisions/plan.md says why verl's
counter does not do.
"""

from dataclasses import dataclass

from prime_ext.plan.model_shape import ModelShape

# Dense bf16 FLOPs per second, from the vendor's data sheets.
DEVICES = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
# An assumption. The paper's update of 156.6 s (6 N, 1,024 rollouts) is 18 % of the peak if a response had 1,500 tokens
# on average, and 36 % at 3,000.
UTILIZATION = 0.25
ROLLOUT_OVER_UPDATE = 281.7 / 156.6
REST_OVER_UPDATE = 91.1 / 156.6


@dataclass(frozen=True)
class Passes:
    """How often a model goes over every token of a step; the default is one forward pass.

    Attributes:
        per_weight: FLOPs per token and weight.
        attention: forward passes of attention. It has no weights, so its backward pass costs two forward passes.
    """

    per_weight: float = 2
    attention: float = 1

    def times(self, number: float) -> "Passes":
        """Return the passes repeated ``number`` times."""
        return Passes(number * self.per_weight, number * self.attention)

    def flops(self, shape: ModelShape, tokens: int, length: float) -> float:
        """Return the FLOPs over ``tokens`` tokens in sequences of ``length`` tokens."""
        products = float(self.per_weight) * shape.product_weights * tokens
        return products + 2.0 * shape.layers * shape.attention_width * length * tokens * self.attention


def training_passes(recompute: bool, adapter: bool = False, share: float = 1) -> Passes:
    """Return the passes of one epoch of training.

    Args:
        recompute: whether activations are computed again within the backward pass.
        adapter: whether an adapter alone is trained, so that the weights of the model get no gradient.
        share: of the layers, from the last one, that the backward pass goes through.
    """
    return Passes(2 + share * (2 * recompute + (2 if adapter else 4)), 1 + share * (recompute + 2))


def step_seconds(training: float, update: float, n_devices: int, share_of_length: float) -> dict[str, float]:
    """Return the seconds of a training step by kind of device.

    Args:
        training: FLOPs of all training passes and scores of a step, with sequences of full length.
        update: FLOPs of the policy's update among them.
        n_devices: of the run.
        share_of_length: mean length of a sequence over the longest.
    """
    # The time of generation and of everything else grows with that of the update.
    flops = share_of_length * (training + update * (ROLLOUT_OVER_UPDATE + REST_OVER_UPDATE))
    return {name: flops / (n_devices * peak * UTILIZATION) for name, peak in DEVICES.items()}
