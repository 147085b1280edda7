# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Complete and incomplete checkpoints.

verl writes the file that names the latest checkpoint last, but not atomically, and may delete older checkpoints before
the new one is whole. Here every whole checkpoint carries a marker of its own, older ones are deleted afterwards, and a
run that was killed at any moment finds the newest whole one.
"""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

from prime_ext.files import write_json, write_text

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
MARKER = "prime_ext_complete.json"
_FOLDER = re.compile(r"global_step_(\d+)")


def mark_complete(folder: Path, contents: dict[str, Any]) -> None:
    """Declare a checkpoint whole."""
    write_json(folder / MARKER, contents)


def mark_incomplete(folder: Path) -> None:
    """Withdraw the declaration before a checkpoint of the same step is written again, or deleted.

    A tracker that names this step is set back to the latest other whole checkpoint.
    """
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
    try:
        return int((root / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        return None


def complete_steps(root: Path) -> list[int]:
    """Steps of the whole checkpoints below ``root``, oldest first.

    The one that the tracker names is whole even without a marker, because the tracker is written last.
    """
    tracked = _tracked_step(root)
    steps = []
    for folder in root.glob("global_step_*"):
        match = _FOLDER.fullmatch(folder.name)
        if match and folder.is_dir() and ((folder / MARKER).exists() or int(match[1]) == tracked):
            steps.append(int(match[1]))
    return sorted(steps)


def repair_tracker(root: Path) -> int | None:
    """Let the tracker name the latest whole checkpoint. Returns its step, or None when there is none.

    A tracker that already names a whole checkpoint is left alone.
    """
    steps = complete_steps(root)
    tracked = _tracked_step(root)
    if tracked in steps:
        return tracked
    if not steps:
        (root / TRACKER).unlink(missing_ok=True)
        return None
    logger.warning("checkpoint tracker %s named %s; resuming from global_step_%d", root / TRACKER, tracked, steps[-1])
    write_text(root / TRACKER, str(steps[-1]))
    return steps[-1]


def prune(root: Path, keep: int | None, newest: int) -> list[int]:
    """Delete whole checkpoints older than the ``keep`` latest ones, and remains of unfinished saves before ``newest``.

    Nothing is deleted when ``keep`` is None. Returns the deleted steps.
    """
    if not keep:
        return []
    kept = set([step for step in complete_steps(root) if step <= newest][-keep:])
    deleted = []
    for folder in root.glob("global_step_*"):
        match = _FOLDER.fullmatch(folder.name)
        if match and int(match[1]) < newest and int(match[1]) not in kept:
            mark_incomplete(folder)
            try:
                shutil.rmtree(folder)
            except OSError as error:
                logger.warning("old checkpoint %s could not be deleted: %s", folder, error)
            else:
                deleted.append(int(match[1]))
    return sorted(deleted)
