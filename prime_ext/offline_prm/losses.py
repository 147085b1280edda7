# SPDX-License-Identifier: Apache-2.0
"""The loss from step labels, in the form verl's engines call, and metrics on held-out responses."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from prime_ext.algorithms.implicit_reward import log_ratio, prefix_values
from prime_ext.algorithms.prm_accuracy import absolute_accuracy, pair_accuracy
from prime_ext.algorithms.steps import place_at_ends, step_spans, sum_over_steps
from prime_ext.offline_prm.batches import TokenRow
from prime_ext.offline_prm.settings import LossSettings
from prime_ext.prm.worker import REFERENCE_LOG_PROBS, PRMLoss, padded_responses

# One value per response token.
STEP_END = "prm_step_end"
STEP_LABEL = "prm_step_label"
STEP_WEIGHT = "prm_step_weight"


def step_scores(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, end_BT: torch.Tensor, beta: float, score: str
) -> torch.Tensor:
    """Return the logit of each step at its last token, ``(B, T)``; other tokens' values have no meaning.

    * ``prefix``: beta * (sum of q up to and including the token), what ImplicitPRM thresholds on ProcessBench;
    * ``step``: beta * (sum of q inside the step), as the released step-level trainer of ImplicitPRM has it.
    """
    if score == "step":
        spans = step_spans(end_BT, mask_BT)
        return place_at_ends(sum_over_steps(beta * log_ratio_BT, spans), spans)
    return prefix_values(log_ratio_BT, mask_BT, beta)


def step_loss(score_BT: torch.Tensor, label_BT: torch.Tensor, weight_BT: torch.Tensor, squared: bool) -> torch.Tensor:
    """Return sum_it w_it * loss(score_it, y_it) over the step ends, where the weights are not 0.

    Cross-entropy from the logits, ln 2 where the score is 0, or (sigmoid(score) - y)^2, 1/4 there (step-level training
    of ImplicitPRM, arXiv 2412.01981, released code). Labels may be fractions.
    """
    if squared:
        loss_BT = (torch.sigmoid(score_BT) - label_BT) ** 2
    else:
        loss_BT = F.binary_cross_entropy_with_logits(score_BT, label_BT, reduction="none")
    return (loss_BT * weight_BT).sum()


class StepLoss(PRMLoss):
    """``step_ce`` or ``step_mse`` of a micro-batch; ``score`` is that of :func:`step_scores`."""

    def __init__(self, name: str, beta: float, score: str):
        super().__init__(name, beta)
        self.score = score

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss. Weights already contain the size of the mini-batch; engines average over ranks."""
        log_prob_BT = padded_responses(model_output["log_probs"], data["responses"])
        names = (REFERENCE_LOG_PROBS, STEP_END, STEP_LABEL, STEP_WEIGHT, "response_mask")
        fields = data.select(*names).to_padded_tensor(0)
        mask_BT = fields["response_mask"]
        ratio_BT = log_ratio(log_prob_BT, fields[REFERENCE_LOG_PROBS], mask_BT)
        score_BT = step_scores(ratio_BT, mask_BT, fields[STEP_END], self.beta, self.score)
        label_BT, weight_BT = fields[STEP_LABEL].float(), fields[STEP_WEIGHT].float()
        return step_loss(score_BT, label_BT, weight_BT, squared=self.name == "step_mse") * data["dp_size"], {}


def validation_metrics(
    settings: LossSettings,
    sequences: Sequence[TokenRow],
    ratios: Sequence[torch.Tensor],
    label_B: torch.Tensor,
    group_B: torch.Tensor,
) -> dict[str, float]:
    """Return cross-entropy and accuracy, and with response labels the share of a prompt's pairs in the right order."""
    if settings.by_step:
        return _step_metrics(settings, sequences, ratios)
    sum_B = torch.stack([ratio.sum() for ratio in ratios])
    metrics = {
        "val/cross_entropy": float(F.binary_cross_entropy_with_logits(settings.beta * sum_B, label_B)),
        "val/accuracy": absolute_accuracy(sum_B, label_B),
        "val/responses": float(len(ratios)),
    }
    accuracy = pair_accuracy(sum_B, label_B, group_B)
    return metrics if accuracy is None else {**metrics, "val/pair_accuracy": accuracy}


def _step_metrics(
    settings: LossSettings, sequences: Sequence[TokenRow], ratios: Sequence[torch.Tensor]
) -> dict[str, float]:
    scores, labels = [], []
    for sequence, ratio_T in zip(sequences, ratios, strict=True):
        end_1T = torch.zeros(1, len(ratio_T))
        end_1T[0, list(sequence.step_ends)] = 1.0
        mask_1T = torch.ones_like(end_1T)
        score_T = step_scores(ratio_T[None], mask_1T, end_1T, settings.beta, settings.steps.score)[0]
        for end, label in zip(sequence.step_ends, sequence.step_labels, strict=True):
            if label is not None:
                scores.append(score_T[end])
                labels.append(label)
    if not labels:
        return {}
    score_S, label_S = torch.stack(scores), torch.tensor(labels)
    return {
        "val/cross_entropy": float(F.binary_cross_entropy_with_logits(score_S, label_S)),
        "val/accuracy": absolute_accuracy(score_S, label_S),
        "val/steps": float(len(labels)),
    }
