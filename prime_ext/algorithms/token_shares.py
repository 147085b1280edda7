# SPDX-License-Identifier: Apache-2.0
"""Values of tokens of one tokenizer carried to the tokens of another, by the characters that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def token_bounds(lengths: Sequence[int], joins_next: Sequence[bool] | None = None) -> Array:
    """Where tokens begin and end in their text, ``(T + 1,)``, in characters from 0 on.

    Args:
        lengths: characters of each token.
        joins_next: whether a token without characters is a part of the character that a later token completes: such
            tokens share that token's characters evenly. Others without characters have no text at all.
    """
    size_T = np.asarray(lengths, dtype=np.float64).copy()
    if joins_next is not None:
        first = None
        for at, joins in enumerate(joins_next):
            if joins and first is None:
                first = at
            elif not joins and first is not None:
                size_T[first : at + 1] = size_T[at] / (at + 1 - first)
                first = None
    return np.concatenate([[0.0], np.cumsum(size_T)])


@dataclass(frozen=True)
class TokenShares:
    """Which part of a text is of which token of ``source`` and of which token of ``target``, one entry per part.

    Attributes:
        source_N: number of the token there.
        target_N: number of the token here.
        length_N: characters of the part.
        n_source: tokens there.
        n_target: tokens here.
    """

    source_N: torch.Tensor
    target_N: torch.Tensor
    length_N: torch.Tensor
    n_source: int
    n_target: int

    @classmethod
    def of(cls, source_bound_S1: Array, target_bound_T1: Array, valid_T: Array) -> "TokenShares":
        """Compare two divisions of one text.

        Args:
            source_bound_S1: from :func:`token_bounds`.
            target_bound_T1: likewise, with the same last bound.
            valid_T: tokens of the target that take part.

        Raises:
            ValueError: the texts differ in length.
        """
        source, target = float(source_bound_S1[-1]), float(target_bound_T1[-1])
        if abs(source - target) > 1e-6:
            raise ValueError(f"a text of {source:g} characters was compared with one of {target:g}")
        cut_M = np.union1d(source_bound_S1, target_bound_T1)
        length_N, middle_N = np.diff(cut_M), (cut_M[1:] + cut_M[:-1]) / 2
        # Sums of fractions may differ in their last digit: no part is that short.
        real_N = length_N > 1e-6
        length_N, middle_N = length_N[real_N], middle_N[real_N]
        source_N = np.searchsorted(source_bound_S1, middle_N, side="right") - 1
        target_N = np.searchsorted(target_bound_T1, middle_N, side="right") - 1
        keep_N = valid_T[target_N].astype(bool)
        return cls(
            torch.from_numpy(source_N[keep_N]),
            torch.from_numpy(target_N[keep_N]),
            torch.from_numpy(length_N[keep_N]),
            len(source_bound_S1) - 1,
            len(target_bound_T1) - 1,
        )

    @property
    def source_mask_S(self) -> torch.Tensor:
        """Whether a token there shares characters with a valid one here."""
        return torch.zeros(self.n_source, dtype=torch.bool).index_fill_(0, self.source_N, True)

    @property
    def target_mask_T(self) -> torch.Tensor:
        """Whether a token here is valid and has characters."""
        return torch.zeros(self.n_target, dtype=torch.bool).index_fill_(0, self.target_N, True)

    def to_target(self, value_S: torch.Tensor) -> torch.Tensor:
        """Values of the tokens there, each divided among the tokens here in proportion to characters, ``(T,)``.

        The sum over :attr:`source_mask_S` is preserved.
        """
        return self._carried(value_S, self.source_N, self.target_N, self.n_target)

    def to_source(self, value_T: torch.Tensor) -> torch.Tensor:
        """The other way round, ``(S,)``; the sum over :attr:`target_mask_T` is preserved."""
        return self._carried(value_T, self.target_N, self.source_N, self.n_source)

    def _carried(self, value: torch.Tensor, start_N: torch.Tensor, end_N: torch.Tensor, n_end: int) -> torch.Tensor:
        whole = torch.zeros(len(value), dtype=torch.float64).index_add_(0, start_N, self.length_N)
        part_N = value.double()[start_N] * self.length_N / whole[start_N]
        return torch.zeros(n_end, dtype=torch.float64).index_add_(0, end_N, part_N).to(value.dtype)
