# SPDX-License-Identifier: Apache-2.0
"""Losses of offline training in the form verl's engines call: from response labels, and from step labels."""

from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.algorithms.prm_losses.row_fields import RowFields, log_ratio_sum
from prime_ext.algorithms.process_reward import prefix_values, step_rewards
from prime_ext.algorithms.steps import step_spans
from prime_ext.prm.worker import LABEL, OFFSET, REFERENCE_LOG_PROBS, ROW, WEIGHT, padded_responses

# One value per response token.
STEP_END = "prm_step_end"
STEP_LABEL = "prm_step_label"
STEP_WEIGHT = "prm_step_weight"


def step_scores(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, end_BT: torch.Tensor, beta: float, score: str
) -> torch.Tensor:
    """Logit of each step at its last token, ``(B, T)``; what stands at other tokens means nothing.

    * ``prefix``: beta * (sum of q up to and including the token), what ImplicitPRM thresholds on ProcessBench;
    * ``prefix_mean``: that divided by the number of tokens (IPVRM);
    * ``step``: beta * (sum of q inside the step), as the released step-level trainer of ImplicitPRM has it.

    Raises:
        ValueError: no such score.
    """
    if score == "step":
        return step_rewards(beta * log_ratio_BT, step_spans(end_BT, mask_BT))
    if score not in ("prefix", "prefix_mean"):
        raise ValueError(f"step score must be prefix, prefix_mean or step, got {score!r}")
    value_BT, mean_BT = prefix_values(log_ratio_BT, mask_BT, beta)
    return value_BT if score == "prefix" else mean_BT


def step_loss(score_BT: torch.Tensor, label_BT: torch.Tensor, weight_BT: torch.Tensor, squared: bool) -> torch.Tensor:
    """sum_it w_it * loss(score_it, y_it) over the step ends, where the weights are not 0.

    Cross-entropy from the logits, ln 2 where the score is 0, or (sigmoid(score) - y)^2, 1/4 there (step-level training
    of ImplicitPRM, arXiv 2412.01981, released code). Labels may be fractions.
    """
    if squared:
        loss_BT = (torch.sigmoid(score_BT) - label_BT) ** 2
    else:
        loss_BT = F.binary_cross_entropy_with_logits(score_BT, label_BT, reduction="none")
    return (loss_BT * weight_BT).sum()


class OfflineLoss:
    """The loss of a micro-batch. Weights already contain the size of the mini-batch; engines average over ranks.

    It also keeps the summed log-ratio of every row it has seen, a by-product of training.

    Args:
        name: of ``PRM_LOSSES``, or ``step_ce`` or ``step_mse``.
        beta: scale of the log-ratios.
        options: of the loss's part on a micro-batch.
    """

    def __init__(self, name: str, beta: float, options: dict[str, Any]):
        self.name = name
        self.beta = beta
        self.options = options
        self._sums: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        log_prob_BT = padded_responses(model_output["log_probs"], data["responses"])
        names = [REFERENCE_LOG_PROBS, ROW, "response_mask"]
        names += [STEP_END, STEP_LABEL, STEP_WEIGHT] if self.name.startswith("step_") else [LABEL, WEIGHT, OFFSET]
        fields = data.select(*names).to_padded_tensor(0)
        mask_BT = fields["response_mask"]
        ratio_BT = log_ratio(log_prob_BT, fields[REFERENCE_LOG_PROBS], mask_BT)
        sum_B = log_ratio_sum(ratio_BT.detach(), mask_BT)
        self._sums.append((fields[ROW], sum_B))
        if self.name.startswith("step_"):
            score_BT = step_scores(ratio_BT, mask_BT, fields[STEP_END], self.beta, **self.options)
            label_BT, weight_BT = fields[STEP_LABEL].float(), fields[STEP_WEIGHT].float()
            loss = step_loss(score_BT, label_BT, weight_BT, squared=self.name == "step_mse")
        else:
            rows = RowFields(fields[WEIGHT].float(), fields[LABEL].float(), fields[OFFSET].float())
            loss = PRM_LOSSES[self.name].loss(ratio_BT, mask_BT, rows, self.beta, **self.options)
        return loss * data["dp_size"], {}

    def take_sums(self) -> dict[int, float]:
        """Summed log-ratio by row since the last call, from before the update of the row's mini-batch."""
        sums, self._sums = self._sums, []
        columns = [torch.cat(column).tolist() for column in zip(*sums, strict=True)]
        return dict(zip(*columns, strict=True))
