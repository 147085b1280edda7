# SPDX-License-Identifier: Apache-2.0
"""The steps of a response: where they end, sums over them, and their values back on tokens."""

from dataclasses import dataclass

import torch

from prime_ext.algorithms.returns import apply_mask, mark_last_token


@dataclass(frozen=True)
class StepSpans:
    """Steps of each row, padded to the largest number of steps in the batch.

    Attributes:
        end_BS: position of the last token of each step, which short steps may share; 0 in the
            padding.
        mask_BS: whether the row has that step. Steps come first, so the mask is a prefix.
        length_BS: valid tokens in the step, its last one included.
        step_BT: number of the step of each valid token, -1 outside the response mask.
    """

    end_BS: torch.Tensor
    mask_BS: torch.Tensor
    length_BS: torch.Tensor
    step_BT: torch.Tensor

    @property
    def count_B(self) -> torch.Tensor:
        """Return the number of steps of each row."""
        return self.mask_BS.sum(-1)


def step_spans(boundary_BT: torch.Tensor, mask_BT: torch.Tensor) -> StepSpans:
    """Cut each response after its boundary tokens; the last valid token closes the last step.

    A boundary at the last token makes no empty step, and a row without valid tokens has no step.
    Boundaries outside the mask are ignored.
    """
    mask_BT = mask_BT.bool()
    end_BT = (boundary_BT.bool() & mask_BT) | mark_last_token(mask_BT)
    count_B = end_BT.sum(-1)
    n_steps = max(1, int(count_B.max())) if len(count_B) else 1
    step_BT = torch.where(mask_BT, end_BT.cumsum(-1) - end_BT.long(), -1)
    mask_BS = torch.arange(n_steps, device=mask_BT.device)[None, :] < count_B[:, None]
    # One more column collects the tokens outside of all steps.
    blank_BS = torch.zeros(len(mask_BT), n_steps + 1, dtype=torch.int64, device=mask_BT.device)
    position_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(step_BT)
    end_BS = blank_BS.scatter(1, torch.where(end_BT, step_BT, n_steps), position_BT)
    length_BS = blank_BS.scatter_add(1, torch.where(mask_BT, step_BT, n_steps), mask_BT.long())
    return StepSpans(torch.where(mask_BS, end_BS[:, :-1], 0), mask_BS, length_BS[:, :-1], step_BT)


def spans_from_ends(
    end_BS: torch.Tensor, mask_BS: torch.Tensor, mask_BT: torch.Tensor
) -> StepSpans:
    """Return the steps that end at given valid tokens, in ascending order.

    A token belongs to the first step that ends there or later; a step whose tokens belong to the
    one before has the length 0.
    """
    n_steps = mask_BS.shape[1]
    n_tokens = mask_BT.shape[1]
    sorted_BS = torch.where(mask_BS, end_BS, n_tokens)
    position_BT = torch.arange(n_tokens, device=mask_BT.device).expand_as(mask_BT).contiguous()
    step_BT = torch.searchsorted(sorted_BS, position_BT)
    inside_BT = mask_BT.bool() & (step_BT < mask_BS.sum(-1, keepdim=True))
    step_BT = torch.where(inside_BT, step_BT, -1)
    blank_BS = torch.zeros(len(mask_BT), n_steps + 1, dtype=torch.int64, device=mask_BT.device)
    length_BS = blank_BS.scatter_add(1, torch.where(inside_BT, step_BT, n_steps), inside_BT.long())
    return StepSpans(torch.where(mask_BS, end_BS, 0), mask_BS, length_BS[:, :-1], step_BT)


def find_valid_ends(end_S: torch.Tensor, mask_T: torch.Tensor) -> torch.Tensor:
    """Return the last valid token at or before each given token, or the first, ``(S,)`` int64."""
    position_N = mask_T.nonzero()[:, 0]
    return position_N[(torch.searchsorted(position_N, end_S, right=True) - 1).clamp_min(0)]


def sum_over_steps(value_BT: torch.Tensor, spans: StepSpans) -> torch.Tensor:
    """Sum the values of the valid tokens of each step, ``(B, S)``, 0 in the padding."""
    inside_BT = spans.step_BT >= 0
    n_steps = spans.mask_BS.shape[1]
    kept_BT = apply_mask(value_BT, inside_BT)
    total_BS = kept_BT.new_zeros(len(kept_BT), n_steps + 1)
    return total_BS.scatter_add_(1, torch.where(inside_BT, spans.step_BT, n_steps), kept_BT)[:, :-1]


def place_at_ends(value_BS: torch.Tensor, spans: StepSpans) -> torch.Tensor:
    """Place each step's value at its last token, 0 elsewhere, ``(B, T)``.

    The values of steps that share a token are added there.
    """
    n_tokens = spans.step_BT.shape[1]
    placed_BT = value_BS.new_zeros(len(value_BS), n_tokens + 1)
    column_BS = torch.where(spans.mask_BS, spans.end_BS, n_tokens)
    return placed_BT.scatter_add_(1, column_BS, value_BS)[:, :-1]


def mark_ends(spans: StepSpans) -> torch.Tensor:
    """Return whether a step ends at a token, ``(B, T)`` float32."""
    return place_at_ends(spans.mask_BS.float(), spans).clamp_max(1.0)
