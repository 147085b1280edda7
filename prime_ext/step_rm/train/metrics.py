# SPDX-License-Identifier: Apache-2.0
"""How good a step classifier is, and the temperature that makes its probabilities honest.

Axes: N steps, C = 3 classes in the order -1, 0, 1.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from prime_ext.step_rm.labels import LABELS

# Steps from this index on are one row of the table.
LAST_INDEX = 9


def confusion(predicted_N: torch.Tensor, class_N: torch.Tensor) -> torch.Tensor:
    """Counts, (C, C): row the true class, column the predicted one."""
    n = len(LABELS)
    return torch.bincount(class_N * n + predicted_N, minlength=n * n).reshape(n, n)


def class_rates(confusion_CC: torch.Tensor) -> dict[str, torch.Tensor]:
    """Precision, recall and F1, 2 TP / (2 TP + FP + FN), of each class, (C,); nan for none that it could be of."""
    hit_C, predicted_C, true_C = confusion_CC.diagonal(), confusion_CC.sum(0), confusion_CC.sum(1)
    f1_C = 2 * hit_C.double() / (predicted_C + true_C)
    return {"precision": hit_C / predicted_C, "recall": hit_C / true_C, "f1": f1_C}


def fit_temperature(logits_NC: torch.Tensor, class_N: torch.Tensor) -> float:
    """The temperature that minimises the negative log-likelihood, by golden-section search on its logarithm.

    The likelihood of 1 / T is concave, so there is one minimum. Values at the bounds, 0.05 and 20, mean that the
    classes are told apart without error, or not at all.
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
    """Accuracy, macro-F1 and negative log-likelihood."""
    scaled_NC = logits_NC.double() / temperature
    predicted_N = scaled_NC.argmax(-1)
    return {
        "accuracy": float((predicted_N == class_N).double().mean()),
        # Of the classes that occur or are predicted.
        "macro_f1": float(class_rates(confusion(predicted_N, class_N))["f1"].nanmean()),
        "nll": float(F.cross_entropy(scaled_NC, class_N)),
    }


def report(
    logits_NC: torch.Tensor,
    class_N: torch.Tensor,
    step_index: Sequence[int],
    sources: Sequence[str],
    temperature: float,
) -> dict[str, Any]:
    """Everything about one split; numbers are of the logits over the temperature.

    Args:
        logits_NC, class_N: scores and true classes.
        step_index, sources: of each step; the index counts from 0.
        temperature: by which the logits are divided.
    """
    table_CC = confusion(logits_NC.argmax(-1), class_N)
    rates = class_rates(table_CC)
    places: dict[str, list[int]] = defaultdict(list)
    origins: dict[str, list[int]] = defaultdict(list)
    for row, (index, source) in enumerate(zip(step_index, sources, strict=True)):
        places[str(index) if index < LAST_INDEX else f"{LAST_INDEX}+"].append(row)
        origins[source].append(row)

    def part(rows: Sequence[int]) -> dict[str, float]:
        chosen = torch.tensor(rows)
        majority = float(torch.bincount(class_N[chosen], minlength=len(LABELS)).max() / len(rows))
        return {"steps": len(rows), "majority": majority, **headline(logits_NC[chosen], class_N[chosen], temperature)}

    return {
        **part(range(len(class_N))),
        "classes": {
            str(label): {
                "steps": int(table_CC[at].sum()),
                **{name: None if rate_C[at].isnan() else float(rate_C[at]) for name, rate_C in rates.items()},
            }
            for at, label in enumerate(LABELS)
        },
        "confusion": table_CC.tolist(),
        "by_step_index": {name: part(places[name]) for name in sorted(places)},
        "by_source": {name: part(origins[name]) for name in sorted(origins)},
    }
