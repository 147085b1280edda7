# SPDX-License-Identifier: Apache-2.0
"""Rollouts of the PRM's last updates, to be drawn from again: tensors in files.

A batch of B rollouts is a mapping of flat tensors, one file in safetensors:

=====================  ===========================================================================================
``label``              outcome, (B,)
``prompt_len``         tokens of each prompt, (B,)
``response_len``       tokens of each response, (B,)
``input_ids``          prompts and responses one after another
``position_ids``       of the same tokens, in the last dimension
``response_mask``      of the responses' tokens
``reference``          the reference's log-probabilities of the responses' tokens
=====================  ===========================================================================================
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from prime_ext.config.settings import ReplaySettings
from prime_ext.utils.files import atomic_path

_FILE = re.compile(r"update_(\d{9})\.safetensors")


class PRMReplay:
    """The last so many batches, oldest first.

    Batches are numbered in the order of the updates. What is drawn depends on the number of the update and on what was
    added before, so a resumed run draws what the uninterrupted one draws.

    Args:
        settings: the section ``prm.replay``.
        folder: of the store; touched at the first update, when a run is sure to own it.
    """

    def __init__(self, settings: ReplaySettings, folder: Path):
        self.settings = settings
        self.folder = folder
        self._settled = False
        # The file of each batch, by number.
        self._batches: dict[int, Path] = {}

    def draw(self, new: int) -> list[dict[str, torch.Tensor]]:
        """Rollouts beside so many new ones: ``ratio`` times as many, drawn without replacement, or all there are.

        Returns:
            For each rollout ``label``, ``input_ids``, ``position_ids``, ``prompts``, ``responses``, ``response_mask``
            and ``reference``.
        """
        places = [(number, row) for number in sorted(self._batches) for row in range(_size(self._batches[number]))]
        generator = torch.Generator().manual_seed(self._next)
        wanted = round(self.settings.ratio * new)
        drawn = [places[place] for place in torch.randperm(len(places), generator=generator)[:wanted].tolist()]
        batches = {number: _rows(load_file(self._batches[number])) for number in {number for number, _ in drawn}}
        return [batches[number][row] for number, row in drawn]

    def add(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Remember a batch, and forget the one that is too old for it."""
        number = self._next
        self._settle()
        self._batches[number] = self.folder / _name(number)
        with atomic_path(self._batches[number]) as temporary:
            save_file(dict(batch), temporary)
        for old in sorted(self._batches)[: -self.settings.batches]:
            self._batches.pop(old).unlink()

    def save(self, folder: Path) -> None:
        """Put all batches into a folder of a checkpoint; files are linked, so that they take no more room."""
        self._settle()
        self._fill(folder)

    def load(self, folder: Path) -> None:
        """Go on from what :meth:`save` wrote; the newest batches, where there are more than the settings allow.

        Raises:
            FileNotFoundError: the checkpoint was saved without replay.
        """
        if not folder.is_dir():
            raise FileNotFoundError(
                f"the checkpoint has no replayed rollouts at {folder}; it was saved with prm.replay.batches=0"
            )
        files = _files(folder)
        self._batches = {number: files[number] for number in sorted(files)[-self.settings.batches :]}

    @property
    def _next(self) -> int:
        return max(self._batches, default=0) + 1

    def _settle(self) -> None:
        """Have the batches in the folder, and no file of another run or of updates that are done again."""
        if not self._settled:
            self._fill(self.folder)
            self._batches = {number: self.folder / _name(number) for number in self._batches}
            self._settled = True

    def _fill(self, folder: Path) -> None:
        """Make a folder hold what is remembered, and no other update."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in _files(folder).values():
            path.unlink()
        for number, path in self._batches.items():
            _link(path, folder / _name(number))


def pack(rows: Mapping[str, Sequence[torch.Tensor]], label_B: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch as it is kept, from the fields of each rollout.

    Args:
        rows: ``prompts``, ``responses``, ``position_ids``, ``response_mask`` and ``reference``, one tensor per rollout.
        label_B: their outcomes.
    """
    lengths = {name: torch.tensor([len(value) for value in rows[name]]) for name in ("prompts", "responses")}
    tokens = [torch.cat(pair) for pair in zip(rows["prompts"], rows["responses"], strict=True)]
    return {
        "label": label_B.float().clone(),
        "prompt_len": lengths["prompts"],
        "response_len": lengths["responses"],
        "input_ids": torch.cat(tokens).int(),
        "position_ids": torch.cat(list(rows["position_ids"]), dim=-1).int(),
        "response_mask": torch.cat(list(rows["response_mask"])).to(torch.uint8),
        "reference": torch.cat(list(rows["reference"])).float(),
    }


def _rows(batch: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    prompt, response = batch["prompt_len"].tolist(), batch["response_len"].tolist()
    whole = [left + right for left, right in zip(prompt, response, strict=True)]
    ids, positions = batch["input_ids"].long().split(whole), batch["position_ids"].long().split(whole, dim=-1)
    masks, references = batch["response_mask"].long().split(response), batch["reference"].split(response)
    return [
        {
            "label": batch["label"][row],
            "input_ids": ids[row],
            "position_ids": positions[row],
            "prompts": ids[row][: prompt[row]],
            "responses": ids[row][prompt[row] :],
            "response_mask": masks[row],
            "reference": references[row],
        }
        for row in range(len(prompt))
    ]


def _name(number: int) -> str:
    return f"update_{number:09d}.safetensors"


def _files(folder: Path) -> dict[int, Path]:
    found = ((_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in sorted(found, key=lambda pair: pair[1].name) if match}


def _size(path: Path) -> int:
    """Read the number of rollouts in a file, and nothing else of it."""
    with safe_open(path, framework="pt") as file:
        return file.get_slice("label").get_shape()[0]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
