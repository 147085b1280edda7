# SPDX-License-Identifier: Apache-2.0
"""Metrics of a step classifier (N steps, C = 3 classes in the order -1, 0, 1), and the temperature of its logits."""

from typing import Any

import torch
import torch.nn.functional as F

from prime_ext.step_rm.labels import LABELS


def fit_temperature(logits_NC: torch.Tensor, class_N: torch.Tensor) -> float:
    """Return the temperature of the least negative log-likelihood, by golden-section search on its logarithm.

    The likelihood of 1 / T is concave, so there is one optimum. The bounds, 0.05 and 20, mean that the classes are
    separated without error, or not at all.
    """
    logits_NC = logits_NC.double()

    def loss(log_t: torch.Tensor) -> float:
        return float(F.cross_entropy(logits_NC / log_t.exp(), class_N))

    ratio = (5**0.5 - 1) / 2
    left, right = torch.tensor([0.05, 20.0], dtype=torch.float64).log()
    for _ in range(60):
        inner_left, inner_right = right - ratio * (right - left), left + ratio * (right - left)
        if loss(inner_left) < loss(inner_right):
            right = inner_right
        else:
            left = inner_left
    return float(((left + right) / 2).exp())


def report(logits_NC: torch.Tensor, class_N: torch.Tensor, temperature: float = 1.0) -> dict[str, Any]:
    """Return the share of the most frequent class, accuracy, macro-F1, negative log-likelihood, and rates by class.

    Rows of the confusion are true classes, columns predicted ones. A rate without a case is None.
    """
    scaled_NC = logits_NC.double() / temperature
    predicted_N = scaled_NC.argmax(-1)
    n = len(LABELS)
    confusion_CC = torch.bincount(class_N * n + predicted_N, minlength=n * n).reshape(n, n)
    hit_C, predicted_C, true_C = confusion_CC.diagonal(), confusion_CC.sum(0), confusion_CC.sum(1)
    f1_C = 2 * hit_C.double() / (predicted_C + true_C)
    rates = {"precision": hit_C / predicted_C, "recall": hit_C / true_C, "f1": f1_C}
    classes = {name: [None if rate.isnan() else float(rate) for rate in rate_C] for name, rate_C in rates.items()}
    return {
        "steps": len(class_N),
        "majority": float(true_C.max() / len(class_N)),
        "accuracy": float((predicted_N == class_N).double().mean()),
        # Of the classes that occur or are predicted.
        "macro_f1": float(f1_C.nanmean()),
        "nll": float(F.cross_entropy(scaled_NC, class_N)),
        "classes": {
            str(label): {"steps": int(true_C[at]), **{name: values[at] for name, values in classes.items()}}
            for at, label in enumerate(LABELS)
        },
        "confusion": confusion_CC.tolist(),
    }
