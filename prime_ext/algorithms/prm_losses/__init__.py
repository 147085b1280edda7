# SPDX-License-Identifier: Apache-2.0
"""Losses that train the implicit PRM from outcome labels, by name, each in two parts.

* ``prepare(label_B, group_B, valid_B, score_B=None, **options) -> RowFields`` runs once, on the driver, over the global
  batch: whatever looks at other rows happens here. ``score_B`` is h_B, the summed log-ratios before the update.
* ``loss(log_ratio_BT, mask_BT, rows, beta, **options) -> scalar`` runs on a worker for one micro-batch and is a sum
  over its rows. Engines may cut the batch as they like and spread it over ranks: sum and gradient stay the same.

Multiply ``rows.weight_B`` by 1 / (rows in the mini-batch) before the batch is sent, see :class:`RowFields`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.prm_losses.cross_entropy import (
    cross_entropy_loss,
    prepare_bon_acc,
    prepare_bon_rm,
    prepare_ce,
)
from prime_ext.algorithms.prm_losses.dpo import dpo_loss, prepare_dpo
from prime_ext.algorithms.prm_losses.ipvrm import ipvrm_loss, prepare_ipvrm
from prime_ext.algorithms.prm_losses.kto import kto_loss, prepare_kto
from prime_ext.algorithms.prm_losses.nca import nca_loss, prepare_nca
from prime_ext.algorithms.prm_losses.row_fields import RowFields


@dataclass(frozen=True)
class PRMLossFunction:
    """One entry of the registry.

    Attributes:
        prepare: the part on the driver.
        loss: the part on the workers.
        needs_scores: ``prepare`` needs ``score_B``, so the PRM has to be scored before it is updated.
        allows_soft_labels: fractions are legal; otherwise ``prepare`` raises ValueError on them.
        beta: default scale of the log-ratios.
    """

    prepare: Callable[..., RowFields]
    loss: Callable[..., torch.Tensor]
    needs_scores: bool
    allows_soft_labels: bool
    beta: float


PRM_LOSSES: dict[str, PRMLossFunction] = {
    "ce": PRMLossFunction(prepare_ce, cross_entropy_loss, False, True, 0.05),
    "bon_acc": PRMLossFunction(prepare_bon_acc, cross_entropy_loss, False, True, 0.05),
    "bon_rm": PRMLossFunction(prepare_bon_rm, cross_entropy_loss, True, True, 0.05),
    "dpo": PRMLossFunction(prepare_dpo, dpo_loss, True, False, 0.05),
    "nca": PRMLossFunction(prepare_nca, nca_loss, False, True, 0.05),
    "kto": PRMLossFunction(prepare_kto, kto_loss, True, False, 0.05),
    "ipvrm": PRMLossFunction(prepare_ipvrm, ipvrm_loss, False, False, 10.0),
}
