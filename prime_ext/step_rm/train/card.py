# SPDX-License-Identifier: Apache-2.0
"""The model card."""

from typing import Any

from prime_ext.step_rm.labels import LABELS
from prime_ext.step_rm.pairs import PairFormat

_METRICS = ("accuracy", "macro_f1", "nll", "ece")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _table(heading: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"| {heading} | steps | majority | accuracy | macro-F1 | NLL | ECE |", "| --- " * 7 + "|"]
    for name, row in rows.items():
        values = " | ".join(_number(row[key]) for key in ("majority", *_METRICS))
        lines.append(f"| {name} | {row['steps']} | {values} |")
    return [*lines, ""]


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
        "| split | " + " | ".join(next(iter(results["data"].values()))) + " |",
        "| --- " * (1 + len(next(iter(results["data"].values())))) + "|",
        *(f"| {name} | " + " | ".join(map(str, counts.values())) + " |" for name, counts in results["data"].items()),
        "",
        "Splits are by question; near duplicates of a question are on the same side.",
        "",
        "## Results",
        "",
    ]
    reports: dict[str, dict[str, Any]] = {name: results[name] for name in ("validation", "test") if name in results}
    lines += _table("split", reports)
    for name, part in reports.items():
        before = part["uncalibrated"]
        lines += [f"### {name.capitalize()}", ""]
        lines += [f"Without the temperature: NLL {before['nll']:.4f}, ECE {before['ece']:.4f}.", ""]
        lines += ["| label | steps | precision | recall | F1 |", "| --- " * 5 + "|"]
        for label, row in part["classes"].items():
            values = " | ".join(_number(row[key]) for key in ("precision", "recall", "f1"))
            lines.append(f"| {label} | {row['steps']} | {values} |")
        lines += ["", *_table("step index", part["by_step_index"]), *_table("source", part["by_source"])]
    if "test" in results:
        lines += [
            "The validation split chose checkpoint and temperature; the test split was read once, at the end.",
            "",
        ]
    lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join(lines) + "\n"
