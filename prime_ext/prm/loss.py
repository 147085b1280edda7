# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM's loss as verl's engines call it."""

from typing import Any

import torch
from tensordict import TensorDict

from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.algorithms.prm_losses import PRM_LOSSES, RowFields
from prime_ext.prm.fields import LABEL, OFFSET, REFERENCE_LOG_PROBS, ROW, WEIGHT


def pad_responses(value: Any, responses: Any) -> torch.Tensor:
    """Pad a model's values of response tokens to ``(B, T)``, with 0 after the response.

    This equals verl's ``no_padding_2_padding``, which waits for the device several times per row.

    Args:
        value: jagged values of complete sequences; the value of a token is one position before it.
        responses: jagged tokens of the responses. No prompt is empty.
    """
    length_B1 = responses.offsets().diff()[:, None]
    end_B1 = value.offsets()[1:, None]
    position_T = torch.arange(responses.to_padded_tensor(0).shape[1], device=value.device)
    # Pad with distinct indices: gathering one index repeatedly would serialize the atomics of its
    # gradient.
    index_BT = (end_B1 - length_B1 - 1 + position_T) % len(value.values())
    return value.values()[index_BT].masked_fill(position_T >= length_B1, 0.0)


class PRMLoss:
    """Loss of the implicit PRM, which verl's engines call once for every micro-batch.

    The driver has prepared the rows' fields (target, weight, offset). Weights include the size of
    the mini-batch, so the sum over micro-batches and ranks is the mini-batch's loss. Engines
    average gradients over data-parallel ranks, hence the factor ``dp_size``.

    Attributes:
        name: key of the loss in ``prime_ext.algorithms.prm_losses.PRM_LOSSES``.
        beta: factor of the log-ratio.
        reference: field with the reference's log-probabilities.
        bias: the trained bias, which the worker sets; None without one.
    """

    def __init__(self, name: str, beta: float, reference: str = REFERENCE_LOG_PROBS):
        self.name = name
        self.beta = beta
        self.reference = reference
        self.bias: torch.Tensor | None = None
        self._recorded: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None

    def __call__(
        self, model_output: dict, data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Compute the loss of one micro-batch, without metrics: verl reports the summed loss."""
        log_prob_BT = pad_responses(model_output["log_probs"], data["responses"])
        fields = data.select(
            self.reference, LABEL, WEIGHT, OFFSET, ROW, "response_mask"
        ).to_padded_tensor(0)
        mask_BT = fields["response_mask"]
        if self._recorded is not None:
            length_B = data["responses"].offsets().diff()
            self._recorded.append((fields[ROW], length_B, log_prob_BT.detach().float()))
        ratio_BT = log_ratio(log_prob_BT, fields[self.reference], mask_BT)
        rows = RowFields(fields[WEIGHT].float(), fields[LABEL].float(), fields[OFFSET].float())
        bias = {} if self.bias is None else {"bias": self.bias}
        loss = PRM_LOSSES[self.name].loss(ratio_BT, mask_BT, rows, self.beta, **bias)
        return loss * data["dp_size"], {}

    def start_recording(self) -> None:
        """Keep the log-probabilities of every forward pass from now on."""
        self._recorded = []

    def stop_recording(self) -> dict[int, torch.Tensor]:
        """Stop recording, and return the responses' log-probabilities by row number."""
        recorded = self._recorded
        self._recorded = None
        if not recorded:
            return {}
        rows, lengths, padded = zip(*recorded, strict=True)
        widths = [log_prob_BT.shape[1] for log_prob_BT in padded for _ in log_prob_BT]
        # One copy to the host for all micro-batches.
        log_probs = torch.cat([log_prob_BT.flatten() for log_prob_BT in padded]).cpu().split(widths)
        log_prob_by_row: dict[int, torch.Tensor] = {}
        columns = (torch.cat(rows).tolist(), torch.cat(lengths).tolist(), log_probs)
        for row, length, log_prob_T in zip(*columns, strict=True):
            # Keep the first of several epochs: later ones have trained on these rollouts.
            log_prob_by_row.setdefault(row, log_prob_T[:length])
        return log_prob_by_row
