# SPDX-License-Identifier: Apache-2.0
"""Losses that train the implicit PRM from outcome labels, by name, each in two parts.

* ``prepare(label_B, group_B, valid_B, score_B=None) -> RowFields`` runs once, on the driver, over the global batch:
  whatever looks at other rows happens here.
* ``loss(log_ratio_BT, mask_BT, rows, beta) -> scalar`` runs on a worker for one micro-batch and is a sum over its
  rows: however engines cut the batch, sum and gradient stay the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.prm_losses.cross_entropy import ce_rows, cross_entropy_loss
from prime_ext.algorithms.prm_losses.dpo import dpo_loss, dpo_rows
from prime_ext.algorithms.prm_losses.kto import kto_loss, kto_rows
from prime_ext.algorithms.prm_losses.nca import nca_loss, nca_rows
from prime_ext.algorithms.prm_losses.row_fields import RowFields
from prime_ext.algorithms.returns import kept


@dataclass(frozen=True)
class PRMLossFunction:
    """One entry of the registry.

    Attributes:
        name: in messages.
        rows: the part on the driver, of labels and scores that are 0 in invalid rows.
        loss: the part on the workers.
        needs_scores: the rows need ``score_B``, so the PRM has to be scored before it is updated.
        allows_soft_labels: fractions are legal.
    """

    name: str
    rows: Callable[..., RowFields]
    loss: Callable[..., torch.Tensor]
    needs_scores: bool = False
    allows_soft_labels: bool = False

    def prepare(
        self,
        label_B: torch.Tensor,
        group_B: torch.Tensor,
        valid_B: torch.Tensor,
        score_B: torch.Tensor | None = None,
    ) -> RowFields:
        """The fields of all rows of the global batch.

        Args:
            label_B: outcomes in [0, 1].
            group_B: integer id of the prompt.
            valid_B: False for padding, which may hold anything.
            score_B: h_B, the summed log-ratios before the update.

        Raises:
            ValueError: a label of a valid row is not in [0, 1], or a fraction where the loss takes none; scores that
                it needs are missing or not finite.
        """
        label_B = kept(label_B, valid_B)
        if not ((label_B >= 0) & (label_B <= 1)).all():
            raise ValueError(f"PRM loss {self.name!r}: labels must be in [0, 1], got {label_B.tolist()}")
        fraction_N = label_B[(label_B != 0) & (label_B != 1)]
        if len(fraction_N) and not self.allows_soft_labels:
            raise ValueError(
                f"PRM loss {self.name!r} takes labels 0 and 1 only, got {float(fraction_N[0]):g}; "
                f"{', '.join(name for name, entry in PRM_LOSSES.items() if entry.allows_soft_labels)} take fractions"
            )
        if not self.needs_scores:
            return self.rows(label_B, PromptGroups.of(group_B, valid_B))
        if score_B is None:
            raise ValueError(f"PRM loss {self.name!r} needs the summed log-ratios before the update (score_B)")
        score_B = kept(score_B.detach(), valid_B)
        if not score_B.isfinite().all():
            raise ValueError(f"PRM loss {self.name!r}: the summed log-ratios before the update are not finite")
        return self.rows(label_B, PromptGroups.of(group_B, valid_B), score_B.to(label_B.dtype))


PRM_LOSSES: dict[str, PRMLossFunction] = {
    entry.name: entry
    for entry in (
        PRMLossFunction("ce", ce_rows, cross_entropy_loss, allows_soft_labels=True),
        PRMLossFunction("dpo", dpo_rows, dpo_loss, needs_scores=True),
        PRMLossFunction("nca", nca_rows, nca_loss, allows_soft_labels=True),
        PRMLossFunction("kto", kto_rows, kto_loss, needs_scores=True),
    )
}
