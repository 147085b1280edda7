# SPDX-License-Identifier: Apache-2.0
"""Complete and incomplete checkpoints.

verl writes the file that names the latest checkpoint last, but not atomically, and may delete older checkpoints before
the new one is whole. Here every whole checkpoint has a marker, older ones are deleted afterwards, and a run that was
killed at any moment finds the newest whole one. The marker lists the files and their sizes: a file that was cut short
or deleted later is noticed, changed bytes are not.
"""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json, write_json, write_text
from prime_ext.utils.run_store import RunError

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
MARKER = "prime_ext_complete.json"
# verl's names, and those of transformers' Trainer.
_FOLDER = re.compile(r"(?:global_step_|checkpoint-)(\d+)")


def mark_complete(folder: Path, contents: dict[str, Any]) -> None:
    """Declare a checkpoint whole, with the files it has now."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARKER]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    write_json(folder / MARKER, {**contents, "files": sizes})


def damage(folder: Path) -> str:
    """Return what is wrong with a checkpoint that was declared whole; empty if nothing is.

    Files may have grown: file systems of several nodes report sizes late.
    """
    try:
        sizes = read_json(folder / MARKER)["files"]
    except (json.JSONDecodeError, KeyError):
        return f"{MARKER} is broken"
    for name, size in sizes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (actual := (folder / name).stat().st_size) < size:
            return f"{name} has {actual} of {size} bytes"
    return ""


def mark_incomplete(folder: Path) -> None:
    """Withdraw the declaration before a step is saved again or deleted; the tracker then names another whole one."""
    (folder / MARKER).unlink(missing_ok=True)
    root = folder.parent
    match = _FOLDER.fullmatch(folder.name)
    if match and int(match[1]) == _tracked_step(root):
        others = [step for step in complete_steps(root) if step != int(match[1])]
        if others:
            write_text(root / TRACKER, str(others[-1]))
        else:
            (root / TRACKER).unlink()


def _tracked_step(root: Path) -> int | None:
    text = (root / TRACKER).read_text().strip() if (root / TRACKER).exists() else ""
    return int(text) if text.isdecimal() else None


def complete_steps(root: Path) -> list[int]:
    """Return the steps of the whole checkpoints below ``root``, oldest first."""
    return [step for step, problem in _declared(root).items() if not problem]


def complete_folders(root: Path) -> list[Path]:
    """Return the folders of the whole checkpoints below ``root``, oldest first."""
    folders = _folders(root)
    return [folders[step] for step in complete_steps(root)]


def _folders(root: Path) -> dict[int, Path]:
    """Return the folders of checkpoints below ``root``, by step."""
    folders = [folder for folder in root.glob("*") if folder.is_dir()]
    return {int(match[1]): folder for folder in folders if (match := _FOLDER.fullmatch(folder.name))}


def _declared(root: Path) -> dict[int, str]:
    """Return the steps of checkpoints that were declared whole, and what is wrong with each.

    The one that the tracker names is whole even without a marker, because the tracker is written last.
    """
    tracked = _tracked_step(root)
    problems = {}
    for step, folder in sorted(_folders(root).items()):
        if (folder / MARKER).exists():
            problems[step] = damage(folder)
        elif step == tracked:
            problems[step] = ""
    return problems


def repair_tracker(root: Path) -> int | None:
    """Let the tracker name the latest whole checkpoint, unless it names one. Return its step; None if there is none.

    RunError: there were whole checkpoints, and all of them have been damaged.
    """
    declared = _declared(root)
    steps = [step for step, problem in declared.items() if not problem]
    damaged = [f"global_step_{step}: {problem}" for step, problem in declared.items() if problem]
    for line in damaged:
        logger.warning("checkpoint %s/%s: it is damaged and not used", root, line)
    tracked = _tracked_step(root)
    if tracked in steps:
        return tracked
    if damaged and not steps:
        raise RunError(
            f"no whole checkpoint is left in {root} ({damaged[-1]}); bring the file back, or start anew with "
            f"trainer.resume_mode=disable"
        )
    if not steps:
        (root / TRACKER).unlink(missing_ok=True)
        return None
    logger.warning("checkpoint tracker %s named %s; resuming from global_step_%d", root / TRACKER, tracked, steps[-1])
    write_text(root / TRACKER, str(steps[-1]))
    return steps[-1]


def prune(root: Path, keep: int | None, newest: int) -> None:
    """Delete whole checkpoints older than the ``keep`` latest, and remains of unfinished saves before ``newest``."""
    if not keep:
        return
    kept = set([step for step in complete_steps(root) if step <= newest][-keep:])
    for step, folder in sorted(_folders(root).items()):
        if step < newest and step not in kept:
            mark_incomplete(folder)
            try:
                shutil.rmtree(folder)
            except OSError as error:
                logger.warning("old checkpoint %s could not be deleted: %s", folder, error)
