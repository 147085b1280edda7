# SPDX-License-Identifier: Apache-2.0
"""Metrics that prime_ext logs, and those that docs/reference/metrics.md explains."""

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
# Metrics of training runs; train/ and val/ are those of prime_ext.offline_prm.
OURS = re.compile(
    r"(prm|prime|source|agent|verifier|weight_sync|train|val)/[a-z0-9_/]+|perf/mfu/prm"
)


def names_on_page() -> set[str]:
    """Return every metric in the first column of a table of the page."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def undocumented(logged: Iterable[str]) -> list[str]:
    """Return those of our metrics among the logged ones that the page does not explain."""
    page = names_on_page()
    patterns = [re.compile(re.sub(r"<\w+>", r"\\w+", name)) for name in page if "<" in name]
    missing = {name for name in logged if OURS.fullmatch(name)} - page
    return sorted(
        name for name in missing if not any(pattern.fullmatch(name) for pattern in patterns)
    )
