# SPDX-License-Identifier: Apache-2.0
"""Metrics of a step classifier (N steps, C = 3 classes in the order -1, 0, 1), and the temperature of its logits."""

from typing import Any

import torch
import torch.nn.functional as F

from prime_ext.step_rm.labels import LABELS


def confusion(predicted_N: torch.Tensor, class_N: torch.Tensor) -> torch.Tensor:
    """Return counts, (C, C): row the true class, column the predicted one."""
    n = len(LABELS)
    return torch.bincount(class_N * n + predicted_N, minlength=n * n).reshape(n, n)


def class_rates(confusion_CC: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return precision, recall and F1, 2 TP / (2 TP + FP + FN), of each class, (C,); nan where there is no case."""
    hit_C, predicted_C, true_C = confusion_CC.diagonal(), confusion_CC.sum(0), confusion_CC.sum(1)
    f1_C = 2 * hit_C.double() / (predicted_C + true_C)
    return {"precision": hit_C / predicted_C, "recall": hit_C / true_C, "f1": f1_C}


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


def headline(logits_NC: torch.Tensor, class_N: torch.Tensor, temperature: float = 1.0) -> dict[str, float]:
    """Return accuracy, macro-F1 and negative log-likelihood."""
    scaled_NC = logits_NC.double() / temperature
    predicted_N = scaled_NC.argmax(-1)
    return {
        "accuracy": float((predicted_N == class_N).double().mean()),
        # Of the classes that occur or are predicted.
        "macro_f1": float(class_rates(confusion(predicted_N, class_N))["f1"].nanmean()),
        "nll": float(F.cross_entropy(scaled_NC, class_N)),
    }


def report(logits_NC: torch.Tensor, class_N: torch.Tensor, temperature: float) -> dict[str, Any]:
    """Return everything about one split: its headline, the share of its most frequent class, and numbers by class."""
    table_CC = confusion(logits_NC.argmax(-1), class_N)
    rates = class_rates(table_CC)

    def one_class(at: int) -> dict[str, float | None]:
        numbers = {name: None if rate_C[at].isnan() else float(rate_C[at]) for name, rate_C in rates.items()}
        return {"steps": int(table_CC[at].sum()), **numbers}

    return {
        "steps": len(class_N),
        "majority": float(table_CC.sum(1).max() / len(class_N)),
        **headline(logits_NC, class_N, temperature),
        "classes": {str(label): one_class(at) for at, label in enumerate(LABELS)},
        "confusion": table_CC.tolist(),
    }
