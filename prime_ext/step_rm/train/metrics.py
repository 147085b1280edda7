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


def class_f1(confusion_CC: torch.Tensor) -> torch.Tensor:
    """F1 of each class, (C,): 2 TP / (2 TP + FP + FN); nan for a class that neither occurs nor is predicted."""
    hit_C = confusion_CC.diagonal().double()
    return 2 * hit_C / (confusion_CC.sum(0) + confusion_CC.sum(1)).double()


def macro_f1(confusion_CC: torch.Tensor) -> float:
    """Mean F1 over the classes that occur or are predicted."""
    return float(class_f1(confusion_CC).nanmean())


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
        "macro_f1": macro_f1(confusion(predicted_N, class_N)),
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
    """Everything about one split.

    Args:
        logits_NC: before division by the temperature.
        class_N: true classes.
        step_index: from 0, of each step.
        sources: of each step.
        temperature: of the calibrated numbers; the ones without it are in ``uncalibrated``.
    """
    predicted_N = logits_NC.argmax(-1)
    table_CC = confusion(predicted_N, class_N)
    count_C, f1_C = table_CC.sum(1), class_f1(table_CC)
    places: dict[str, list[int]] = defaultdict(list)
    origins: dict[str, list[int]] = defaultdict(list)
    for row, (index, source) in enumerate(zip(step_index, sources, strict=True)):
        places[str(index) if index < LAST_INDEX else f"{LAST_INDEX}+"].append(row)
        origins[source].append(row)

    def part(rows: list[int]) -> dict[str, float]:
        chosen = torch.tensor(rows)
        values = headline(logits_NC[chosen], class_N[chosen], temperature)
        majority = float(torch.bincount(class_N[chosen], minlength=len(LABELS)).max() / len(rows))
        return {"steps": len(rows), "majority": majority, **values}

    return {
        "steps": len(class_N),
        "majority": float(count_C.max() / len(class_N)),
        **headline(logits_NC, class_N, temperature),
        "uncalibrated": {key: headline(logits_NC, class_N)[key] for key in ("nll", "ece")},
        "classes": {
            str(label): {
                "steps": int(count_C[at]),
                "precision": _ratio(table_CC[at, at], table_CC[:, at].sum()),
                "recall": _ratio(table_CC[at, at], count_C[at]),
                "f1": None if f1_C[at].isnan() else float(f1_C[at]),
            }
            for at, label in enumerate(LABELS)
        },
        "confusion": table_CC.tolist(),
        "by_step_index": {name: part(places[name]) for name in sorted(places)},
        "by_source": {name: part(origins[name]) for name in sorted(origins)},
    }


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> float | None:
    return float(part / whole) if whole else None


# ---- the model card ----


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _table(heading: str, rows: dict[str, dict[str, Any]], columns: dict[str, str]) -> list[str]:
    """A row for each name, with its steps and the columns by their headings."""
    lines = [f"| {heading} | steps | {' | '.join(columns.values())} |", "| --- " * (2 + len(columns)) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['steps']} | {' | '.join(_number(row[key]) for key in columns)} |")
    return [*lines, ""]


_OF_PARTS = {"majority": "majority", "accuracy": "accuracy", "macro_f1": "macro-F1", "nll": "NLL", "ece": "ECE"}
_OF_CLASSES = {"precision": "precision", "recall": "recall", "f1": "F1"}


def model_card(
    base: str, pair_format: PairFormat, temperature: float, results: dict[str, Any], versions: dict[str, str]
) -> str:
    """Markdown: what the model is, how to use it, and how good it is.

    Args:
        base: name of the model it was made of.
        pair_format: what it reads.
        temperature: its logits are divided by it.
        results: a report by split, and ``data`` with the counts by split.
        versions: of the libraries.
    """
    shown = "all previous steps" if pair_format.previous == 0 else f"the previous {pair_format.previous} step(s)"
    question = "the question, " if pair_format.question else ""
    columns = list(next(iter(results["data"].values())))
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        "---",
        "",
        "# Step reward model",
        "",
        f"Judges one step of a response as {', '.join(map(str, LABELS))} (wrong, neutral, right). It reads {question}"
        f"{shown} and the current step ({pair_format.layout} layout, at most {pair_format.max_length} tokens). "
        "The step score is the probability of the label 1.",
        "",
        *([] if pair_format.question else ["It never sees the question, so it cannot check a step against it.", ""]),
        f"Made from `{base}`. Logits are to be divided by the temperature {temperature:.4f}; the scorers of prime_ext "
        "do so, a server alone does not.",
        "",
        "## Data",
        "",
        "| split | " + " | ".join(columns) + " |",
        "| --- " * (1 + len(columns)) + "|",
        *(f"| {name} | " + " | ".join(map(str, counts.values())) + " |" for name, counts in results["data"].items()),
        "",
        "Splits are by question; near duplicates of a question are on the same side.",
        "",
        "## Results",
        "",
    ]
    reports: dict[str, dict[str, Any]] = {name: results[name] for name in ("validation", "test") if name in results}
    lines += _table("split", reports, _OF_PARTS)
    for name, part in reports.items():
        before = part["uncalibrated"]
        lines += [f"### {name.capitalize()}", ""]
        lines += [f"Without the temperature: NLL {before['nll']:.4f}, ECE {before['ece']:.4f}.", ""]
        lines += _table("label", part["classes"], _OF_CLASSES)
        lines += _table("step index", part["by_step_index"], _OF_PARTS) + _table("source", part["by_source"], _OF_PARTS)
    if "test" in results:
        lines += [
            "The validation split chose checkpoint and temperature; the test split was read once, at the end.",
            "",
        ]
    lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join(lines) + "\n"
