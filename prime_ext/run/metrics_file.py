# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run, JSON lines as verl's `file` logger writes them, continued after a resume."""

import json
import os
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from prime_ext.utils.files import write_text


def metrics_path(trainer: Any) -> Path | None:
    """Return the path of verl's `file` logger from the section ``trainer``; None without one."""
    if "file" not in (trainer.get("logger") or ()):
        return None
    if explicit := os.getenv("VERL_FILE_LOGGER_PATH"):
        return Path(explicit)
    root = Path(os.getenv("VERL_FILE_LOGGER_ROOT", ".")).expanduser()
    return root / trainer.project_name / f"{trainer.experiment_name}.jsonl"


def put_aside(path: Path) -> None:
    """Rename the metrics of another run to ``<name>.old<k><suffix>``."""
    if path.exists() and path.stat().st_size > 0:
        names = (path.with_name(f"{path.stem}.old{number}{path.suffix}") for number in count())
        path.rename(next(name for name in names if not name.exists()))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of a file with their contents; skip a line that a kill has cut off."""
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            yield line, json.loads(line)
        except json.JSONDecodeError:
            continue


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Return the metrics by step; the last value counts."""
    steps: dict[int, dict[str, float]] = {}
    for _, record in _records(path):
        steps[record["step"]] = {**steps.get(record["step"], {}), **record["data"]}
    return dict(sorted(steps.items()))


class MetricsFile:
    """A logger for verl's ``Tracking`` that keeps the lines up to ``step`` and appends to them.

    The run continues at ``step``: later lines are of steps that will be repeated. The file of
    another run is renamed at step 0.
    """

    def __init__(self, path: Path, step: int):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if step == 0:
            put_aside(path)
        write_text(
            path, "".join(f"{line}\n" for line, record in _records(path) if record["step"] <= step)
        )

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append the metrics of a step."""
        with self.path.open("ab") as lines:
            lines.write(
                orjson.dumps({"step": step, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
                + b"\n"
            )

    def finish(self) -> None:
        """Do nothing: every line is written at once."""
