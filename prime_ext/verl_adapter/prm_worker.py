# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM as a verl worker: a language model on verl's FSDP engines."""

from functools import partial
from pathlib import Path

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils import tensordict_utils as tu
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from prime_ext.prm.fields import MINI_BATCH_ROWS, OUTPUT_FIELD, PRM_LOG_PROBS, ROW
from prime_ext.prm.frozen_layers import train_last_layers
from prime_ext.prm.loss import PRMLoss
from prime_ext.verl_adapter.outcome_bias import OutcomeBias
from prime_ext.verl_adapter.patches import transformer_impl
from prime_ext.verl_adapter.worker_engines import average_weights, get_engine, register_engine


class ImplicitPRMWorker(TrainingWorker):
    """verl's training worker whose response log-probabilities go to the store of rollouts.

    Args:
        config: of the model, its engine, optimizer and checkpoints.
        role: ``prm``, ``reference`` or ``average``, under which other workers of this process find
            the engine.
        bias_lr: learning rate of the trained bias; None for a loss without one.
        trainable_layers: share of the decoder layers that is trained, the last ones; None: the
            whole model.
    """

    def __init__(
        self,
        config: TrainingWorkerConfig,
        role: str = "prm",
        bias_lr: float | None = None,
        trainable_layers: float | None = None,
    ):
        super().__init__(config)
        self._role = role
        self._trainable_layers = trainable_layers
        self._bias = None if bias_lr is None else OutcomeBias(bias_lr)
        self._update_metrics: dict | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset(self) -> None:
        """Build the engine."""
        if self._trainable_layers is not None:
            # Before FSDP flattens the weights: FSDP1 needs all weights of a unit frozen, or none.
            transformer_impl.apply(
                self.engine, partial(train_last_layers, share=self._trainable_layers)
            )
        # A new adapter starts with random numbers, which must depend neither on models that were
        # built before nor on the number of ranks.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            self.engine.initialize()
        register_engine(self._role, self.engine)
        if self._bias is not None:
            self._bias.follow(self.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def data_parallel_size(self) -> int:
        """Return the number of ranks that share the rows; the same on all ranks."""
        return self.engine.get_data_parallel_size()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn: PRMLoss) -> None:
        """Set the loss, and give it the trained bias if there is one."""
        loss_fn.bias = None if self._bias is None else self._bias.parameter
        super().set_loss_fn(loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_bias(self, mean_outcome: float) -> None:
        """Start the bias at the first update's mean outcome; later calls change nothing."""
        if self._bias is not None:
            self._bias.start(mean_outcome)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def bias_value(self) -> float | None:
        """Return the bias, if there is one; the same on all ranks."""
        return None if self._bias is None else self._bias.value

    @register(
        dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False
    )
    def train_batch(self, data: TensorDict) -> TensorDict:
        """Run verl's step on one mini-batch, after setting the gradient of the bias to zero."""
        if self._bias is not None:
            self._bias.zero_grad()
        return super().train_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Save verl's files, and the bias if there is one."""
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        if self._bias is not None and self.rank == 0:
            self._bias.save(Path(local_path), self.loss_fn.beta)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Restore a checkpoint. Raises FileNotFoundError where a bias is needed but missing."""
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        if self._bias is not None:
            self._bias.load(Path(local_path))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def average_weights(self, role: str, decay: float) -> None:
        """Move the weights toward those of another engine of the process; decay 0 copies them."""
        average_weights(get_engine(role), self.engine, decay)

    @register(
        dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False
    )
    def score(self, data: TensorDict) -> TensorDict:
        """Write the response tokens' log-probabilities to the field that the options name."""
        name = tu.pop(data, key=OUTPUT_FIELD)
        rows = tu.pop(data, key=MINI_BATCH_ROWS, default=None)
        count = 1 if rows is None else len(data) * self.engine.get_data_parallel_size() // rows
        log_probs: list[torch.Tensor] = []
        with self.engine.eval_mode():
            for mini_batch in tu.chunk_tensordict(data, count):
                tu.assign_non_tensor(mini_batch, disable_auto_offload=True)
                mask = mini_batch["response_mask"].cpu()
                output = self.infer_batch(mini_batch)
                if output is not None:
                    log_probs += response_from_nested(output["log_probs"], mask).unbind()
        if not log_probs:
            return None
        return TensorDict(
            {name: torch.nested.as_nested_tensor(log_probs, layout=torch.jagged)},
            batch_size=len(log_probs),
        )

    @register(
        dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False
    )
    def update_and_score(self, data: TensorDict) -> TensorDict:
        """Train on the mini-batches in order; return log-probabilities of the training passes.

        This is the "single forward" of PRIME (arXiv 2502.01456) and its released code: earlier
        mini-batches have changed the PRM that scores a later one. :meth:`update_metrics` returns
        the metrics.
        """
        row_B = data[ROW].tolist()
        self.loss_fn.start_recording()
        try:
            output = self.train_mini_batch(data)
        finally:
            recorded = self.loss_fn.stop_recording()
        if output is None:
            return None
        self._update_metrics = tu.get(output, "metrics")
        log_probs = torch.nested.as_nested_tensor(
            [recorded[row] for row in row_B], layout=torch.jagged
        )
        return TensorDict({PRM_LOG_PROBS: log_probs}, batch_size=len(row_B))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_metrics(self) -> dict | None:
        """Return the last update's metrics, reduced over ranks; None on ranks without outputs."""
        return self._update_metrics
