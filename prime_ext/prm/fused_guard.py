# SPDX-License-Identifier: Apache-2.0
"""Once per run: are the log-probabilities without logits those of the model?

A model may do something to its logits that a fused forward pass does not know of (a soft cap, a scale, a bias), and a
kernel may be wrong for a shape. Both give plausible numbers.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

logger = logging.getLogger(__name__)

# Largest difference of a log-probability without a warning. In 16 bit the two sides round logits of size 20 in steps of
# 0.125, each in its own way.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
STOP_AT = 10.0


class FusedLogProbsDiffer(RuntimeError):
    """Fused and plain log-probabilities are not those of one model."""


@dataclass(frozen=True)
class Difference:
    """Absolute differences of log-probabilities over the response tokens of all ranks."""

    largest: float
    mean: float
    tokens: int


def measure_difference(worker: Any, data: TensorDict, rows: int = 2) -> Difference:
    """Log-probabilities of the first rows of each rank, with and without fused kernels.

    Every rank has to call it. Costs two forward passes over ``rows`` rollouts per rank.

    Args:
        worker: a ``TrainingWorker`` of verl whose model was built with ``use_fused_kernels``.
        data: rollouts as its ``infer_batch`` takes them; not changed.
        rows: rollouts per rank to compare.
    """
    log_probs = []
    for fused in (False, True):
        few = tu.index_select_tensor_dict(data, list(range(min(rows, len(data)))))
        options = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1, "calculate_entropy": False}
        tu.assign_non_tensor(few, use_fused_kernels=fused, compute_loss=False, **options)
        mask = few["response_mask"]
        output = worker.infer_batch(few)
        if output is not None:
            log_probs.append(response_from_nested(output["log_probs"], mask.cpu()).values().double())
    # Largest, sum and number: the ranks decide together, so that all of them stop or none.
    sums = torch.zeros(2, dtype=torch.float64)
    largest = torch.zeros(1, dtype=torch.float64)
    if log_probs:
        difference_N = (log_probs[1] - log_probs[0]).abs()[mask.cpu().values().bool()]
        sums[0], sums[1] = difference_N.sum(), len(difference_N)
        # NaN on one side only is a difference like no other, and the maximum must not lose it.
        largest[0] = difference_N.nan_to_num(nan=torch.inf).max() if len(difference_N) else 0.0
    sums, largest = sums.to(worker.device_name), largest.to(worker.device_name)
    dist.all_reduce(sums)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return Difference(float(largest), float(sums[0] / sums[1].clamp_min(1)), int(sums[1]))


def judge(difference: Difference, dtype: torch.dtype, model: str) -> None:
    """Log the difference; warn above the tolerance of the dtype of the computation.

    Raises:
        FusedLogProbsDiffer: the largest difference is ten times the tolerance or more.
    """
    tolerance = TOLERANCES[dtype]
    said = (
        f"fused and plain log-probabilities of {model} differ by at most {difference.largest:.2g} (mean "
        f"{difference.mean:.2g}, {difference.tokens} tokens, {str(dtype).removeprefix('torch.')})"
    )
    if difference.largest >= STOP_AT * tolerance:
        raise FusedLogProbsDiffer(
            f"{said}, {STOP_AT * tolerance:g} is too much; set use_fused_kernels=false for it or another "
            f"fused_kernel_options.impl_backend"
        )
    if difference.largest > tolerance:
        logger.warning("%s, more than %g", said, tolerance)
    else:
        logger.info("%s", said)


class FusedGuard:
    """Mixin for a ``TrainingWorker`` of verl: compares once, on the first batch it is shown."""

    _fused_difference: Difference | None = None

    def guard_fused_log_probs(self: Any, data: TensorDict, model: str) -> dict[str, float]:
        """Compare the first time, do nothing from then on, or if the model does not use fused kernels.

        Args:
            data: rollouts as ``infer_batch`` takes them, with ``temperature``; not changed.
            model: what to call the model in messages, e.g. ``prm.model``.

        Returns:
            ``fused_log_prob_difference`` (largest) the first time, nothing from then on.

        Raises:
            FusedLogProbsDiffer: see :func:`judge`.
        """
        if not self.engine_config.use_fused_kernels or self._fused_difference is not None:
            return {}
        self._fused_difference = measure_difference(self, data)
        judge(self._fused_difference, self.engine._autocast_dtype, model)
        return {"fused_log_prob_difference": self._fused_difference.largest}
