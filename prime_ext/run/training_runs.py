# SPDX-License-Identifier: Apache-2.0
"""Settings, program and checkpoints of training step reward models and offline PRMs. No torch."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, BeforeValidator

from prime_ext.config.checks import SettingsError, Text, read
from prime_ext.run.checkpoint import MARKER, find_latest, mark_complete
from prime_ext.utils.files import read_json
from prime_ext.utils.run_store import RunLock, check_identity

METRICS_FILE = "metrics.jsonl"
Settings = TypeVar("Settings")


def _refuse_repeated(paths: list[str]) -> list[str]:
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"must name {path} once")
    return paths


# Files of data, one or a list; none for null.
Paths = Annotated[
    list[Text],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value or []),
    AfterValidator(_refuse_repeated),
]


def read_settings(kind: type[Settings], config: DictConfig) -> Settings:
    """Read a configuration's sections. Raises ``SettingsError``: a value is missing or wrong."""
    for key in sorted(OmegaConf.missing_keys(config)):
        raise SettingsError(f"{key} is missing; give {key}=...")
    values: Any = OmegaConf.to_container(config)
    return kind(
        **{
            name: read(section, values.get(name), name)
            for name, section in get_type_hints(kind).items()
        }
    )


def check_folder(key: str, path: str) -> None:
    """Raise ``SettingsError`` if a model is named by a folder that does not exist."""
    if path.startswith(("/", ".", "~")) and not Path(path).expanduser().is_dir():
        raise SettingsError(f"{key}={path} does not exist")


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock the folder of a run on the first rank. Raises ``RunError``: another run uses it."""
    with RunLock(folder, "trainer.output_dir") if is_first_rank() else nullcontext():
        yield


def check_folder_is_free(folder: Path) -> None:
    """Raise ``RunError`` if a run uses a folder, which need not exist."""
    if folder.is_dir():
        with hold_folder(folder):
            pass


def checkpoint_step(folder: Path | None) -> int:
    """Return the step of a checkpoint; 0 for none."""
    return int(re.split("[-_]", folder.name)[-1]) if folder else 0


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints in ``root``; ``identity`` must equal that of the run that wrote them."""

    root: Path
    identity: dict[str, Any]

    def find_latest(self) -> Path | None:
        """Return the latest complete checkpoint or None. ``RunError``: it has another identity."""
        folder = find_latest(self.root)
        if folder is not None:
            advice = "choose another trainer.output_dir or delete the folder"
            check_identity(folder, read_json(folder / MARKER)["identity"], self.identity, advice)
        return folder

    def complete(self, folder: Path) -> None:
        """Mark a checkpoint as complete."""
        mark_complete(folder, {"identity": self.identity})


def run_program(arguments: list[str] | None, doc: str, run: Callable[[list[str]], None]) -> int:
    """Run a training program with these words, or the command line's; return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if "-h" in words or "--help" in words:
        print(doc)
        return 0
    run(words)
    return 0


def is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
