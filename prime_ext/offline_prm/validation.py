# SPDX-License-Identifier: Apache-2.0
"""How well a PRM does on held-out responses."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from prime_ext.algorithms.prm_accuracy import absolute_accuracy, pair_accuracy
from prime_ext.offline_prm.batches import TokenRow
from prime_ext.offline_prm.data import Example, LabelledData
from prime_ext.offline_prm.losses import step_scores
from prime_ext.offline_prm.settings import LossSettings


def validation_metrics(
    settings: LossSettings,
    data: LabelledData,
    examples: Sequence[Example],
    sequences: Sequence[TokenRow],
    ratios: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Metrics from the log-ratios of every response token.

    From response labels: cross-entropy of beta * sum q, the share of pairs of a prompt in the right order (also by data
    set, where there are several), the share of responses on the right side of 0. From step labels: cross-entropy and
    share on the right side, over labelled steps.
    """
    if settings.by_step:
        return _of_steps(settings, sequences, ratios)
    sum_B = torch.stack([ratio.sum() for ratio in ratios])
    label_B = torch.tensor([float(example.label or 0.0) for example in examples])
    group_B = torch.tensor([example.group for example in examples])
    cross_entropy = F.binary_cross_entropy_with_logits(settings.scale * sum_B, label_B)
    metrics = {
        "val/cross_entropy": float(cross_entropy),
        "val/accuracy": absolute_accuracy(sum_B, label_B),
        "val/responses": float(len(examples)),
    }
    names = sorted(set(data.datasets))
    of_row = [data.datasets[example.group] for example in examples]
    for name in ["", *(name for name in names if name and len(names) > 1)]:
        picked = torch.tensor([name in ("", own) for own in of_row])
        accuracy = pair_accuracy(sum_B[picked], label_B[picked], group_B[picked])
        if accuracy is not None:
            metrics["val/pair_accuracy" + (f"/{name}" if name else "")] = accuracy
    return metrics


def _of_steps(
    settings: LossSettings, sequences: Sequence[TokenRow], ratios: Sequence[torch.Tensor]
) -> dict[str, float]:
    scores, labels = [], []
    for sequence, ratio_T in zip(sequences, ratios, strict=True):
        end_1T = torch.zeros(1, len(ratio_T))
        end_1T[0, list(sequence.step_ends)] = 1.0
        mask_1T = torch.ones_like(end_1T)
        score_T = step_scores(ratio_T[None], mask_1T, end_1T, settings.scale, settings.steps.score)[0]
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
