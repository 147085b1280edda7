# SPDX-License-Identifier: Apache-2.0
"""How good a step classifier is, the temperature that makes its probabilities honest, and the model card.

Axes: N steps, C = 3 classes in the order -1, 0, 1.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from prime_ext.step_rm.description import PairFormat
from prime_ext.step_rm.labels import LABELS

ECE_BINS = 15
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


def expected_calibration_error(probability_NC: torch.Tensor, class_N: torch.Tensor) -> float:
    """Mean distance of confidence and accuracy over bins of equal width, weighted by their size (Guo et al. 2017)."""
    confidence_N, predicted_N = probability_NC.max(-1)
    right_N = (predicted_N == class_N).double()
    bin_N = (confidence_N * ECE_BINS).ceil().long().clamp(1, ECE_BINS) - 1
    gap_K = torch.zeros(ECE_BINS, dtype=torch.float64)
    gap_K.index_add_(0, bin_N, confidence_N.double() - right_N)
    return float(gap_K.abs().sum() / len(class_N))


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
    """Accuracy, macro-F1, negative log-likelihood and expected calibration error."""
    scaled_NC = logits_NC.double() / temperature
    predicted_N = scaled_NC.argmax(-1)
    return {
        "accuracy": float((predicted_N == class_N).double().mean()),
        # Of the classes that occur or are predicted.
        "macro_f1": float(class_rates(confusion(predicted_N, class_N))["f1"].nanmean()),
        "nll": float(F.cross_entropy(scaled_NC, class_N)),
        "ece": expected_calibration_error(scaled_NC.softmax(-1), class_N),
    }


def report(
    logits_NC: torch.Tensor,
    class_N: torch.Tensor,
    step_index: Sequence[int],
    sources: Sequence[str],
    temperature: float,
) -> dict[str, Any]:
    """Everything about one split; numbers are of the logits over the temperature, those in ``uncalibrated`` of logits.

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
        "uncalibrated": {key: headline(logits_NC, class_N)[key] for key in ("nll", "ece")},
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


# ---- the model card ----

_CARD = """---
library_name: transformers
pipeline_tag: text-classification
---

# Step reward model

Judges one step of a response as {labels} (wrong, neutral, right). It reads {question}{shown} and the current step \
({format.layout} layout, at most {format.max_length} tokens). The step score is the probability of the label 1.

{blind}Made from `{base}`. Logits are to be divided by the temperature {temperature:.4f}; the scorers of prime_ext do \
so, a server alone does not.

## Data

{data}
Splits are by question; near duplicates of a question are on the same side.

## Results

{results}{tested}Versions: {versions}.
"""
_BLIND = "It never sees the question, so it cannot check a step against it.\n\n"
_TESTED = "The validation split chose checkpoint and temperature; the test split was read once, at the end.\n\n"
_OF_PARTS = {
    "steps": "steps", "majority": "majority", "accuracy": "accuracy", "macro_f1": "macro-F1", "nll": "NLL", "ece": "ECE"
}  # fmt: skip
_OF_CLASSES = {"steps": "steps", "precision": "precision", "recall": "recall", "f1": "F1"}


def _table(heading: str, rows: dict[str, dict[str, Any]], columns: dict[str, str]) -> str:
    """A row for each name, with the columns by their headings."""
    lines = [f"| {heading} | {' | '.join(columns.values())} |", "| --- " * (1 + len(columns)) + "|"]
    for name, row in rows.items():
        cells = (
            "-" if row[key] is None else f"{row[key]:.4f}" if isinstance(row[key], float) else str(row[key])
            for key in columns
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def model_card(
    base: str, pair_format: PairFormat, temperature: float, results: dict[str, Any], versions: dict[str, str]
) -> str:
    """Markdown: what the model is, how to use it, and how good it is.

    ``results`` holds a :func:`report` by split, and in ``data`` the counts by split; ``base`` is what it was made of.
    """
    reports: dict[str, dict[str, Any]] = {name: results[name] for name in ("validation", "test") if name in results}
    parts = [_table("split", reports, _OF_PARTS)]
    for name, part in reports.items():
        before = part["uncalibrated"]
        parts.append(
            f"### {name.capitalize()}\n\nWithout the temperature: NLL {before['nll']:.4f}, ECE {before['ece']:.4f}.\n"
        )
        parts.append(_table("label", part["classes"], _OF_CLASSES))
        parts += [_table(what, part[f"by_{what.replace(' ', '_')}"], _OF_PARTS) for what in ("step index", "source")]
    columns = {name: name for name in next(iter(results["data"].values()))}
    return _CARD.format(
        labels=", ".join(map(str, LABELS)),
        question="the question, " if pair_format.question else "",
        shown=f"the previous {pair_format.previous} step(s)" if pair_format.previous else "all previous steps",
        format=pair_format,
        blind="" if pair_format.question else _BLIND,
        base=base,
        temperature=temperature,
        data=_table("split", results["data"], columns),
        results="\n".join(parts) + "\n",
        tested=_TESTED if "test" in results else "",
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
    )
