# SPDX-License-Identifier: Apache-2.0
"""What an offline run leaves while it trains: checkpoints, whole or not there, and metrics as JSON Lines."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist

from prime_ext.config.checks import SettingsError
from prime_ext.prm.worker import ImplicitPRMWorker
from prime_ext.run.checkpoint import MARKER, complete_steps, mark_complete, mark_incomplete, prune
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json_lines


class Checkpoints:
    """Model, optimiser, schedule and random state; the position in the data follows from the step.

    Args:
        root: folder of the checkpoints.
        identity: what a run must share with the one that wrote a checkpoint.
        keep: how many to keep.
    """

    def __init__(self, root: Path, identity: dict[str, Any], keep: int):
        self.root, self.keep = root, keep
        self.identity = json.loads(json.dumps(identity))

    def check(self) -> int:
        """The step of the latest whole checkpoint, 0 without any.

        Raises:
            SettingsError: it was written by a run with other settings or data.
        """
        steps = complete_steps(self.root)
        if not steps:
            return 0
        earlier = read_json(self._folder(steps[-1]) / MARKER)["identity"]
        for key, value in self.identity.items():
            if earlier.get(key) != value:
                raise SettingsError(
                    f"{self._folder(steps[-1])} was written with {key}={earlier.get(key)!r}, now it is "
                    f"{value!r}; choose another trainer.output_dir or delete the folder"
                )
        return steps[-1]

    def resume(self, worker: ImplicitPRMWorker) -> int:
        """Restore the latest checkpoint. Returns its step, 0 without any."""
        step = self.check()
        if step:
            worker.load_checkpoint(str(self._folder(step)))
        return step

    def save(self, worker: ImplicitPRMWorker, step: int) -> None:
        """Write one, then declare it whole, then delete older ones."""
        folder = self._folder(step)
        if dist.get_rank() == 0:
            mark_incomplete(folder)
        dist.barrier()
        worker.save_checkpoint(str(folder), global_step=step)
        dist.barrier()
        if dist.get_rank() == 0:
            mark_complete(folder, {"step": step, "identity": self.identity})
            prune(self.root, self.keep, step)
        dist.barrier()

    def _folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}"


class MetricsLog:
    """One object with ``step`` and ``data`` per line, like verl's ``file`` logger. Of one rank.

    Args:
        path: the JSON Lines file.
        tracking: verl's ``Tracking``, or None.
    """

    def __init__(self, path: Path, tracking: Any = None):
        self.path, self.tracking = path, tracking

    def start_after(self, step: int) -> None:
        """Forget what an interrupted run wrote after the checkpoint it is resumed from, and the line that was cut."""
        known = read_metrics(self.path) if step else {}
        write_json_lines(self.path, [{"step": at, "data": data} for at, data in known.items() if at <= step])

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line."""
        with self.path.open("a") as lines:
            lines.write(json.dumps({"step": step, "data": metrics}) + "\n")
        if self.tracking is not None:
            self.tracking.log(data=metrics, step=step)
