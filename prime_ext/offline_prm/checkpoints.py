# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an offline run: whole or not there, and only for the run they belong to."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist

from prime_ext.prm.worker import ImplicitPRMWorker
from prime_ext.run.checkpoint import MARKER, complete_steps, mark_complete, mark_incomplete, prune


class CheckpointError(ValueError):
    """A checkpoint cannot be resumed from; the message is one line."""


class Checkpoints:
    """Model, optimiser, schedule and random state; the position in the data follows from the step.

    Args:
        root: folder of the checkpoints.
        identity: what a run must share with the one that wrote a checkpoint.
        keep: how many to keep.
    """

    def __init__(self, root: Path, identity: dict[str, Any], keep: int):
        self.root = root
        self.identity = json.loads(json.dumps(identity))
        self.keep = keep

    def check(self) -> int:
        """The step of the latest whole checkpoint, 0 without any.

        Raises:
            CheckpointError: it was written by a run with other settings or data.
        """
        steps = complete_steps(self.root)
        if not steps:
            return 0
        marker = json.loads((self._folder(steps[-1]) / MARKER).read_text())
        for key, value in self.identity.items():
            if marker["identity"].get(key) != value:
                raise CheckpointError(
                    f"{self._folder(steps[-1])} was written with {key}={marker['identity'].get(key)!r}, now it is "
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
