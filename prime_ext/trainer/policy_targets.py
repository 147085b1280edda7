# SPDX-License-Identifier: Apache-2.0
"""The models that the policy is pulled towards, from the trainer's side."""

import os
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.single_controller.ray import RayClassWithInitArgs
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig

from prime_ext.config.settings import PrimeSettings
from prime_ext.prm.implicit_prm import PRM_GROUP
from prime_ext.prm.worker import ImplicitPRMWorker
from prime_ext.trainer.policy_loss import install_targets

# Name of the worker group of the average, and its folder in a checkpoint.
AVERAGE_GROUP = "avgpolicy"
AVERAGE_FOLDER = "policy_average"

PRM_ROLE, AVERAGE_ROLE = PRM_GROUP, "average"


class PolicyTargets:
    """The implicit PRM as a distribution (``prime.process.form=kl``), and the policy's average (``prime.anchor``).

    Args:
        config: the whole configuration; the policy's sections are read.
        settings: the validated section ``prime``.
    """

    def __init__(self, config: DictConfig, settings: PrimeSettings):
        self.config = config
        self.settings = settings
        self._average: Any = None

    @property
    def roles(self) -> list[str]:
        """Roles of the engines that may be targets."""
        return [PRM_ROLE] * self.settings.distils + [AVERAGE_ROLE] * self.settings.anchor.enable

    def worker_classes(self) -> dict[str, RayClassWithInitArgs]:
        """Classes to add to the actor's worker processes, by group name."""
        if not self.settings.anchor.enable:
            return {}
        worker = ray.remote(ImplicitPRMWorker)
        return {AVERAGE_GROUP: RayClassWithInitArgs(cls=worker, config=self._worker_config(), role=AVERAGE_ROLE)}

    def _worker_config(self) -> TrainingWorkerConfig:
        """The policy's model on an engine like the policy's, without an optimiser."""
        section = self.config.actor_rollout_ref
        # Averages of weights in 16 bit would stand still: a step of the policy is smaller than their rounding.
        more = {"fsdp_config": {"forward_only": True, "model_dtype": "fp32"}}
        more["checkpoint"] = {"save_contents": ["model"], "load_contents": ["model"]}
        actor = omega_conf_to_dataclass(OmegaConf.merge(section.actor, more))
        engine = actor.engine
        engine.use_dynamic_bsz = section.actor.use_dynamic_bsz
        engine.max_token_len_per_gpu = section.actor.ppo_max_token_len_per_gpu
        engine.micro_batch_size_per_gpu = section.actor.ppo_micro_batch_size_per_gpu
        engine.infer_max_token_len_per_gpu = section.actor.ppo_max_token_len_per_gpu
        engine.infer_micro_batch_size_per_gpu = section.actor.ppo_micro_batch_size_per_gpu
        return TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(section.model),
            engine_config=engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )

    def attach(self, actor_group: Any) -> None:
        """Build the average, equal to the policy, and give the policy its loss. The PRM has to be there already."""
        actor_group.execute_with_func_generator(install_targets)
        if self.settings.anchor.enable:
            self._average = actor_group.spawn(prefix_set={AVERAGE_GROUP})[AVERAGE_GROUP]
            self._average.reset()
            self._average.take_over_weights("policy")

    def coefficients(self, gate: float) -> dict[str, float]:
        """Coefficient of each divergence in the policy's loss of a step, by role.

        Args:
            gate: the reliability gate times the warm-up, in [0, 1]; 1 without either.
        """
        found = {}
        if self.settings.distils:
            found[PRM_ROLE] = self.settings.process.coefficient * gate
        if self.settings.anchor.enable:
            closed = 1.0 - gate if self.settings.anchor.fallback else 1.0
            found[AVERAGE_ROLE] = self.settings.anchor.coefficient * closed
        return found

    def before_update(self) -> None:
        """Once a step, before the policy is updated: average <- decay * average + (1 - decay) * policy."""
        if self._average is not None:
            self._average.average_weights("policy", self.settings.anchor.decay)

    def save(self, folder: str, global_step: int) -> None:
        """Save the average beside the policy, in the folder of a checkpoint."""
        if self._average is not None:
            self._average.save_checkpoint(os.path.join(folder, AVERAGE_FOLDER), global_step=global_step)

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError when it is missing."""
        if self._average is None:
            return
        path = os.path.join(folder, AVERAGE_FOLDER)
        if not os.path.isdir(path):
            raise FileNotFoundError(
                f"the checkpoint has no average of the policy at {path}; it was saved with prime.anchor.kind=none"
            )
        self._average.load_checkpoint(local_path=path, del_local_after_load=delete_after_load)
