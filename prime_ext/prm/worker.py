# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM as a verl worker: a language model on verl's FSDP engines, and its loss."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_losses import PRM_LOSSES, RowFields
from prime_ext.prm.bias import OutcomeBias
from prime_ext.prm.engines import average_weights, get_engine, register_engine
from prime_ext.prm.frozen_layers import train_last_layers
from prime_ext.verl_adapter import transformer_impl

# Fields of the PRM in the store of rollouts. Token-level ones cover the response, `*_B` ones are one value per row.
PRM_LOG_PROBS = "prm_log_probs"
REFERENCE_LOG_PROBS = "prm_reference_log_probs"
LABEL = "prm_label"
WEIGHT = "prm_weight"
OFFSET = "prm_offset"
ROW = "prm_row"

# What verl's engines and the loss read of a rollout without images, less what the PRM itself has written; and of any.
TEXT_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
INPUT_FIELDS = (*TEXT_FIELDS, "multi_modal_inputs")

# Options of `score`: the field to write to, and rows of a mini-batch over all ranks, if passes may not cross them.
OUTPUT_FIELD = "prm_output_field"
MINI_BATCH_ROWS = "prm_mini_batch_rows"


def pad_responses(value: Any, responses: Any) -> torch.Tensor:
    """Pad a model's values of response tokens to ``(B, T)``, with 0 after the response.

    verl's ``no_padding_2_padding`` without waiting for the device several times for every row.

    Args:
        value: jagged, of complete sequences; a token's value is at the place before it.
        responses: jagged, of the responses. No prompt is empty.
    """
    length_B1, end_B1 = responses.offsets().diff()[:, None], value.offsets()[1:, None]
    place_T = torch.arange(responses.to_padded_tensor(0).shape[1], device=value.device)
    # Pad with distinct indices: gathering one index repeatedly would serialize its gradient atomics.
    index_BT = (end_B1 - length_B1 - 1 + place_T) % len(value.values())
    return value.values()[index_BT].masked_fill(place_T >= length_B1, 0.0)


