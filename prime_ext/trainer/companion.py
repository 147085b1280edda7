# SPDX-License-Identifier: Apache-2.0
"""Models alongside the policy: in its worker processes, and, where they change, in every checkpoint."""

import os
from collections.abc import Mapping
from typing import Any

import ray
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.config import TrainingWorkerConfig

from prime_ext.prm.worker import ImplicitPRMWorker


class Companion:
    """A model, and others that only it reads, such as its reference: ``models`` by worker group, its own first.

    One that changes has a ``checkpoint_folder``; checkpoints that were ``saved_with`` other settings lack it.
    """

    models: Mapping[str, TrainingWorkerConfig]
    groups: dict[str, Any]
    checkpoint_folder = ""
    saved_with = ""

    def worker_options(self, group: str) -> dict[str, Any]:
        """Return what a group's worker is told in addition to its configuration."""
        raise NotImplementedError

    def worker_classes(self) -> dict[str, RayClassWithInitArgs]:
        """Return classes to add to the policy's worker processes, by group."""
        worker, models = ray.remote(ImplicitPRMWorker), self.models.items()
        return {name: RayClassWithInitArgs(cls=worker, config=one, **self.worker_options(name)) for name, one in models}

    def attach(self, actor_group: Any) -> None:
        """Take the handles out of the policy's worker group and build the engines."""
        self.groups = actor_group.spawn(prefix_set=set(self.models))
        for name in self.models:
            self.groups[name].reset()

    @property
    def group(self) -> Any:
        """Return the workers of the model itself."""
        return self.groups[next(iter(self.models))]

    def save(self, folder: str, global_step: int) -> None:
        """Save what changes in a folder of its own inside of the checkpoint's."""
        self.group.save_checkpoint(os.path.join(folder, self.checkpoint_folder), global_step=global_step)

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError where it is missing."""
        own = os.path.join(folder, self.checkpoint_folder)
        if not os.path.isdir(own):
            raise FileNotFoundError(f"the checkpoint has no {own}; it was saved with {self.saved_with}")
        self.group.load_checkpoint(local_path=own, del_local_after_load=delete_after_load)
