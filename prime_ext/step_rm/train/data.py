# SPDX-License-Identifier: Apache-2.0
"""The splits as token ids."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from prime_ext.step_rm.description import PairEncoder
from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.step_rm.records import read_steps
from prime_ext.step_rm.scorers.local import padded

# Rows that are tokenized in one call.
ROWS_AT_ONCE = 1024


class Row(NamedTuple):
    """What the model reads of a step, and its class: 0 to 2 for the labels -1, 0, 1."""

    ids: np.ndarray
    label: int
    context_cut: bool
    step_cut: bool


def digest(rows: Sequence[Row]) -> str:
    """Hash inputs and classes, in order."""
    state = hashlib.blake2b(np.asarray([row.label for row in rows], dtype=np.int8).tobytes(), digest_size=8)
    for row in rows:
        state.update(len(row.ids).to_bytes(4, "big") + row.ids.tobytes())
    return state.hexdigest()


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count rows, rows of each label, and over-long ones."""
    classes = Counter(row.label for row in rows)
    labels = {f"label {label}": classes[at] for at, label in enumerate(LABELS)}
    cut = {"previous steps cut": sum(row.context_cut for row in rows), "steps cut": sum(row.step_cut for row in rows)}
    return {"steps": len(rows), **labels, **cut}


def load_splits(paths: Sequence[str], encoder: PairEncoder) -> dict[str, list[Row]]:
    """Tokenize all splits of all files.

    Raises ``StepRMError``: a broken file, one group of questions in two splits, or nothing to train or validate on.
    """
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    places: dict[str, str] = {}
    for path in paths:
        rows = enumerate(tqdm(read_steps(path), desc=path, unit=" steps"), start=1)
        while part := list(itertools.islice(rows, ROWS_AT_ONCE)):
            encoded = encoder.encode_all([(row.question, row.previous, row.current) for _, row in part])
            for (number, row), item in zip(part, encoded, strict=True):
                if places.setdefault(row.group, row.split) != row.split:
                    raise StepRMError(
                        f"{path} row {number}: its question is in the split {row.split} here and {places[row.group]} "
                        "elsewhere; convert all files in one go, or with the same shares and seed"
                    )
                ids = np.asarray(item.ids, dtype=np.int32)
                splits[row.split].append(Row(ids, LABELS.index(row.label), item.context_cut, item.step_cut))
    for name in ("train", "validation"):
        if not splits[name]:
            raise StepRMError(
                f"no step is in the split {name}; convert with other shares or another seed, or with "
                "--near-duplicates text if the questions differ in numbers only"
            )
    if len({row.label for row in splits["train"]}) < 2:
        raise StepRMError(f"all steps to train on have the label {LABELS[splits['train'][0].label]}")
    return splits


def collate(rows: Sequence[Row], pad: int) -> dict[str, torch.Tensor]:
    """Build a batch, padded on the right with the id ``pad``."""
    id_BT, mask_BT = padded([torch.from_numpy(row.ids).long() for row in rows], pad)
    return {"input_ids": id_BT, "attention_mask": mask_BT, "labels": torch.tensor([row.label for row in rows])}
