# SPDX-License-Identifier: Apache-2.0
"""Models in the policy's worker processes in addition to the policy, with their checkpoints."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import ActorClass
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.metric import reduce_metrics
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.config import TrainingWorkerConfig

from prime_ext.prm.implicit_prm import REPLAY_FOLDER, FrozenPRM, TrainedPRM
from prime_ext.prm.loss import PRMLoss
from prime_ext.step.step import AVERAGE_ROLE, PRM_ROLE

# Names of the worker groups; none may be a prefix of another, since verl binds methods by prefix.
PRM_GROUP = "prm"
REFERENCE_GROUP = "refprm"
AVERAGE_GROUP = "avgpolicy"


class SideModel:
    """A model, with other models that only it uses, such as its reference.

    Attributes:
        models: configurations by worker group; the model itself is the first.
        groups: the worker groups, once :meth:`attach` has been called.
        checkpoint_folder: name of its folder in a checkpoint; empty for a model that never changes.
        saved_with: the settings whose checkpoints lack that folder.
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
            name: RayClassWithInitArgs(cls=worker, config=model, **self.worker_options(name))
            for name, model in models
        }

    def attach(self, actor_group: RayWorkerGroup) -> None:
        """Get the worker groups from the policy's worker group, and build the engines."""
        self.groups = actor_group.spawn(prefix_set=set(self.models))
        for name in self.models:
            self.groups[name].reset()

    @property
    def group(self) -> RayWorkerGroup:
        """Return the workers of the model itself."""
        return self.groups[next(iter(self.models))]

    def save(self, folder: str, global_step: int) -> None:
        """Save the model itself in its folder of the checkpoint."""
        self.group.save_checkpoint(
            os.path.join(folder, self.checkpoint_folder), global_step=global_step
        )

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError where it is missing."""
        model_folder = os.path.join(folder, self.checkpoint_folder)
        if not os.path.isdir(model_folder):
            raise FileNotFoundError(
                f"the checkpoint has no {model_folder}; it was saved with {self.saved_with}"
            )
        self.group.load_checkpoint(local_path=model_folder, del_local_after_load=delete_after_load)


def share_rows(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Divide rows over ranks by verl's estimate of their work, equally many to each."""
    workload = calculate_workload(torch.tensor(lengths, dtype=torch.int64))
    return get_seqlen_balanced_partitions(workload, k_partitions=ranks, equal_size=True)


class WorkerGroup:
    """verl's worker group of the PRM or its reference, as the driver calls it.

    It implements :class:`prime_ext.prm.implicit_prm.PRMWorkers`.
    """

    def __init__(self, group: RayWorkerGroup):
        self._group = group

    @cached_property
    def data_parallel_size(self) -> int:
        return self._group.data_parallel_size()[0]

    share_rows = staticmethod(share_rows)

    def score(self, request: Any) -> None:
        ray.get(self._group.score(request).futures)

    def update(self, request: Any) -> dict[str, float]:
        return _average(self._group.train_mini_batch(request).get()["metrics"])

    def update_and_score(self, request: Any) -> dict[str, float]:
        ray.get(self._group.update_and_score(request).futures)
        # Only ranks with outputs have metrics.
        return _average(next(filter(None, self._group.update_metrics())))

    def start_bias(self, mean_outcome: float) -> None:
        self._group.start_bias(mean_outcome)

    def bias_value(self) -> float:
        return self._group.bias_value()[0]


def _average(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return verl's metrics of an update, averaged over its mini-batches."""
    return {name: float(value) for name, value in reduce_metrics(dict(metrics)).items()}


class PRMModels(SideModel):
    """The PRM and, if that is another model, its reference, in the policy's worker processes."""

    def __init__(self, prm: FrozenPRM, models: Mapping[str, TrainingWorkerConfig]):
        self.prm = prm
        self.models = models
        if isinstance(prm, TrainedPRM):
            self.checkpoint_folder = "prm"
            self.saved_with = "prm=frozen, or a variant without a PRM"

    def worker_options(self, group: str) -> dict[str, Any]:
        """Return the options; those of a trained PRM include its bias and its trained layers."""
        if group == REFERENCE_GROUP:
            return {"role": "reference"}
        if not isinstance(self.prm, TrainedPRM):
            return {"role": PRM_ROLE}
        settings = self.prm.settings
        return {
            "role": PRM_ROLE,
            "bias_lr": settings.bias_lr,
            "trainable_layers": settings.trainable_layers,
        }

    def attach(self, actor_group: RayWorkerGroup) -> None:
        """Get the worker groups, build the engines, and set the PRM's loss."""
        super().attach(actor_group)
        prm = self.prm
        prm.workers = WorkerGroup(self.groups[PRM_GROUP])
        if REFERENCE_GROUP in self.groups:
            prm.reference_workers = WorkerGroup(self.groups[REFERENCE_GROUP])
        if isinstance(prm, TrainedPRM):
            loss = PRMLoss(prm.settings.loss, prm.settings.beta, prm.reference_field)
            self.groups[PRM_GROUP].set_loss_fn(loss)

    def save(self, folder: str, global_step: int) -> None:
        """Save what ``prm.checkpoint.save_contents`` names, and the rollouts that are replayed."""
        super().save(folder, global_step)
        if isinstance(self.prm, TrainedPRM) and self.prm.replay is not None:
            self.prm.replay.save(Path(folder) / self.checkpoint_folder / REPLAY_FOLDER)

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError when it is missing."""
        super().load(folder, delete_after_load)
        if isinstance(self.prm, TrainedPRM) and self.prm.replay is not None:
            self.prm.replay.load(Path(folder) / self.checkpoint_folder / REPLAY_FOLDER)


class PolicyAverage(SideModel):
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
