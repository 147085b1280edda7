# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM from the trainer's side: its worker groups, and what one step asks of them."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.single_controller.ray import RayClassWithInitArgs
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import TrainingWorkerConfig

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.settings import PRMSettings, forward_tokens
from prime_ext.prm.plan import MiniBatchPlan, plan_mini_batches
from prime_ext.prm.replay import PRMReplay
from prime_ext.prm.worker import (
    LABEL,
    MINI_BATCH_ROWS,
    OFFSET,
    OUTPUT_FIELD,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
    ImplicitPRMWorker,
    PRMLoss,
)
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# Names of the worker groups. verl binds methods to groups by prefix, so none may be a prefix of another.
PRM_GROUP = "prm"
REFERENCE_GROUP = "refprm"

# Where replayed rollouts are kept: in the folder of the run, and in the PRM's folder of a checkpoint.
REPLAY_FOLDER = "prm_replay"

# Standard deviation of a token's log-ratio where PRM and reference have the same weights, by the dtype of their passes.
NOISE_PER_TOKEN = {torch.float32: 1e-6, torch.bfloat16: 0.02, torch.float16: 0.0025}


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
        # Both sides of the log-ratio need the same temperature; verl takes the policy's at that of the rollouts.
        as_policy = settings.reference in ("policy", "kl") or config.prime.process.target == "policy"
        self.temperature = rollout.temperature if as_policy else 1.0
        self._worker_group: Any = None
        self._reference_group: Any = None
        folder = Path(config.trainer.default_local_dir) / REPLAY_FOLDER
        self.replay = PRMReplay(settings.replay, folder) if settings.replay.batches else None

    # ---- life cycle --------------------------------------------------------------------------------------------

    def worker_classes(self) -> dict[str, RayClassWithInitArgs]:
        """Classes to add to the actor's worker processes, by group name."""
        worker = ray.remote(ImplicitPRMWorker)
        bias = self.settings.bias if self.settings.bias.enable else None
        options = {"config": self._worker_config(), "bias": bias, "trainable_layers": self.settings.trainable_layers}
        classes = {PRM_GROUP: RayClassWithInitArgs(cls=worker, role="prm", **options)}
        if self.settings.reference == "frozen":
            config = self._worker_config(self.config.prm.reference_path)
            classes[REFERENCE_GROUP] = RayClassWithInitArgs(cls=worker, config=config, role="reference")
        return classes

    def _worker_config(self, frozen_path: str | None = None) -> TrainingWorkerConfig:
        """Build the configuration of the PRM, or of another model that is never trained."""
        section, model, checkpoint = self.config.prm, self.config.prm.model, self.config.prm.checkpoint
        forward_only = frozen_path is not None or not self.settings.trained
        if forward_only:
            # It has weights only.
            checkpoint = OmegaConf.merge(checkpoint, {"save_contents": ["model"], "load_contents": ["model"]})
        if frozen_path is not None:
            model = OmegaConf.merge(model, {"path": frozen_path, "lora_rank": 0, "lora_adapter_path": None})
        engine = omega_conf_to_dataclass(section.engine)
        engine.forward_only = forward_only
        engine.use_dynamic_bsz = self.settings.use_dynamic_bsz
        engine.micro_batch_size_per_gpu = self.settings.micro_batch_size_per_gpu
        engine.max_token_len_per_gpu = self.settings.max_token_len_per_gpu
        engine.infer_micro_batch_size_per_gpu = self.settings.infer_micro_batch_size_per_gpu
        engine.infer_max_token_len_per_gpu = forward_tokens(section) if self.settings.use_dynamic_bsz else None
        return TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(model),
            engine_config=engine,
            optimizer_config=omega_conf_to_dataclass(section.optim),
            checkpoint_config=omega_conf_to_dataclass(checkpoint),
        )

    def attach(self, actor_group: Any) -> None:
        """Take the handles out of the actor's worker group and build the engines."""
        names = [PRM_GROUP, *[REFERENCE_GROUP] * (self.settings.reference == "frozen")]
        groups = actor_group.spawn(prefix_set=set(names))
        for name in names:
            groups[name].reset()
        self._worker_group, self._reference_group = groups[PRM_GROUP], groups.get(REFERENCE_GROUP)
        self._worker_group.set_loss_fn(PRMLoss(self.settings.loss, self.settings.beta))
        logger.info(
            "implicit PRM ready: update_mode=%s reference=%s", self.settings.update_mode, self.settings.reference
        )

    def save(self, folder: str, global_step: int) -> None:
        """Model, optimiser, schedule and random state, as ``prm.checkpoint.save_contents`` says, of what changes."""
        if self.settings.trained:
            self._worker_group.save_checkpoint(folder, global_step=global_step)
        if self.replay is not None:
            self.replay.save(Path(folder) / REPLAY_FOLDER)

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """Restore what :meth:`save` wrote. Raises FileNotFoundError when the folder is missing."""
        if self.settings.trained:
            saved_with = "prm.enable=false or prm.update_mode=none"
            if not os.path.isdir(folder):
                raise FileNotFoundError(f"the checkpoint has no PRM at {folder}; it was saved with {saved_with}")
            self._worker_group.load_checkpoint(local_path=folder, del_local_after_load=delete_after_load)
        if self.replay is not None:
            self.replay.load(Path(folder) / REPLAY_FOLDER)

    # ---- one step ----------------------------------------------------------------------------------------------

    def reference(self, batch: KVBatchMeta, as_update: bool = False) -> tuple[KVBatchMeta, torch.Tensor]:
        """Write the reference's log-probabilities, from a pass of its own only if ``prm.reference`` needs one.

        Args:
            batch: the rows.
            as_update: pack them as the update packs them, whose forward passes then give the scores: of the same model
                q is 0, without rounding noise.

        Returns:
            the batch with the field, and its values, padded.
        """
        kind = self.settings.reference
        if kind in ("frozen", "base"):
            group = self._reference_group if kind == "frozen" else self._worker_group
            extra, scored = {} if kind == "frozen" else {"no_lora_adapter": True}, batch
            if as_update:
                extra[MINI_BATCH_ROWS] = self.mini_batch_rows
                scored = transfer.select(batch, self.plan(batch).order)
            self._score(group, scored, REFERENCE_LOG_PROBS, **extra)
            batch = transfer.with_field(batch, REFERENCE_LOG_PROBS)
            return batch, transfer.fetch_padded(batch, [REFERENCE_LOG_PROBS])[REFERENCE_LOG_PROBS]
        # verl has it already, in a field of its own.
        name = {"policy": "old_log_probs", "kl": "ref_log_prob"}.get(kind, "response_mask")
        log_prob_BT = transfer.fetch_padded(batch, [name])[name]
        if kind == "none":
            log_prob_BT = torch.zeros_like(log_prob_BT, dtype=torch.float32)
        return transfer.put_tokens(batch, {REFERENCE_LOG_PROBS: log_prob_BT}), log_prob_BT

    def score(self, batch: KVBatchMeta) -> None:
        """Write the PRM's log-probabilities of these rows."""
        self._score(self._worker_group, batch, PRM_LOG_PROBS)

    @property
    def reward_noise(self) -> float:
        """Standard deviation of the rounding noise of a reward."""
        # verl's mixed precision is bf16 unless told otherwise.
        precision = (self.config.prm.engine.get("mixed_precision") or {}).get("param_dtype", "bf16")
        noise = NOISE_PER_TOKEN[PrecisionType.to_dtype(precision)]
        return noise if self.config.prime.process.target == "policy" else self.settings.beta * noise

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
        replayed_B: torch.Tensor | None = None,
        mini_batch_rows: int | None = None,
    ) -> KVBatchMeta:
        """Write what the loss needs of each row, and return the batch in the order of the update.

        Args:
            batch: the rows.
            label_B: outcome in [0, 1].
            group_B: number of the prompt.
            valid_B: False for padding.
            score_B: summed log-ratios before the update, if the loss needs them.
            replayed_B: True for rows of earlier steps.
            mini_batch_rows: where it is not that of the settings, because of such rows.
        """
        plan, loss = self.plan(batch, replayed_B, mini_batch_rows), PRM_LOSSES[self.settings.loss]
        rows = loss.prepare(label_B.float(), group_B, valid_B, score_B)
        fields = {
            LABEL: rows.target_B,
            WEIGHT: rows.weight_B * plan.weight_B,
            OFFSET: rows.offset_B,
            ROW: torch.arange(len(batch)),
        }
        batch = transfer.put_rows(batch, fields)
        batch.reorder(plan.order)
        if self.settings.bias.enable:
            self._worker_group.start_bias(float(label_B[valid_B].mean()))
        return batch

    def rows_with_replay(self, new: int, replayed: int) -> int:
        """Rows of a mini-batch, padding included, with ``replayed`` rows in addition to ``new`` ones."""
        ranks = self.data_parallel_size()
        share = math.ceil(replayed / (new // self.mini_batch_rows))
        return math.ceil((self.mini_batch_rows + share) / ranks) * ranks

    def plan(
        self, batch: KVBatchMeta, replayed_B: torch.Tensor | None = None, mini_batch_rows: int | None = None
    ) -> MiniBatchPlan:
        """Plan the mini-batches of the rows; arguments as for :meth:`put_rows`."""
        return plan_mini_batches(
            keys=batch.keys,
            padding=[transfer.is_padding(tag) for tag in batch.tags],
            lengths=[tag["seq_len"] for tag in batch.tags],
            mini_batch_size=mini_batch_rows or self.mini_batch_rows,
            data_parallel_size=self.data_parallel_size(),
            replayed=None if replayed_B is None else replayed_B.tolist(),
        )

    def update(self, batch: KVBatchMeta, mini_batch_rows: int | None = None, score: bool = False) -> dict[str, float]:
        """Train on the planned mini-batches, and return the metrics of the update.

        With ``score`` the log-probabilities of the training forward passes are written.
        """
        batch = transfer.with_options(batch, **self._update_options(mini_batch_rows))
        if score:
            transfer.wait_for(self._worker_group.update_and_score(batch))
            metrics = next(one for one in self._worker_group.update_metrics() if one is not None)
        else:
            metrics = self._worker_group.train_mini_batch(batch).get()["metrics"]
        values = {name: float(value) for name, value in reduce_metrics(dict(metrics)).items()}
        if self.settings.bias.enable:
            values["bias"] = self._worker_group.bias_value()[0]
        return values

    def take_pass_counts(self) -> dict[str, int]:
        """Tokens that went through the models since the last call, over all ranks.

        Returns:
            ``forward`` and ``backward`` of the PRM, and ``reference`` for the forward passes of a model of its own.
            With sequence or tensor parallelism every rank of a group counts its own share or copy.
        """
        of_prm = self._worker_group.take_pass_counts()
        of_reference = [] if self._reference_group is None else self._reference_group.take_pass_counts()
        return {
            "forward": sum(rank["forward"] for rank in of_prm),
            "backward": sum(rank["backward"] for rank in of_prm),
            "reference": sum(rank["forward"] for rank in of_reference),
        }

    def _score(self, group: Any, batch: KVBatchMeta, name: str, **extra: Any) -> None:
        options = {OUTPUT_FIELD: name, "calculate_entropy": False, "compute_loss": False, **extra}
        transfer.wait_for(group.score(transfer.with_options(batch, temperature=self.temperature, **options)))

    def _update_options(self, mini_batch_rows: int | None = None) -> dict[str, Any]:
        rows = mini_batch_rows or self.mini_batch_rows
        return {
            "global_batch_size": rows,
            "mini_batch_size": rows,
            "epochs": self.settings.epochs,
            "seed": 0,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.temperature,
            "calculate_entropy": False,
        }

    def data_parallel_size(self) -> int:
        """Ranks over which rows are divided; every pass wants a multiple of them."""
        group, mesh = self._worker_group, "train"
        if mesh not in group._dispatch_info:
            group._dispatch_info[mesh] = group._query_dispatch_info(mesh)
        return max(group._dispatch_info[mesh]) + 1
