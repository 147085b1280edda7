# SPDX-License-Identifier: Apache-2.0
"""Where the steps of generated responses end, as tokens."""

import logging
from typing import Any

import torch

from prime_ext.algorithms.steps import delimiter_boundaries
from prime_ext.config.reward_settings import StepSettings
from prime_ext.step_rm.response_cut import ResponseCutter

logger = logging.getLogger(__name__)


class ResponseSteps:
    """Finds steps as ``prime.steps`` says: in the text of the response, or behind delimiter tokens.

    The text is that of the valid tokens, so a tool's answer in the middle makes no steps.

    Attributes:
        timed_out: responses on which the pattern took too long, so far; each of them is one step.
    """

    def __init__(self, settings: StepSettings, tokenizer: Any):
        delimiters = settings.delimiters or ()
        self._ids = [delimiter for delimiter in delimiters if isinstance(delimiter, int)]
        self._cutter = None if self._ids else ResponseCutter(settings, tokenizer)
        self.timed_out = 0

    def boundaries(self, token_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Tokens after which a step ends, ``(B, T)`` bool; the end of the response is left to ``step_spans``."""
        if self._cutter is None:
            return delimiter_boundaries(token_BT, self._ids) & mask_BT.bool()
        boundary_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
        for row, mask_T in enumerate(mask_BT.bool()):
            position_N = mask_T.nonzero()[:, 0]
            if len(position_N) == 0:
                continue
            cut = self._cutter.cut(token_BT[row, position_N].tolist())
            if cut.timed_out:
                self.timed_out += 1
                logger.warning(
                    "prime.steps.pattern took too long on a response of %d tokens: it is one step", len(position_N)
                )
            boundary_BT[row, position_N[list(cut.ends[:-1])]] = True
        return boundary_BT
