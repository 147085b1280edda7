# SPDX-License-Identifier: Apache-2.0
"""From labelled responses to the tensors of a mini-batch, the same on every rank for any number of ranks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from prime_ext.offline_prm.data import BadData, Example, LabelledData
from prime_ext.prm.worker import ROW
from prime_ext.utils.text_tokens import TextEncoder, TextError


@dataclass(frozen=True)
class TokenRow:
    """One response as tokens.

    Attributes:
        prompt: token ids.
        response: token ids, at least one.
        step_ends: index of each step's last token in the response.
        step_labels: label of each step; None where there is none.
    """

    prompt: torch.Tensor
    response: torch.Tensor
    step_ends: tuple[int, ...] = ()
    step_labels: tuple[float | None, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def encode(encoder: TextEncoder, prompt: list[int], example: Example, max_length: int) -> TokenRow:
    """Tokens of a response, cut at ``max_length``; steps that end behind the cut lose their label."""
    ids, ends = encoder.response(example.text, example.char_ends)
    ids = ids[: max_length - len(prompt)]
    labels = tuple(label if end < len(ids) else None for end, label in zip(ends, example.step_labels, strict=True))
    return TokenRow(torch.tensor(prompt), torch.tensor(ids), tuple(min(end, len(ids) - 1) for end in ends), labels)


def epoch_batches(n_groups: int, prompts_per_step: int, seed: int, epoch: int) -> list[list[int]]:
    """Prompts of each optimiser step of an epoch: a permutation, cut into parts of equal size give or take one.

    Every prompt is met once; no part is smaller than ``prompts_per_step`` (unless there are fewer prompts), so that the
    last step of an epoch is no handful of rows with the weight of a full one.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_groups)
    return [part.tolist() for part in np.array_split(order, steps_per_epoch(n_groups, prompts_per_step))]


def steps_per_epoch(n_groups: int, prompts_per_step: int) -> int:
    """Optimiser steps of an epoch."""
    return max(1, n_groups // prompts_per_step)


@dataclass
class Batch:
    """This rank's share of some rows.

    Attributes:
        tensors: in the form verl's engines take.
        rows: row number of each; padding has numbers from ``n_rows`` on.
        size: rows over all ranks, padding included.
    """

    tensors: TensorDict
    rows: list[int]
    size: int


def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of different lengths as one jagged tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def build_batch(
    sequences: Sequence[TokenRow],
    fields: dict[str, list[torch.Tensor]],
    data_parallel_rank: int,
    data_parallel_size: int,
    multiple: int = 1,
    **options,
) -> Batch:
    """Rows padded to equal shares of the ranks, balanced over them by length.

    Args:
        sequences: all rows, the same on every rank.
        fields: more values of each row, a scalar or one value per response token.
        data_parallel_rank, data_parallel_size: whose share.
        multiple: what the size of a share must be a multiple of; the micro-batch, where its size is fixed.
        options: of verl's worker.
    """
    n_rows = len(sequences)
    unit = data_parallel_size * multiple
    size = -(-n_rows // unit) * unit
    first = sequences[0]
    # Padding is the first row's prompt with one token that the mask leaves out.
    padding = TokenRow(first.prompt[:1], first.response[:1])
    everything = [*sequences, *[padding] * (size - n_rows)]
    workload = calculate_workload(torch.tensor([len(sequence) for sequence in everything], dtype=torch.int64))
    shares = get_seqlen_balanced_partitions(workload, k_partitions=data_parallel_size, equal_size=True)
    rows = sorted(shares[data_parallel_rank])
    picked = [everything[row] for row in rows]
    masks = [torch.full_like(everything[row].response, int(row < n_rows)) for row in rows]
    tokens = [torch.cat((sequence.prompt, sequence.response)) for sequence in picked]
    tensors = {
        "input_ids": nested(tokens),
        "position_ids": nested([torch.arange(len(ids)) for ids in tokens]),
        "prompts": nested([sequence.prompt for sequence in picked]),
        "responses": nested([sequence.response for sequence in picked]),
        "response_mask": nested(masks),
        "loss_mask": nested(masks),
        ROW: torch.tensor(rows),
    }
    for name, values in fields.items():
        blank = torch.zeros(1) if values[0].dim() else torch.zeros(())
        column = [values[row] if row < n_rows else blank.to(values[0].dtype) for row in rows]
        tensors[name] = nested(column) if column[0].dim() else torch.stack(column)
    data = tu.get_tensordict(tensor_dict=tensors, non_tensor_dict={"pad_mode": "no_padding", **options})
    return Batch(data, rows, size)


def usable_groups(
    data: LabelledData, encoder: TextEncoder, max_length: int, overlong: str
) -> tuple[LabelledData, dict[str, int]]:
    """Tokenise prompts, and drop those that leave no room for a response and, if asked, responses that do not fit.

    Returns:
        the data with the tokens of the prompts, and how many prompts and responses were dropped.

    Raises:
        BadData: ``overlong`` is ``error`` and something does not fit, nothing is left, or a prompt has no tokens.
    """
    kept, counts = LabelledData(), {"prompts dropped": 0, "responses dropped": 0}
    for prompt, dataset, examples in zip(data.prompts, data.datasets, data.examples, strict=True):
        try:
            ids = encoder.prompt(prompt)
        except TextError as error:
            raise BadData(f"{examples[0].where}: {error}") from error
        room = max_length - len(ids)
        if room <= 0:
            if overlong == "error":
                raise BadData(f"{examples[0].where}: the prompt has {len(ids)} tokens, data.max_length={max_length}")
            counts["prompts dropped"] += 1
            continue
        # A token is at least one character, so only long texts have to be tokenised to know.
        fits = [
            overlong == "truncate" or len(e.text) + 1 <= room or len(encoder.response(e.text)[0]) <= room
            for e in examples
        ]
        if overlong == "error" and not all(fits):
            where = examples[fits.index(False)].where
            raise BadData(f"{where}: a response does not fit into data.max_length={max_length}")
        counts["responses dropped"] += fits.count(False)
        if any(fits):
            kept.add(prompt, dataset, itertools.compress(examples, fits))
            kept.prompt_ids.append(ids)
    if not kept.prompts:
        raise BadData(f"no prompt leaves room for a response within data.max_length={max_length}")
    return kept, counts
