# SPDX-License-Identifier: Apache-2.0
"""Batches of rollouts for hypothesis: groups of any size and order, holes, padding, garbage."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from prime_ext.algorithms.steps import step_spans

NAN = float("nan")
INF = float("inf")


@dataclass
class Batch:
    """Rollouts of a few prompts; whatever stands outside the mask is garbage."""

    reward_BT: torch.Tensor
    mask_BT: torch.Tensor
    group_B: torch.Tensor
    label_B: torch.Tensor

    def permuted(self, order: list[int]) -> "Batch":
        return Batch(
            self.reward_BT[order], self.mask_BT[order], self.group_B[order], self.label_B[order]
        )

    @property
    def rows(self) -> list[int]:  # without padding
        return [row for row in range(len(self.group_B)) if self.mask_BT[row].any()]

    def tokens(self, row: int) -> list[int]:
        return [t for t in range(self.mask_BT.shape[1]) if self.mask_BT[row, t]]

    def rewards(self, row: int) -> list[float]:
        return self.reward_BT[row, self.tokens(row)].tolist()

    def on_tokens(self, values_of_row: Callable[[int], list[float]]) -> torch.Tensor:
        """Return these values at the valid tokens of each row, 0 elsewhere, ``(B, T)``."""
        result_BT = torch.zeros_like(self.reward_BT)
        for row in self.rows:
            result_BT[row, self.tokens(row)] = torch.tensor(
                values_of_row(row), dtype=result_BT.dtype
            )
        return result_BT

    def members(self, row: int) -> list[int]:  # of the same prompt
        return [other for other in self.rows if self.group_B[other] == self.group_B[row]]


def to_go(values: list[float], discount: float = 1.0) -> list[float]:
    return [
        sum(discount**lag * value for lag, value in enumerate(values[k:]))
        for k in range(len(values))
    ]


@st.composite
def batches(draw, holes: bool = True, padding: bool = True, min_group: int = 1, max_group: int = 5):
    """Draw float64 batches, so that loops over Python floats have no rounding to excuse."""
    sizes = draw(st.lists(st.integers(min_group, max_group), min_size=1, max_size=4))
    n_tokens = draw(st.integers(1, 6))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for group, size in enumerate(sizes):
        for _ in range(size):
            length = rng.randint(1, n_tokens)
            mask = [float(t < length) for t in range(n_tokens)]
            if holes:
                # The first and the last token of a response are never a tool's answer.
                mask = [
                    m if t in (0, length - 1) or rng.random() < 0.7 else 0.0
                    for t, m in enumerate(mask)
                ]
            reward = [
                rng.uniform(-3, 3) if m else rng.choice([0.0, 7.0, NAN, INF, -INF]) for m in mask
            ]
            rows.append((reward, mask, 10 * group + 3, rng.choice([0.0, 1.0, 1.0, 0.25, 0.5])))
    if padding:
        for _ in range(draw(st.integers(0, 3))):
            garbage = [rng.choice([0.0, 5.0, NAN, INF]) for _ in range(n_tokens)]
            # Padding may even carry the id of a real prompt.
            rows.append((garbage, [0.0] * n_tokens, rng.choice([3, 99]), rng.choice([0.0, 1.0])))
    rng.shuffle(rows)
    reward, mask, group, label = zip(*rows, strict=True)
    return Batch(
        torch.tensor(reward, dtype=torch.float64),
        torch.tensor(mask, dtype=torch.float64),
        torch.tensor(group),
        torch.tensor(label, dtype=torch.float64),
    )


def orders(batch: Batch, seed: int) -> list[int]:
    order = list(range(len(batch.group_B)))
    random.Random(seed).shuffle(order)
    return order


def random_boundaries(batch: Batch, seed: int) -> torch.Tensor:
    """Return ends of steps at about four of ten positions, outside the mask too."""
    return torch.rand(batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def random_spans(batch: Batch, seed: int):
    """Return the steps that end at :func:`random_boundaries`."""
    return step_spans(random_boundaries(batch, seed), batch.mask_BT)


@st.composite
def step_scores(draw, low=0.0, high=1.0, most=12):
    """Draw scores with garbage after a row's steps (it may have none), and the mask of steps."""
    counts = draw(st.lists(st.integers(0, most), min_size=1, max_size=6))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    width = max(1, *counts, 0)
    rows = [
        [rng.uniform(low, high) if k < n else rng.choice([NAN, INF, -5.0]) for k in range(width)]
        for n in counts
    ]
    mask_BS = torch.tensor([[k < n for k in range(width)] for n in counts])
    return torch.tensor(rows, dtype=torch.float64), mask_BS
