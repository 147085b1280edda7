# SPDX-License-Identifier: Apache-2.0
"""The splits as token ids."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from prime_ext.step_rm.description import Input, PairEncoder
from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.step_rm.records import LabelledStep, read_steps
from prime_ext.step_rm.scorers.local import padded

# Rows that are tokenized in one call.
ROWS_AT_ONCE = 1024


@dataclass
class StepDataset(torch.utils.data.Dataset):
    """Inputs of one split: their tokens, their classes (0 to 2 for -1, 0, 1), and how many lost tokens."""

    ids: list[np.ndarray] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    contexts_cut: int = 0
    steps_cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.ids[index], "labels": self.classes[index]}

    def add(self, row: LabelledStep, item: Input) -> None:
        """Add a row as the model reads it."""
        self.ids.append(np.asarray(item.ids, dtype=np.int32))
        self.classes.append(LABELS.index(row.label))
        self.contexts_cut += item.context_cut
        self.steps_cut += item.step_cut

    def digest(self) -> str:
        """Hash inputs and classes, in order."""
        state = hashlib.blake2b(np.asarray(self.classes, dtype=np.int8).tobytes(), digest_size=8)
        for ids in self.ids:
            state.update(len(ids).to_bytes(4, "big") + ids.tobytes())
        return state.hexdigest()

    def counts(self) -> dict[str, int]:
        """Count rows, rows of each label, and over-long ones."""
        labels = {f"label {label}": self.classes.count(at) for at, label in enumerate(LABELS)}
        return {"steps": len(self), **labels, "previous steps cut": self.contexts_cut, "steps cut": self.steps_cut}


def load_splits(paths: Sequence[str], encoder: PairEncoder) -> dict[str, StepDataset]:
    """Tokenize all splits of all files.

    Raises ``StepRMError``: a broken file, one group of questions in two splits, or nothing to train or validate on.
    """
    splits = {name: StepDataset() for name in SPLITS}
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
                splits[row.split].add(row, item)
    for name in ("train", "validation"):
        if len(splits[name]) == 0:
            raise StepRMError(
                f"no step is in the split {name}; convert with other shares or another seed, or with "
                "--near-duplicates text if the questions differ in numbers only"
            )
    if len(set(splits["train"].classes)) < 2:
        raise StepRMError(f"all steps to train on have the label {LABELS[splits['train'].classes[0]]}")
    return splits


def collate(rows: Sequence[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Build a batch, padded on the right with the id ``pad``."""
    id_BT, mask_BT = padded([torch.from_numpy(row["input_ids"]).long() for row in rows], pad)
    return {"input_ids": id_BT, "attention_mask": mask_BT, "labels": torch.tensor([row["labels"] for row in rows])}
