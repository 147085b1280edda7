# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks: whole sets below ``PRIME_EXT_DATA``, or else the tests' samples."""

import dataclasses
import os
from pathlib import Path

from prime_ext.tasks.benchmark_task import BenchmarkProblem, Task
from prime_ext.tasks.task_file import load_task
from prime_ext.tasks.task_rows import choose_default_split, load_problems

SAMPLES = Path(__file__).resolve().parents[1] / "fixtures"
WHOLE = Path(os.environ["PRIME_EXT_DATA"]) if os.environ.get("PRIME_EXT_DATA") else None
if WHOLE and not WHOLE.is_dir():
    raise FileNotFoundError(
        f"PRIME_EXT_DATA={WHOLE} is not a folder; unset it for the samples of the repository"
    )


def data_folder(*files: str) -> Path:
    """Return the folder of the whole sets if it has all these files, or else :data:`SAMPLES`."""
    return WHOLE if WHOLE and all((WHOLE / name).is_file() for name in files) else SAMPLES


def without_published_rows(task: Task) -> Task:
    """Return the task for a sample, which has fewer rows than were published."""
    return dataclasses.replace(task, source=dataclasses.replace(task.source, rows={}))


def benchmark(name: str) -> tuple[Task, dict[str, BenchmarkProblem]]:
    """Return the task and its problems; whole sets must have the published number of rows."""
    task = load_task(name)
    folder = data_folder(*task.source.local[choose_default_split(task, local=True)])
    task = task if folder == WHOLE else without_published_rows(task)
    return task, load_problems(task, folder)
