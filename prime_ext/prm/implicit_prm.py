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
"""The implicit PRM from the trainer's side: its worker groups, and what one step asks of them."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.single_controller.ray import RayClassWithInitArgs
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.config import TrainingWorkerConfig

from prime_ext import transfer
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.prm.plan import plan_mini_batches
from prime_ext.prm.worker import (
    LABEL,
    OFFSET,
    OUTPUT_FIELD,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
    ImplicitPRMWorker,
    PRMLoss,
)
from prime_ext.settings import PRMSettings

logger = logging.getLogger(__name__)

# Names of the worker groups. verl binds methods to groups by prefix, so neither may be a prefix of the other.
PRM_GROUP = "prm"
REFERENCE_GROUP = "refprm"


class ImplicitPRM:
    """Owns the PRM and its reference inside the actor's worker processes.

    Args:
        config: the whole configuration; ``prm`` is read, and verl's ``actor_rollout_ref.rollout``.
        settings: the validated section ``prm``.
    """

    def __init__(self, config: DictConfig, settings: PRMSettings):
        self.config = config
        self.settings = settings
        rollout = config.actor_rollout_ref.rollout
        self.mini_batch_rows = settings.mini_batch_size * rollout.n
        # Both sides of the log-ratio need the same temperature; old log-probs are taken at the rollout's.
        self.temperature = rollout.temperature if settings.reference == "policy" else 1.0
        self._worker_group: Any = None
        self._reference_group: Any = None

    # ---- life cycle --------------------------------------------------------------------------------------------

    def worker_classes(self) -> dict[str, RayClassWithInitArgs]:
        """Classes to add to the actor's worker processes, by group name."""
        worker = ray.remote(ImplicitPRMWorker)
        classes = {PRM_GROUP: RayClassWithInitArgs(cls=worker, config=self._worker_config(forward_only=False))}
        if self.settings.reference == "frozen":
            reference_config = self._worker_config(forward_only=True)
            classes[REFERENCE_GROUP] = RayClassWithInitArgs(cls=worker, config=reference_config)
        return classes

    def _worker_config(self, forward_only: bool) -> TrainingWorkerConfig:
        section = self.config.prm
        with open_dict(section):
            model = OmegaConf.create(OmegaConf.to_container(section.model, resolve=True))
            if forward_only:
                model.path = section.reference_path
        engine = omega_conf_to_dataclass(section.engine)
        engine.forward_only = forward_only
        engine.use_dynamic_bsz = self.settings.use_dynamic_bsz
        engine.micro_batch_size_per_gpu = self.settings.micro_batch_size_per_gpu
        engine.max_token_len_per_gpu = self.settings.max_token_len_per_gpu
        engine.infer_micro_batch_size_per_gpu = self.settings.infer_micro_batch_size_per_gpu
        engine.infer_max_token_len_per_gpu = self.settings.infer_max_token_len_per_gpu
        return TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(model),
            engine_config=engine,
            optimizer_config=omega_conf_to_dataclass(section.optim),
            checkpoint_config=omega_conf_to_dataclass(section.checkpoint),
        )

    def attach(self, actor_group: Any) -> None:
        """Take the handles out of the actor's worker group and build the engines."""
        names = {PRM_GROUP} | ({REFERENCE_GROUP} if self.settings.reference == "frozen" else set())
        groups = actor_group.spawn(prefix_set=names)
        self._worker_group = groups[PRM_GROUP]
        self._worker_group.reset()
        self._worker_group.set_loss_fn(PRMLoss(self.settings.loss, self.settings.beta))
        self._reference_group = groups.get(REFERENCE_GROUP)
        if self._reference_group is not None:
            self._reference_group.reset()
        logger.info(
            "implicit PRM ready: update_mode=%s reference=%s", self.settings.update_mode, self.settings.reference
        )

    def save(self, folder: str, remote_folder: str | None, global_step: int) -> None:
        """Model, optimiser, schedule and random state, as ``prm.checkpoint.save_contents`` says."""
        self._worker_group.save_checkpoint(folder, remote_folder, global_step)

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError when the folder is missing."""
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"the checkpoint has no PRM at {folder}; it was saved with prm.enable=false")
        self._worker_group.load_checkpoint(local_path=folder, del_local_after_load=delete_after_load)

    # ---- one step ----------------------------------------------------------------------------------------------

    def reference(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write the reference's log-probabilities; with ``reference=policy`` they are the old log-probabilities."""
        if self._reference_group is None:
            old = transfer.fetch_padded(batch, ["old_log_probs"])["old_log_probs"]
            return transfer.put_tokens(batch, {REFERENCE_LOG_PROBS: old})
        return self._score(self._reference_group, batch, REFERENCE_LOG_PROBS)

    def score(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write the PRM's log-probabilities."""
        return self._score(self._worker_group, batch, PRM_LOG_PROBS)

    @property
    def needs_scores(self) -> bool:
        """Whether the loss needs the PRM's scores before its update."""
        return PRM_LOSSES[self.settings.loss].needs_scores

    def put_rows(
        self,
        batch: KVBatchMeta,
        label_B: torch.Tensor,
        group_B: torch.Tensor,
        valid_B: torch.Tensor,
        score_B: torch.Tensor | None = None,
    ) -> KVBatchMeta:
        """Write what the loss needs of each row, and plan the mini-batches.

        Args:
            batch: the rows.
            label_B: outcome in [0, 1].
            group_B: number of the prompt.
            valid_B: False for padding.
            score_B: summed log-ratios before the update, if the loss needs them.

        Returns:
            the batch in the order of the update.
        """
        plan = plan_mini_batches(
            keys=batch.keys,
            padding=[transfer.is_padding(tag) for tag in batch.tags],
            lengths=[tag["seq_len"] for tag in batch.tags],
            mini_batch_size=self.mini_batch_rows,
            data_parallel_size=self._data_parallel_size(),
        )
        rows = PRM_LOSSES[self.settings.loss].prepare(label_B.float(), group_B, valid_B, score_B)
        fields = {
            LABEL: rows.target_B,
            WEIGHT: rows.weight_B * plan.weight_B,
            OFFSET: rows.offset_B,
            ROW: torch.arange(len(batch)),
        }
        batch = transfer.put_rows(batch, fields)
        batch.reorder(plan.order)
        return batch

    def update(self, batch: KVBatchMeta) -> dict[str, float]:
        """Train on the planned mini-batches. Returns the metrics of the update."""
        output = self._worker_group.train_mini_batch(transfer.with_options(batch, **self._update_options()))
        return self._reduce(output.get()["metrics"])

    def update_and_score(self, batch: KVBatchMeta) -> dict[str, float]:
        """Train, and write the log-probabilities of the training forward passes. Returns the metrics."""
        transfer.wait_for(self._worker_group.update_and_score(transfer.with_options(batch, **self._update_options())))
        metrics = [m for m in self._worker_group.update_metrics() if m is not None]
        return self._reduce(metrics[0])

    def _score(self, group: Any, batch: KVBatchMeta, name: str) -> KVBatchMeta:
        options = {
            OUTPUT_FIELD: name,
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": self.temperature,
        }
        transfer.wait_for(group.score(transfer.with_options(batch, **options)))
        return transfer.with_field(batch, name)

    def _update_options(self) -> dict[str, Any]:
        return {
            "global_batch_size": self.mini_batch_rows,
            "mini_batch_size": self.mini_batch_rows,
            "epochs": 1,
            "seed": 0,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.temperature,
            "calculate_entropy": False,
        }

    @staticmethod
    def _reduce(metrics: Mapping[str, Any]) -> dict[str, float]:
        return {name: float(value) for name, value in reduce_metrics(dict(metrics)).items()}

    def _data_parallel_size(self) -> int:
        group, mesh = self._worker_group, "train"
        if mesh not in group._dispatch_info:
            group._dispatch_info[mesh] = group._query_dispatch_info(mesh)
        return max(group._dispatch_info[mesh]) + 1