class PRMLoss:
    """Loss of the implicit PRM, in the form verl's engines call: once for every micro-batch.

    The driver has prepared the rows' fields (target, weight, offset). Weights contain the size of the mini-batch, so
    the sum over micro-batches and ranks is its loss. Engines average gradients over data-parallel ranks, hence the
    factor ``dp_size``.

    Attributes:
        name: of the loss in ``prime_ext.algorithms.prm_losses.PRM_LOSSES``.
        reference: field with the reference's log-probabilities.
        bias: the trained bias, if there is one; the worker puts it there.
    """

    def __init__(self, name: str, beta: float, reference: str = REFERENCE_LOG_PROBS):
        self.name = name
        self.beta = beta
        self.reference = reference
        self.bias: OutcomeBias | None = None
        self._recorded: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Compute the loss of one micro-batch; the second value is empty: verl already reports the summed loss."""
        log_prob_BT = pad_responses(model_output["log_probs"], data["responses"])
        fields = data.select(self.reference, LABEL, WEIGHT, OFFSET, ROW, "response_mask").to_padded_tensor(0)
        mask_BT = fields["response_mask"]
        if self._recorded is not None:
            length_B = data["responses"].offsets().diff()
            self._recorded.append((fields[ROW], length_B, log_prob_BT.detach().float()))
        ratio_BT = log_ratio(log_prob_BT, fields[self.reference], mask_BT)
        rows = RowFields(fields[WEIGHT].float(), fields[LABEL].float(), fields[OFFSET].float())
        bias = {} if self.bias is None else {"bias": self.bias.parameter}
        loss = PRM_LOSSES[self.name].loss(ratio_BT, mask_BT, rows, self.beta, **bias)
        return loss * data["dp_size"], {}

    def start_recording(self) -> None:
        """From now on keep the log-probabilities of every forward pass."""
        self._recorded = []

    def stop_recording(self) -> dict[int, torch.Tensor]:
        """Stop, and return the response log-probabilities by row number."""
        recorded, self._recorded = self._recorded, None
        if not recorded:
            return {}
        rows, lengths, padded = zip(*recorded, strict=True)
        widths = [log_prob_BT.shape[1] for log_prob_BT in padded for _ in log_prob_BT]
        # One copy to the host for all micro-batches.
        log_probs = torch.cat([log_prob_BT.flatten() for log_prob_BT in padded]).cpu().split(widths)
        found: dict[int, torch.Tensor] = {}
        columns = (torch.cat(rows).tolist(), torch.cat(lengths).tolist(), log_probs)
        for row, length, log_prob_T in zip(*columns, strict=True):
            # Of several epochs the first: later ones have trained on these rollouts.
            found.setdefault(row, log_prob_T[:length])
        return found


class ImplicitPRMWorker(TrainingWorker):
    """verl's training worker whose response log-probabilities go to the store of rollouts.

    Args:
        config: of the model, its engine, optimizer and checkpoints.
        role: ``prm``, ``reference`` or ``average``, under which other workers of this process find the engine.
        bias_lr: learning rate of the trained bias; None for a loss without one.
        trainable_layers: share of the decoder layers that is trained, the last ones; None: the whole model.
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
            # Before FSDP flattens the weights: FSDP1 wants those of a unit alike.
            transformer_impl.apply(self.engine, partial(train_last_layers, share=self._trainable_layers))
        # A new adapter begins with random numbers: the same ones whatever was built before and on any number of ranks.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            self.engine.initialize()
        register_engine(self._role, self.engine)
        if self._bias is not None:
            self._bias.follow(self.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def data_parallel_size(self) -> int:
        """Return the ranks over which rows are divided; the same on all ranks."""
        return self.engine.get_data_parallel_size()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn: PRMLoss) -> None:
        """Take over the loss, and train the bias by it if there is one."""
        loss_fn.bias = self._bias
        super().set_loss_fn(loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_bias(self, mean_outcome: float) -> None:
        """Start the bias from the mean outcome of the rollouts of the first update; later ones change nothing."""
        if self._bias is not None:
            self._bias.start(mean_outcome)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def bias_value(self) -> float | None:
        """Return the bias, if there is one; the same on all ranks."""
        return None if self._bias is None else self._bias.value

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_batch(self, data: TensorDict) -> TensorDict:
        """Run verl's step on one mini-batch, from no gradient of the bias on."""
        if self._bias is not None:
            self._bias.zero_grad()
        return super().train_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """Save verl's files, and the bias if there is one."""
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        if self._bias is not None and self.rank == 0:
            self._bias.save(Path(local_path), self.loss_fn.beta)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Restore what :meth:`save_checkpoint` wrote. Raises FileNotFoundError where it has no bias but needs one."""
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        if self._bias is not None:
            self._bias.load(Path(local_path))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def average_weights(self, role: str, decay: float) -> None:
        """Move this model's weights toward those of another engine of the process, all the way with the decay 0."""
        average_weights(get_engine(role), self.engine, decay)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def score(self, data: TensorDict) -> TensorDict:
        """Write log-probabilities of the response tokens, without training, to the field named by the options."""
        name = tu.pop(data, key=OUTPUT_FIELD)
        rows = tu.pop(data, key=MINI_BATCH_ROWS, default=None)
        count = 1 if rows is None else len(data) * self.engine.get_data_parallel_size() // rows
        log_probs: list[torch.Tensor] = []
        with self.engine.eval_mode():
            for part in tu.chunk_tensordict(data, count):
                tu.assign_non_tensor(part, disable_auto_offload=True)
                mask = part["response_mask"].cpu()
                output = self.infer_batch(part)
                if output is not None:
                    log_probs += response_from_nested(output["log_probs"], mask).unbind()
        if not log_probs:
            return None
        return TensorDict(
            {name: torch.nested.as_nested_tensor(log_probs, layout=torch.jagged)}, batch_size=len(log_probs)
        )

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def update_and_score(self, data: TensorDict) -> TensorDict:
        """Train on the mini-batches in order; the scores are the log-probabilities of the training forward passes.

        "Single forward" of PRIME (arXiv 2502.01456) and its released code: earlier mini-batches have moved the PRM that
        scores a later one. :meth:`update_metrics` has the metrics.
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
        log_probs = torch.nested.as_nested_tensor([recorded[row] for row in row_B], layout=torch.jagged)
        return TensorDict({PRM_LOG_PROBS: log_probs}, batch_size=len(row_B))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_metrics(self) -> dict | None:
        """Return metrics of the last :meth:`update_and_score`, reduced over ranks; None on ranks without outputs."""
        return self._update_metrics
