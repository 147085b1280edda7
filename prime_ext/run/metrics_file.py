# SPDX-License-Identifier: Apache-2.0
"""The JSON-lines metrics of verl's `file` logger, across interrupted and resumed runs.

verl overwrites the file at every start. The earlier file is renamed first, and a reader sees all parts as one.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path


def metrics_path(loggers: Iterable[str], project_name: str, experiment_name: str) -> Path | None:
    """Return where verl's `file` logger will write; None when it is not among the loggers."""
    if "file" not in loggers:
        return None
    explicit = os.getenv("VERL_FILE_LOGGER_PATH")
    root = Path(os.getenv("VERL_FILE_LOGGER_ROOT", ".")).expanduser()
    return Path(explicit) if explicit else root / project_name / f"{experiment_name}.jsonl"


def _parts(path: Path) -> list[Path]:
    earlier = path.parent.glob(f"{path.stem}.part*{path.suffix}")
    return sorted(earlier, key=lambda part: int(part.stem.rsplit("part", 1)[1]))


def put_aside(path: Path) -> None:
    """Keep the metrics of an earlier start: rename them to ``<name>.part<k><suffix>``."""
    if path.exists() and path.stat().st_size > 0:
        path.rename(path.with_name(f"{path.stem}.part{len(_parts(path))}{path.suffix}"))


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of all parts by step; the last value counts. A line cut off by a kill is skipped."""
    steps: dict[int, dict[str, float]] = {}
    for part in [*_parts(path), path]:
        for line in part.read_text().splitlines() if part.exists() else []:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            step = record["step"]
            steps[step] = {**steps.get(step, {}), **record["data"]}
    return dict(sorted(steps.items()))
