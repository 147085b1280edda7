# SPDX-License-Identifier: Apache-2.0
"""The last line of a run that failed: what happened, what is saved, what to do."""

import shutil
from pathlib import Path

from prime_ext.run.checkpoint import complete_steps

# Ray and torch say all sorts of things when a disk is full, and seldom that.
_FULL_SHARE = 0.01
_LONGEST = 300


def innermost(error: BaseException) -> BaseException:
    """The error that a chain of Ray's task errors began with."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    return error


def one_line(error: BaseException) -> str:
    """Class and message, the class named once."""
    root = innermost(error)
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    name = type(root).__name__
    # A class that Ray made up for the error of a task is called RayTaskError(Name).
    if name.startswith("RayTaskError(") and lines:
        return lines[-1][:_LONGEST]
    # A first line that ends with a colon only announces the error, as Hydra's does.
    head = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    # Ray describes a dead process over several lines, and Hydra a section: what a user can look for.
    where = [line for line in lines[1:] if line.startswith(("class_name:", "full_key:"))]
    said = " ".join([f"{name}: {head}"[: _LONGEST - sum(map(len, where)) - 1], *where])
    return said[:_LONGEST].rstrip(": ")


def failure_message(checkpoints: Path, error: BaseException | None) -> str:
    """The line.

    Args:
        checkpoints: ``trainer.default_local_dir``.
        error: what ended the run; None if it is not known.
    """
    what = f"the run failed with {one_line(error)}" if error is not None else "the run failed"
    steps = complete_steps(checkpoints)
    full = _fullness(checkpoints)
    saved = (
        f"the newest whole checkpoint is {checkpoints}/global_step_{steps[-1]}, and the same command goes on from there"
        if steps
        else f"nothing was saved in {checkpoints}"
    )
    return "; ".join(part for part in (what, full, saved) if part)


def _fullness(folder: Path) -> str:
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    if usage.free >= _FULL_SHARE * usage.total:
        return ""
    return f"the disk of {folder} is full ({usage.free / 1e6:.1f} of {usage.total / 1e6:.0f} MB left)"
