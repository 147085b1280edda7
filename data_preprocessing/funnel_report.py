# SPDX-License-Identifier: Apache-2.0
"""The report of a stage or of RL data as Markdown: what each rule removed, a funnel, what was counted, examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data_preprocessing.markdown_table import cell, table

BAR = 40


def _bar(share: float) -> str:
    return "█" * round(BAR * share)


def funnel(read: int, removed: Mapping[str, int], order: Sequence[str]) -> list[str]:
    """A bar for what is left after each stage that removed something."""
    left = read
    width = max(map(len, [*order, "written"]))
    lines = [f"{'read':<{width}} {_bar(1):<{BAR}} {left:>9,}"]
    for name in order:
        if removed.get(name):
            left -= removed[name]
            lines.append(f"{name:<{width}} {_bar(left / read):<{BAR}} {left:>9,}  (-{removed[name]:,})")
    return ["```text", *lines, "```", ""]


def _counted(report: Mapping[str, Any]) -> list[str]:
    """What stages counted without removing, and which test rows were given away."""
    lines = []
    if report.get("notes"):
        lines += ["## Counted", ""]
        lines += table(["stage: what", "number"], [[cell(name), f"{n:,}"] for name, n in report["notes"].items()])
    if report.get("compared"):
        lines += ["## Test problems that were given away", ""]
        if report["contamination"]:
            lines += table(
                ["task", "level", "training rows removed", "test rows that they give away"],
                [
                    [found["task"], found["level"], f"{found['training_rows']:,}", f"{found['test_rows']:,}"]
                    for found in report["contamination"]
                ],
            )
        lines += [*(f"- {cell(line)}" for line in report["compared"]), ""]
    return lines


def markdown(report: Mapping[str, Any]) -> str:
    """Counts by source, what the rules mean, a funnel per split and examples of what was removed."""
    rules = report["rules"]
    sources = report["sources"]
    used = [name for name in rules if any(found["removed"].get(name) for found in sources)]
    title = report.get("title", "Math RL data")
    lines = [f"# {title}", "", "Rows by source, and how many each rule removed; the first that applies counts.", ""]
    lines += table(
        ["split", "data source", "read", *used, "written"],
        [
            [
                found["split"],
                found["data_source"],
                f"{found['read']:,}",
                *(f"{found['removed'].get(name, 0):,}" for name in used),
                f"{found['written']:,}",
            ]
            for found in sources
        ],
    )
    lines += [f"- `{name}`: {meaning}" for name, meaning in rules.items()]
    lines += ["", "Inputs: " + ", ".join(report["inputs"]) + ".", ""]
    lines += _counted(report)
    for split in dict.fromkeys(found["split"] for found in sources):
        removed: Counter[str] = Counter()
        for found in sources:
            if found["split"] == split:
                removed.update(found["removed"])
        lines += [f"## What is left of {split}", ""]
        read = sum(found["read"] for found in sources if found["split"] == split)
        lines += funnel(read, removed, list(rules))
    for samples in sorted(report["samples"], key=lambda found: list(rules).index(found["rule"])):
        lines += [f"## Removed from {samples['split']} by {samples['rule']}", ""]
        lines += table(
            ["row", "seen", "problem", "answer"],
            [
                [
                    f"{row['file']} {row['row']}",
                    cell(row["evidence"]),
                    cell(row.get("problem", "")),
                    cell(row.get("answer", "")),
                ]
                for row in samples["rows"]
            ],
        )
    return "\n".join(lines).rstrip() + "\n"
