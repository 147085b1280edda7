# SPDX-License-Identifier: Apache-2.0
"""The loss from step labels as verl's engines call it, and metrics on held-out responses."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from prime_ext.algorithms.implicit_reward import log_ratio, prefix_values
from prime_ext.algorithms.prm_accuracy import absolute_accuracy, count_pairs
from prime_ext.prm.fields import REFERENCE_LOG_PROBS
from prime_ext.prm.loss import PRMLoss, pad_responses
from prime_ext.verl_adapter.offline_prm.batches import TokenRow
from prime_ext.verl_adapter.offline_prm.offline_settings import LossSettings

# One value per response token.
STEP_LABEL = "prm_step_label"
STEP_WEIGHT = "prm_step_weight"


def step_loss(
    score_BT: torch.Tensor, label_BT: torch.Tensor, weight_BT: torch.Tensor
) -> torch.Tensor:
    """Return sum_it w_it * cross-entropy(score_it, y_it) over the step ends.

    Only there are the weights not 0. Scores are logits, so the loss is ln 2 where they are 0.
    Labels may be fractions.
    """
    return (
        F.binary_cross_entropy_with_logits(score_BT, label_BT, reduction="none") * weight_BT
    ).sum()


class StepLoss(PRMLoss):
    """Loss ``step_ce`` of a micro-batch.

    A step's score is beta * (sum of q up to and including its last token), which ImplicitPRM
    thresholds on ProcessBench.
    """

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss, and no metrics.

        Weights already contain the size of the mini-batch; engines average over ranks.
        """
        log_prob_BT = pad_responses(model_output["log_probs"], data["responses"])
        fields = data.select(
            REFERENCE_LOG_PROBS, STEP_LABEL, STEP_WEIGHT, "response_mask"
        ).to_padded_tensor(0)
        mask_BT = fields["response_mask"]
        score_BT = prefix_values(
            log_ratio(log_prob_BT, fields[REFERENCE_LOG_PROBS], mask_BT), mask_BT, self.beta
        )
        return step_loss(score_BT, fields[STEP_LABEL].float(), fields[STEP_WEIGHT].float()) * data[
            "dp_size"
        ], {}


def validation_metrics(
    settings: LossSettings,
    sequences: Sequence[TokenRow],
    ratios: Sequence[torch.Tensor],
    label_B: torch.Tensor,
    group_B: torch.Tensor,
) -> dict[str, float]:
    """Return cross-entropy and accuracy over responses, or over labeled steps; else nothing.

    With response labels also the share of a prompt's pairs in the right order.
    """
    if settings.by_step:
        prefixes = [
            prefix_values(q_T[None], torch.ones_like(q_T[None]), settings.beta)[0] for q_T in ratios
        ]
        rows = zip(sequences, prefixes, strict=True)
        ends = [(score_T[end], label) for row, score_T in rows for end, label in row.labeled_ends]
        if not ends:
            return {}
        score_N = torch.stack([score for score, _ in ends])
        label_N = torch.tensor([label for _, label in ends])
        unit = "val/steps"
        accuracy = None
    else:
        sum_B = torch.stack([ratio.sum() for ratio in ratios])
        score_N = settings.beta * sum_B
        label_N = label_B
        unit = "val/responses"
        accuracy = count_pairs(sum_B, label_B, group_B).accuracy
    return {
        "val/cross_entropy": float(F.binary_cross_entropy_with_logits(score_N, label_N)),
        "val/accuracy": absolute_accuracy(score_N, label_N),
        unit: float(len(label_N)),
        **({} if accuracy is None else {"val/pair_accuracy": accuracy}),
    }
