# SPDX-License-Identifier: Apache-2.0
"""Models as they come: Hugging Face folders and hub ids, checkpoints of verl, LoRA adapters."""

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError, one_line
from prime_ext.generate.export import LORA_META, CheckpointError, export, find_checkpoint, shard_files
from prime_ext.utils.files import read_json

EXPORTED = "exported_hf"
MARK = "prime_ext_export.json"
# Where exported models go when the checkpoint's folder cannot be written to.
CACHE_VARIABLE = "PRIME_EXT_CACHE"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "consolidated*.safetensors")
_ADAPTER_WEIGHTS = ("adapter_model*.safetensors", "adapter_model*.bin")
_SAMPLED_BYTES = 2**20


@dataclass(frozen=True)
class ModelSource:
    """Where a model's weights are.

    Attributes:
        name: as it was asked for.
        path: Hugging Face folder or hub id.
        adapter: folder or hub id of a LoRA adapter; None for none.
        revision: on the hub; None for the newest.
    """

    name: str
    path: str
    adapter: str | None = None
    revision: str | None = None

    def description(self) -> dict[str, Any]:
        """For results: name, revision, and what tells the same name with other weights apart."""
        known: dict[str, Any] = {"model": self.name, "revision": self.revision}
        if Path(self.path).is_dir():
            known["weights"] = weights_digest(Path(self.path))
        if self.adapter is not None:
            known["lora"] = Path(self.adapter).name if Path(self.adapter).is_dir() else self.adapter
            if Path(self.adapter).is_dir():
                known["lora_weights"] = weights_digest(Path(self.adapter))
        return known


def weights_digest(folder: Path) -> str:
    """A hash of the sizes, first and last bytes of the weight files: cheap, and the same for a copy."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _WEIGHTS + _ADAPTER_WEIGHTS for file in folder.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_SAMPLED_BYTES))
            stream.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(stream.read())
    return digest.hexdigest()[:16]


def find_model(model: str, lora: str | None = None, revision: str | None = None) -> ModelSource:
    """Make of what a user names something that transformers and vLLM can load.

    Args:
        model: a Hugging Face folder or hub id; a checkpoint of verl (the folder with ``fsdp_config.json``, the
            ``global_step_N`` above it, or the run's folder with ``latest_checkpointed_iteration.txt``), which is
            exported; or a folder with a LoRA adapter, which names its base.
        lora: an adapter to apply.
        revision: on the hub.

    Raises:
        BackendError: one line with what was found and what would be right.
    """
    folder = Path(model).expanduser()
    if not folder.exists():
        if _HUB_ID.fullmatch(model):
            return ModelSource(model, model, _adapter(lora), revision)
        raise BackendError(
            f"--model {model} does not exist; give a folder, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    if revision is not None:
        raise BackendError(f"--revision {revision} is for models on the hub; {model} is a folder")
    if folder.is_file():
        raise BackendError(f"--model {model} is a file; give the folder it is in")
    if (folder / "adapter_config.json").is_file():
        return _adapted(model, folder, lora)
    try:
        checkpoint = find_checkpoint(folder)
        if checkpoint is None:
            return ModelSource(model, str(_whole(folder)), _adapter(lora))
        ready = checkpoint / "huggingface"
        # With LoRA, verl's hf_model holds names of the wrapped model, which nothing else can load.
        if not _has_weights(ready) or (checkpoint / LORA_META).is_file():
            ready = _exported(checkpoint)
    except CheckpointError as error:
        raise BackendError(one_line(str(error))) from None
    return ModelSource(model, str(ready), _adapter(lora))


def _exported(folder: Path) -> Path:
    """The exported model of a checkpoint: in its folder, or below ``$PRIME_EXT_CACHE`` if that cannot be written to.

    It is made once, and again when the files of the checkpoint have changed.

    Raises:
        CheckpointError: the checkpoint is not whole.
    """
    shards = shard_files(folder)
    files = [*shards, folder / LORA_META, *(folder / "huggingface").iterdir()]
    state = sorted([str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file())
    target = folder / EXPORTED
    if not target.is_dir() and not os.access(folder, os.W_OK):
        cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "prime_ext")
        target = cache / "exported" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    if (target / MARK).is_file() and read_json(target / MARK) == state:
        return target
    print(f"exporting {folder} ({len(shards)} shards) to {target}", file=sys.stderr, flush=True)
    export(folder, target, files={MARK: json.dumps(state)})
    return target


def _has_weights(folder: Path) -> bool:
    return any(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))


def _whole(folder: Path) -> Path:
    """A Hugging Face folder, or :class:`BackendError`."""
    if not (folder / "config.json").is_file():
        names = sorted(entry.name for entry in folder.iterdir())
        raise BackendError(
            f"{folder} is neither a Hugging Face model (config.json), a LoRA adapter (adapter_config.json) nor a "
            f"checkpoint of verl (fsdp_config.json); it holds {', '.join(names[:5]) or 'nothing'}"
        )
    if not _has_weights(folder):
        raise BackendError(f"{folder} has a config.json but no weights ({_WEIGHTS[0]})")
    return folder


def _adapter(lora: str | None) -> str | None:
    """An adapter that was named, or :class:`BackendError`."""
    if lora is None or (not Path(lora).expanduser().exists() and _HUB_ID.fullmatch(lora)):
        return lora
    folder = Path(lora).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise BackendError(f"--lora {lora} is no LoRA adapter; give a folder with adapter_config.json, or a hub id")
    return str(folder)


def _adapted(model: str, folder: Path, lora: str | None) -> ModelSource:
    if lora is not None:
        raise BackendError(f"--model {model} is itself an adapter; give its base as --model, and one adapter as --lora")
    config = read_json(folder / "adapter_config.json")
    base = str(config.get("base_model_name_or_path"))
    if not Path(base).exists() and not _HUB_ID.fullmatch(base):
        raise BackendError(f"{folder} is an adapter of {base}, which is not here; give --model BASE --lora {model}")
    found = find_model(base, None, config.get("revision") if not Path(base).exists() else None)
    if found.adapter is not None:
        raise BackendError(f"{folder} is an adapter of {base}, which has an adapter of its own; merge that one first")
    return ModelSource(model, found.path, str(folder), found.revision)
