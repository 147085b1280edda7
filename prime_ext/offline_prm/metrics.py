# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run as JSON Lines, and to verl's loggers."""

import json
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_text


class MetricsLog:
    """Writes on one rank only; on the others every method does nothing.

    Args:
        path: the JSON Lines file; one object with ``step`` and ``data`` per line, like verl's ``file`` logger.
        tracking: verl's ``Tracking``, or None.
        active: whether this rank writes.
    """

    def __init__(self, path: Path, tracking: Any = None, active: bool = True):
        self.path = path
        self.tracking = tracking
        self.active = active

    def start_after(self, step: int) -> None:
        """Forget what an interrupted run wrote after the checkpoint it is resumed from."""
        if not self.active:
            return
        kept = []
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                # The line that a kill cut off; nothing after it counts.
                break
            if step and record["step"] <= step:
                kept.append(line + "\n")
        write_text(self.path, "".join(kept))

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line; none for no metrics."""
        if not self.active or not metrics:
            return
        with self.path.open("a") as lines:
            lines.write(json.dumps({"step": step, "data": metrics}) + "\n")
        if self.tracking is not None:
            self.tracking.log(data=metrics, step=step)
