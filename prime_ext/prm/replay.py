# SPDX-License-Identifier: Apache-2.0
"""Rollouts of the last PRM updates: a safetensors file per update, :data:`FIELDS` per rollout."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from prime_ext.utils.files import write_atomically

# Fields of a rollout with their dtypes in the file: its tokens, the reference's log-probabilities
# of the response, and the outcome.
FIELDS = {
    "prompts": torch.int32,
    "responses": torch.int32,
    "position_ids": torch.int32,
    "response_mask": torch.uint8,
    "reference": torch.float32,
    "label": torch.float32,
}
_FILE = re.compile(r"update_(\d{9})\.safetensors")


class PRMReplay:
    """The batches of the last updates, oldest first.

    The drawn rollouts depend on the update's number and on the batches added before, so a resumed
    run draws the same.

    Args:
        n_batches: number of updates that are kept (``prm.replay``).
        folder: folder of the files; not touched before the first update, when the run holds it.
    """

    def __init__(self, n_batches: int, folder: Path):
        self.n_batches = n_batches
        self.folder = folder
        self._settled = False
        # The file of each batch, by number.
        self._batches: dict[int, Path] = {}

    def draw(self, new: int) -> list[dict[str, torch.Tensor]]:
        """Draw ``new`` rollouts without replacement, or all if fewer: fields and ``input_ids``."""
        slots = [
            (number, row)
            for number in sorted(self._batches)
            for row in range(_size(self._batches[number]))
        ]
        generator = torch.Generator().manual_seed(self._next)
        drawn = [
            slots[index] for index in torch.randperm(len(slots), generator=generator)[:new].tolist()
        ]
        rollouts = {}
        for number in {number for number, _ in drawn}:
            with safe_open(self._batches[number], framework="pt") as file:
                for row in (row for of, row in drawn if of == number):
                    rollouts[number, row] = _read(file, row)
        return [rollouts[slot] for slot in drawn]

    def add(self, batch: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Add a batch, a tensor per rollout and field, and delete the batch that is now too old."""
        number = self._next
        self._settle()
        self._batches[number] = self.folder / _name(number)
        tensors = {
            f"{row}.{name}": value.to(dtype, copy=True)
            for name, dtype in FIELDS.items()
            for row, value in enumerate(batch[name])
        }
        with write_atomically(self._batches[number]) as temporary:
            save_file(tensors, temporary)
        for old in sorted(self._batches)[: -self.n_batches]:
            self._batches.pop(old).unlink()

    def save(self, folder: Path) -> None:
        """Link all batches into a folder of a checkpoint, which takes no extra space."""
        self._settle()
        self._fill(folder)

    def load(self, folder: Path) -> None:
        """Use the newest batches that :meth:`save` wrote, at most ``n_batches``.

        Raises FileNotFoundError: the checkpoint was saved without replay.
        """
        if not folder.is_dir():
            raise FileNotFoundError(
                f"the checkpoint has no replayed rollouts at {folder}; it was saved with"
                " prm.replay=0"
            )
        files = _files(folder)
        self._batches = {number: files[number] for number in sorted(files)[-self.n_batches :]}

    @property
    def _next(self) -> int:
        return max(self._batches, default=0) + 1

    def _settle(self) -> None:
        """Put the batches into the folder, once; delete updates of other runs or later steps."""
        if not self._settled:
            self._fill(self.folder)
            self._batches = {number: self.folder / _name(number) for number in self._batches}
            self._settled = True

    def _fill(self, folder: Path) -> None:
        """Put the batches into a folder, and delete all other updates there."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in _files(folder).values():
            path.unlink()
        for number, path in self._batches.items():
            _link(path, folder / _name(number))


def _read(file: safe_open, row: int) -> dict[str, torch.Tensor]:
    rollout = {name: file.get_tensor(f"{row}.{name}") for name in FIELDS}
    rollout = {
        name: value if value.is_floating_point() else value.long()
        for name, value in rollout.items()
    }
    return {**rollout, "input_ids": torch.cat((rollout["prompts"], rollout["responses"]))}


def _name(number: int) -> str:
    return f"update_{number:09d}.safetensors"


def _files(folder: Path) -> dict[int, Path]:
    matches = ((_FILE.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(match[1]): path for match, path in matches if match}


def _size(path: Path) -> int:
    """Return the number of rollouts in a file without reading its tensors."""
    with safe_open(path, framework="pt") as file:
        return len(file.keys()) // len(FIELDS)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        with write_atomically(target) as temporary:
            shutil.copyfile(source, temporary)
