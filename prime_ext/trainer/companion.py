# SPDX-License-Identifier: Apache-2.0
"""Models alongside the policy, in its worker processes and, if they change, in checkpoints."""

import os
from collections.abc import Mapping
from typing import Any

from ray.actor import ActorClass
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.workers.config import TrainingWorkerConfig

from prime_ext.trainer.step import AVERAGE_ROLE

# Name of the worker group of the average.
AVERAGE_GROUP = "avgpolicy"


class Companion:
    """A model and others that only it reads, such as its reference.

    ``models`` are by worker group, its own first. A model that changes has a ``checkpoint_folder``;
    checkpoints that were ``saved_with`` other settings lack it.
    """

    models: Mapping[str, TrainingWorkerConfig]
    groups: dict[str, RayWorkerGroup]
    checkpoint_folder = ""
    saved_with = ""

    def worker_options(self, group: str) -> dict[str, Any]:
        """Return the arguments of a group's worker in addition to its configuration."""
        raise NotImplementedError

    def worker_classes(self, worker: ActorClass) -> dict[str, RayClassWithInitArgs]:
        """Return the classes to add to the policy's worker processes, by group.

        ``worker`` is the class for Ray.
        """
        models = self.models.items()
        return {
            name: RayClassWithInitArgs(cls=worker, config=one, **self.worker_options(name))
            for name, one in models
        }

    def attach(self, actor_group: RayWorkerGroup) -> None:
        """Take the handles out of the policy's worker group and build the engines."""
        self.groups = actor_group.spawn(prefix_set=set(self.models))
        for name in self.models:
            self.groups[name].reset()

    @property
    def group(self) -> RayWorkerGroup:
        """Return the workers of the model itself."""
        return self.groups[next(iter(self.models))]

    def save(self, folder: str, global_step: int) -> None:
        """Save what changes in a folder of its own inside of the checkpoint's."""
        self.group.save_checkpoint(
            os.path.join(folder, self.checkpoint_folder), global_step=global_step
        )

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError where it is missing."""
        own = os.path.join(folder, self.checkpoint_folder)
        if not os.path.isdir(own):
            raise FileNotFoundError(
                f"the checkpoint has no {own}; it was saved with {self.saved_with}"
            )
        self.group.load_checkpoint(local_path=own, del_local_after_load=delete_after_load)


class PolicyAverage(Companion):
    """The running average of the policy's weights, in its worker processes (``prime.anchor``).

    ``model`` is the configuration of its worker, ``decay`` the weight of the past.
    """

    checkpoint_folder = "policy_average"
    saved_with = "prime/anchor=none"

    def __init__(self, model: TrainingWorkerConfig, decay: float):
        self.models = {AVERAGE_GROUP: model}
        self.decay = decay

    def worker_options(self, group: str) -> dict[str, Any]:
        return {"role": AVERAGE_ROLE}

    def attach(self, actor_group: RayWorkerGroup) -> None:
        """Build the average, equal to the policy.

        The policy's engine has to be there already (``install_targets``).
        """
        super().attach(actor_group)
        self.group.average_weights("policy", 0.0)

    def follow(self) -> None:
        """Set average = decay * average + (1 - decay) * policy, once a step, before its update."""
        self.group.average_weights("policy", self.decay)
