# SPDX-License-Identifier: Apache-2.0
"""What became of rows: counts by source and rule, samples, and the report of them in Markdown."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_preprocessing.stage import Removal

# Of every rule and split.
MAX_SAMPLES = 5
MAX_SHOWN = 300
BAD = "bad_row"
BAR = 40


def whole(text: str) -> str:
    """Half characters, which cannot be written, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def removal_record(
    split: str, data_source: str, removal: Removal, file: str, row: int, shown: Mapping[str, str]
) -> dict[str, Any]:
    """A removed row: its line of ``removed.jsonl``, and what a sample should show of it."""
    record = {"split": split, "data_source": data_source, "rule": removal.rule, "file": file, "row": row}
    record |= {"evidence": whole(removal.evidence[:MAX_SHOWN]), "details": dict(removal.details)}
    return record | {"shown": {key: whole(text[:MAX_SHOWN]) for key, text in shown.items()}}


@dataclass
class Tally:
    """Counts by ``(split, data_source)`` and rule, and samples."""

    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    removed: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    samples: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def remove(self, record: Mapping[str, Any]) -> str:
        """Count a removed row and keep the first few of a rule; returns its line of ``removed.jsonl``."""
        self.removed[record["split"], record["data_source"]][record["rule"]] += 1
        kept = self.samples[record["split"], record["rule"]]
        if len(kept) < MAX_SAMPLES:
            place = {key: record[key] for key in ("file", "row", "evidence")}
            kept.append({**place, **record["shown"], **record["details"]})
        others = ("shown", "problem") if record["details"] else ("shown", "problem", "details")
        return json.dumps({key: value for key, value in record.items() if key not in others}) + "\n"

    def described(self) -> dict[str, Any]:
        """As JSON."""
        sources = []
        for split, source in sorted({*self.read, *self.removed}):
            read, removed = self.read[split, source], dict(self.removed.get((split, source), {}))
            counts = {"read": read, "removed": removed, "written": read - sum(removed.values())}
            sources.append({"split": split, "data_source": source, **counts})
        samples = [{"split": split, "rule": rule, "rows": rows} for (split, rule), rows in sorted(self.samples.items())]
        return {"sources": sources, "samples": samples}


def cell(text: str) -> str:
    """Text on one line of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("$", "\\$")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table, and an empty one."""
    return [f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows)] + [""]


def markdown(report: Mapping[str, Any]) -> str:
    """Counts by source, what the rules mean, a funnel per split and examples of what was removed."""
    rules, sources = list(report["rules"]), report["sources"]
    used = [name for name in rules if any(found["removed"].get(name) for found in sources)]
    lines = [f"# {report['title']}", ""]
    lines += ["Rows by source, and how many each rule removed; the first that applies counts.", ""]
    counts = [(found["read"], *(found["removed"].get(name, 0) for name in used), found["written"]) for found in sources]
    lines += table(
        ["split", "data source", "read", *used, "written"],
        [
            [found["split"], found["data_source"], *(f"{n:,}" for n in numbers)]
            for found, numbers in zip(sources, counts, strict=True)
        ],
    )
    lines += [f"- `{name}`: {meaning}" for name, meaning in report["rules"].items()]
    lines += ["", "Inputs: " + ", ".join(report["inputs"]) + ".", ""]
    if report.get("notes"):
        lines += ["## Counted", ""]
        lines += table(["stage: what", "number"], [[cell(name), f"{n:,}"] for name, n in report["notes"].items()])
    if report.get("compared"):
        lines += ["## Test problems that were given away", ""]
        if report["contamination"]:
            header = ["task", "level", "training rows removed", "test rows that they give away"]
            hits = [list(found.values()) for found in report["contamination"]]
            lines += table(header, [[task, level, f"{train:,}", f"{test:,}"] for task, level, train, test in hits])
        lines += [*(f"- {cell(line)}" for line in report["compared"]), ""]
    for split in dict.fromkeys(found["split"] for found in sources):
        here = [found for found in sources if found["split"] == split]
        removed = sum((Counter(found["removed"]) for found in here), Counter[str]())
        lines += [f"## What is left of {split}", ""]
        lines += _funnel(sum(found["read"] for found in here), removed, rules)
    for samples in sorted(report["samples"], key=lambda found: rules.index(found["rule"])):
        lines += [f"## Removed from {samples['split']} by {samples['rule']}", ""]
        shown = [
            [f"{row['file']} {row['row']}", *(cell(row.get(key, "")) for key in ("evidence", "problem", "answer"))]
            for row in samples["rows"]
        ]
        lines += table(["row", "seen", "problem", "answer"], shown)
    return "\n".join(lines).rstrip() + "\n"


def _funnel(read: int, removed: Mapping[str, int], order: Sequence[str]) -> list[str]:
    """A bar for what is left after each rule that removed something."""
    left, width = read, max(map(len, [*order, "written"]))
    lines = [f"{'read':<{width}} {'█' * BAR} {left:>9,}"]
    for name in order:
        if removed.get(name):
            left -= removed[name]
            lines.append(f"{name:<{width}} {'█' * round(BAR * left / read):<{BAR}} {left:>9,}  (-{removed[name]:,})")
    return ["```text", *lines, "```", ""]
