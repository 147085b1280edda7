# SPDX-License-Identifier: Apache-2.0
"""The folder of a run's transcripts, and how they are found and read. No torch."""

import json
import re
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_lines
from prime_ext.utils.run_store import RunError

# Below trainer.default_local_dir.
FOLDER = "transcripts"
_STEP = re.compile(r"step_(\d+)\.jsonl")


def step_file(folder: Path, step: int) -> Path:
    """Return the file of a step."""
    return folder / f"step_{step:06d}.jsonl"


def find_steps(folder: Path) -> list[int]:
    """Return the recorded steps, in order."""
    names = [path.name for path in folder.glob("step_*.jsonl")]
    return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))


def find_folder(run: Path) -> Path:
    """Return the folder of transcripts of a run.

    ``run`` is that folder, ``trainer.default_local_dir``, or the folder above. Raises RunError.
    """
    if not run.is_dir():
        raise RunError(
            f"{run} does not exist; name the folder of a run: its trainer.default_local_dir, or the"
            " one above"
        )
    folders = [run, run / FOLDER, *sorted(run.glob(f"*/{FOLDER}"))]
    with_steps = [folder for folder in folders if find_steps(folder)]
    if not with_steps:
        raise RunError(
            f"{run} has no transcripts; training writes them to trainer.default_local_dir where"
            " transcripts.every is above 0 (default: 10), for the trainers prime_*"
        )
    if len(with_steps) > 1 and with_steps[0].parent != run and with_steps[0] != run:
        names = ", ".join(str(folder.parent) for folder in with_steps)
        raise RunError(f"{run} has the transcripts of several runs; name one of {names}")
    return with_steps[0]


def read_step(folder: Path, step: int | None = None) -> list[dict[str, Any]]:
    """Return the rollouts of a step, by default the last. Raises RunError: it is not there."""
    steps = find_steps(folder)
    if step is None:
        step = steps[-1]
    if step not in steps:
        listed = ", ".join(map(str, steps))
        raise RunError(f"{folder} has no step {step}; it has {listed}")
    path = step_file(folder, step)
    rows = []
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            row["uid"], row["tokens"], row["info"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RunError(f"{path}, line {number}, is not a transcript: {error!r}") from error
        rows.append(row)
    return rows
