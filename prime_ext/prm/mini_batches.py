# SPDX-License-Identifier: Apache-2.0
"""Assignment of rows to mini-batches of the PRM, independent of the number of ranks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Divides rows of these lengths over n ranks: equal numbers of rows, similar work.
ShareRows = Callable[[Sequence[int], int], list[list[int]]]


@dataclass(frozen=True)
class MiniBatchPlan:
    """Order and weights of the rows of a PRM update.

    Attributes:
        order: row numbers rank after rank, and for each rank its share of every mini-batch in turn.
        weight_B: weight of each row in its mini-batch's loss: 1 / (valid rows in it), 0 for
            padding.
        mini_batch_B: number of each row's mini-batch, from 0.
    """

    order: list[int]
    weight_B: torch.Tensor
    mini_batch_B: torch.Tensor


def plan_mini_batches(
    keys: Sequence[str],
    padding: Sequence[bool],
    lengths: Sequence[int],
    mini_batch_size: int,
    data_parallel_size: int,
    share_rows: ShareRows,
    replayed: Sequence[bool] | None = None,
) -> MiniBatchPlan:
    """Assign the rows to mini-batches and ranks.

    Valid rows are split evenly over the mini-batches in the order of their keys, which keeps
    complete groups together; padding fills up each mini-batch. Inside a mini-batch the ranks share
    the rows by sequence length. So the composition of mini-batches is the same for any number of
    ranks and any order of the rows.

    ``lengths`` are in tokens, ``mini_batch_size`` is in rows over all ranks. ``replayed`` rows, of
    earlier steps, are split evenly as well. Raises ValueError where the sizes do not divide.
    """
    rows = len(keys)
    if rows % mini_batch_size or mini_batch_size % data_parallel_size:
        raise ValueError(
            f"{rows} rows do not divide into mini-batches of {mini_batch_size} over"
            f" {data_parallel_size} ranks"
        )
    count = rows // mini_batch_size
    by_key = sorted(range(rows), key=lambda row: keys[row])
    old = replayed or [False] * rows
    new_and_replayed = [
        [row for row in by_key if not padding[row] and old[row] == again] for again in (False, True)
    ]
    spare = [row for row in by_key if padding[row]]

    weight_B = torch.zeros(rows)
    mini_batch_B = torch.zeros(rows, dtype=torch.long)
    shares: list[list[int]] = [[] for _ in range(data_parallel_size)]
    chunks = [
        np.array_split(np.array(row_numbers, dtype=int), count) for row_numbers in new_and_replayed
    ]
    for number, (new, again) in enumerate(zip(*chunks, strict=True)):
        members = [*new.tolist(), *again.tolist()]
        if members:
            weight_B[members] = 1.0 / len(members)
        fill = mini_batch_size - len(members)
        members = members + spare[:fill]
        spare = spare[fill:]
        mini_batch_B[members] = number
        partitions = share_rows([lengths[row] for row in members], data_parallel_size)
        for share, partition in zip(shares, partitions, strict=True):
            share.extend(members[position] for position in sorted(partition))
    return MiniBatchPlan([row for share in shares for row in share], weight_B, mini_batch_B)


def add_replayed_rows(rows: int, n_batches: int, replayed: int, ranks: int) -> int:
    """Return the rows of a mini-batch of ``rows`` with its share of replayed ones, for all ranks.

    It is a multiple of the ranks, so some rows may be padding.
    """
    with_share = rows + math.ceil(replayed / n_batches)
    return math.ceil(with_share / ranks) * ranks
