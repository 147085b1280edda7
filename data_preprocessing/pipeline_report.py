# SPDX-License-Identifier: Apache-2.0
"""Counts and samples of kept and removed rows, and their report in Markdown."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.report_page import Page

from .stages import Removal

# Samples of every rule and split.
MAX_SAMPLES = 5
MAX_SHOWN = 300
BAD = "bad_row"


def replace_half_characters(text: str) -> str:
    """Return the text with question marks for half characters, which cannot be written."""
    return text.encode("utf-8", "replace").decode("utf-8")


class Tally:
    """Counts of rows by ``(split, data_source)`` and rule, samples, and lines of removed rows.

    ``stages`` are those that remove rows, in the order of their lines in ``removed.jsonl``.

    Attributes:
        read: rows that were read.
        notes: other counts of stages, of rows that stay.
        given_away: numbers of the test rows that removed rows give away, by task and level.
    """

    def __init__(self, stages: Sequence[str]) -> None:
        self.read: Counter[tuple[str, str]] = Counter()
        self.notes: Counter[str] = Counter()
        self.given_away: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._removed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._samples: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        # A stage may run ahead of the next one.
        self._lines: dict[str, list[str]] = {stage: [] for stage in stages}

    def remove(
        self,
        stage: str,
        removal: Removal,
        split: str,
        source: str,
        file: str,
        row: int,
        shown: Mapping[str, str],
    ) -> None:
        """Count and list a removed row; ``shown`` is what a sample shows of it."""
        rule = removal.rule
        details = dict(removal.details)
        location = {
            "file": file,
            "row": row,
            "evidence": replace_half_characters(removal.evidence[:MAX_SHOWN]),
        }
        self._removed[split, source][rule] += 1
        if "task" in details:
            self.given_away[details["task"], details["level"]].append(str(details["task_row"]))
        samples = self._samples[split, rule]
        if len(samples) < MAX_SAMPLES:
            texts = {key: replace_half_characters(text[:MAX_SHOWN]) for key, text in shown.items()}
            samples.append({**location, **texts, **details})
        line = {"split": split, "data_source": source, "rule": rule, **location}
        self._lines[stage].append(
            json.dumps(line | ({"details": details} if details else {})) + "\n"
        )

    def describe(self, rules: Mapping[str, str]) -> dict[str, Any]:
        """Return counts and samples as JSON, with the rules in this order."""
        sources = []
        for split, source in sorted({*self.read, *self._removed}):
            counts = self._removed[split, source]
            removed = {rule: counts[rule] for rule in rules if counts[rule]}
            read = self.read[split, source]
            counted = {"read": read, "removed": removed, "written": read - sum(removed.values())}
            sources.append({"split": split, "data_source": source, **counted})
        samples = [
            {"split": split, "rule": rule, "rows": rows}
            for (split, rule), rows in self._samples.items()
        ]
        order = list(rules)
        samples.sort(key=lambda sample: (order.index(sample["rule"]), sample["split"]))
        return {"rules": dict(rules), "sources": sources, "samples": samples}

    def write(self, folder: Path, report: Mapping[str, Any]) -> None:
        """Write ``removed.jsonl`` (a line per removed row), ``report.json`` and ``report.md``."""
        write_text(
            folder / "removed.jsonl",
            "".join(line for lines in self._lines.values() for line in lines),
        )
        write_json(folder / "report.json", report)
        write_text(folder / "report.md", format_report(report))


def format_report(report: Mapping[str, Any]) -> str:
    """Return counts by source, meanings of the rules, and examples of removed rows."""
    sources = report["sources"]
    used = [
        name for name in report["rules"] if any(name in source["removed"] for source in sources)
    ]
    page = Page(report["title"])
    page.text("Rows by source, and how many each rule removed; the first that applies counts.")
    rows = []
    for source in sources:
        counts = [
            source["read"],
            *(source["removed"].get(name, 0) for name in used),
            source["written"],
        ]
        rows.append([source["split"], source["data_source"], *(f"{n:,}" for n in counts)])
    page.table(["split", "data source", "read", *used, "written"], rows)
    page.bullets([f"{name}: {meaning}" for name, meaning in report["rules"].items()])
    page.text("Inputs: " + ", ".join(report["inputs"]) + ".")
    if report.get("notes"):
        page.heading("Counted")
        page.table(
            ["stage: what", "number"], [[name, f"{n:,}"] for name, n in report["notes"].items()]
        )
    if report.get("compared"):
        page.heading("Test problems that were given away")
        if report["contamination"]:
            header = ["task", "level", "training rows removed", "test rows that they give away"]
            hits = [list(hit.values()) for hit in report["contamination"]]
            page.table(
                header,
                [[task, level, f"{train:,}", f"{test:,}"] for task, level, train, test in hits],
            )
        page.bullets(report["compared"])
    for samples in report["samples"]:
        page.heading(f"Removed from {samples['split']} by {samples['rule']}")
        keys = ("evidence", "problem", "answer")
        shown = [
            [f"{row['file']} {row['row']}", *(row.get(key, "") for key in keys)]
            for row in samples["rows"]
        ]
        page.table(["row", "seen", "problem", "answer"], shown)
    return page.markdown()
