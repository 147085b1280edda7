# SPDX-License-Identifier: Apache-2.0
"""Tensors of a mini-batch from labeled responses, the same on each rank and for any ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from prime_ext.prm.fields import ROW
from prime_ext.utils.rows import SourceError
from prime_ext.utils.text_tokens import TextEncoder, TextError
from prime_ext.verl_adapter.offline_prm.labeled_responses import Example, PromptGroup
from prime_ext.verl_adapter.offline_prm.offline_settings import OfflineSettings


@dataclass(frozen=True)
class TokenRow:
    """One response as tokens, at least one, with the labels of its steps.

    ``labeled_ends`` has the index of the last token and the label of each step that has a label.
    """

    prompt: torch.Tensor
    response: torch.Tensor
    labeled_ends: tuple[tuple[int, float], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def encode(encoder: TextEncoder, prompt: list[int], example: Example, max_length: int) -> TokenRow:
    """Tokenize a response, cut at ``max_length``; steps that end after the cut lose their label."""
    ids, ends = encoder.response(example.text, example.char_ends)
    ids = ids[: max_length - len(prompt)]
    labels = zip(ends, example.step_labels, strict=True)
    labeled = tuple((end, label) for end, label in labels if label is not None and end < len(ids))
    return TokenRow(torch.tensor(prompt), torch.tensor(ids), labeled)


def epoch_batches(n_groups: int, prompts_per_step: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the prompts of each optimizer step: a permutation in parts of almost equal size.

    No part is smaller than ``prompts_per_step`` if there are as many, so that a few leftover rows
    never make a full step.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_groups)
    return [
        prompts.tolist()
        for prompts in np.array_split(order, steps_per_epoch(n_groups, prompts_per_step))
    ]


def steps_per_epoch(n_groups: int, prompts_per_step: int) -> int:
    return max(1, n_groups // prompts_per_step)


def build_jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join rows of different lengths into one jagged tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def build_batch(
    sequences: Sequence[TokenRow],
    fields: dict[str, list[torch.Tensor]],
    data_parallel_rank: int,
    data_parallel_size: int,
    **options,
) -> tuple[TensorDict, list[int]]:
    """Pad rows, which every rank has, to equal shares of the ranks, balanced by length.

    ``fields`` are more values of each row, a scalar or one per response token. Return this rank's
    share in the form of verl's engines, with the options of its worker, and the number of each row,
    at least ``len(sequences)`` for padding.
    """
    n_rows = len(sequences)
    size = -(-n_rows // data_parallel_size) * data_parallel_size
    first = sequences[0]
    # Padding is the first token of a prompt and one of a response, which the mask leaves out.
    padding = TokenRow(first.prompt[:1], first.response[:1])
    everything = [*sequences, *[padding] * (size - n_rows)]
    workload = calculate_workload(
        torch.tensor([len(sequence) for sequence in everything], dtype=torch.int64)
    )
    shares = get_seqlen_balanced_partitions(
        workload, k_partitions=data_parallel_size, equal_size=True
    )
    rows = sorted(shares[data_parallel_rank])
    picked = [everything[row] for row in rows]
    masks = [torch.full_like(everything[row].response, int(row < n_rows)) for row in rows]
    tokens = [torch.cat((sequence.prompt, sequence.response)) for sequence in picked]
    tensors = {
        "input_ids": build_jagged(tokens),
        "position_ids": build_jagged([torch.arange(len(ids)) for ids in tokens]),
        "prompts": build_jagged([sequence.prompt for sequence in picked]),
        "responses": build_jagged([sequence.response for sequence in picked]),
        "response_mask": build_jagged(masks),
        "loss_mask": build_jagged(masks),
        ROW: torch.tensor(rows),
    }
    for name, values in fields.items():
        blank = torch.zeros(1) if values[0].dim() else torch.zeros(())
        column = [values[row] if row < n_rows else blank.to(values[0].dtype) for row in rows]
        tensors[name] = build_jagged(column) if column[0].dim() else torch.stack(column)
    data = tu.get_tensordict(
        tensor_dict=tensors, non_tensor_dict={"pad_mode": "no_padding", **options}
    )
    return data, rows


def encode_prompts(
    groups: Sequence[PromptGroup], encoder: TextEncoder, max_length: int
) -> list[PromptGroup]:
    """Tokenize prompts and drop those that leave no room for a response.

    Raises SourceError: none is left.
    """
    for group in groups:
        try:
            group.prompt_ids = encoder.prompt(group.prompt)
        except TextError as error:
            raise SourceError(f"{group.examples[0].where}: {error}") from error
    usable = [group for group in groups if len(group.prompt_ids) < max_length]
    if groups and not usable:
        raise SourceError(
            f"no prompt leaves room for a response within data.max_length={max_length}"
        )
    return usable


def drop_cut_responses(
    groups: list[PromptGroup], encoder: TextEncoder, max_length: int
) -> list[PromptGroup]:
    """Return the groups without responses that are too long, and without groups that lose all.

    Their label is that of the complete response, so it says nothing about its beginning. Prompts
    must have their tokens. Raises SourceError: no response is left.
    """
    kept = []
    for group in groups:
        room = max_length - len(group.prompt_ids)
        examples = [
            example
            for example in group.examples
            # A token has at least one byte; the last is that of the end of sequence.
            if len(example.text.encode("utf-8", "replace")) < room
            or len(encoder.response(example.text)[0]) <= room
        ]
        if examples:
            kept.append(replace(group, examples=examples))
    if groups and not kept:
        raise SourceError(f"no response fits within data.max_length={max_length}; raise it")
    return kept


def prepare_groups(
    groups: list[PromptGroup], encoder: TextEncoder, settings: OfflineSettings
) -> list[PromptGroup]:
    """Tokenize prompts; drop those without room, and responses whose label would not fit a cut.

    Raises SourceError: none is left.
    """
    limit = settings.data.max_length
    usable = encode_prompts(groups, encoder, limit)
    return usable if settings.prm.by_step else drop_cut_responses(usable, encoder, limit)
