# SPDX-License-Identifier: Apache-2.0
"""Online filter of prompts with a training signal (PRIME, arXiv 2502.01456, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

KEPT = "kept"
TOO_HARD = "too_hard"
TOO_EASY = "too_easy"
TRUNCATED = "truncated"
FAILED = "failed"

# Bounds are inclusive, and 4/5 rollouts must count as 0.8, which a mean of floats may miss.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class AccuracyBand:
    """Keep a prompt when ``lower <= mean accuracy of its rollouts <= upper``.

    Attributes:
        lower: inclusive lower bound in [0, 1].
        upper: inclusive upper bound in [0, 1], not below ``lower``.
        drop_truncated: also drop the prompt when any rollout was cut off by the limit of its
            length.
    """

    lower: float = 0.2
    upper: float = 0.8
    drop_truncated: bool = False

    def classify(self, accuracies: Sequence[float], truncated: Sequence[bool]) -> str:
        """Return a prompt's verdict from accuracies and truncations of its finished rollouts."""
        if not accuracies:
            return FAILED
        if self.drop_truncated and any(truncated):
            return TRUNCATED
        mean = sum(accuracies) / len(accuracies)
        if mean < self.lower - _TOLERANCE:
            return TOO_HARD
        if mean > self.upper + _TOLERANCE:
            return TOO_EASY
        return KEPT
