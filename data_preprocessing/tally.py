# SPDX-License-Identifier: Apache-2.0
"""What became of rows: counts by source and stage, and samples. Tallies of parts add up to that of the whole."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Of every stage and split.
MAX_SAMPLES = 5
MAX_SHOWN = 300
BAD = "bad_row"


@dataclass
class Tally:
    """Counts and samples.

    Attributes:
        read: rows by ``(split, data_source)``; bad rows, whose data source is not known, under the source's name.
        removed: rows by ``(split, data_source)`` and stage or rule.
        samples: the first removed rows by split and rule.
    """

    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    removed: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    samples: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def remove(self, split: str, data_source: str, rule: str, sample: Mapping[str, Any]) -> None:
        """Count a removed row; the first few of a rule are kept to be shown."""
        self.removed[split, data_source][rule] += 1
        kept = self.samples[split, rule]
        if len(kept) < MAX_SAMPLES:
            kept.append(dict(sample))

    def add(self, other: "Tally") -> None:
        """Add the tally of the rows that come after these."""
        self.read.update(other.read)
        for key, counts in other.removed.items():
            self.removed[key].update(counts)
        for rule, samples in other.samples.items():
            self.samples[rule] = (self.samples[rule] + samples)[:MAX_SAMPLES]

    def described(self) -> dict[str, Any]:
        """As JSON; :meth:`restored` reads it."""
        return {
            "sources": [
                {
                    "split": split,
                    "data_source": source,
                    "read": self.read[split, source],
                    "removed": dict(self.removed.get((split, source), {})),
                    "written": self.read[split, source] - sum(self.removed.get((split, source), {}).values()),
                }
                for split, source in sorted({*self.read, *self.removed})
            ],
            "samples": [
                {"split": split, "rule": rule, "rows": rows} for (split, rule), rows in sorted(self.samples.items())
            ],
        }

    @classmethod
    def restored(cls, described: Mapping[str, Any]) -> "Tally":
        tally = cls()
        for found in described["sources"]:
            key = (found["split"], found["data_source"])
            if found["read"]:
                tally.read[key] = found["read"]
            if found["removed"]:
                tally.removed[key] = Counter(found["removed"])
        for samples in described["samples"]:
            tally.samples[samples["split"], samples["rule"]] = list(samples["rows"])
        return tally
