# SPDX-License-Identifier: Apache-2.0
"""Models as they come: Hugging Face folders and hub ids, checkpoints of verl, LoRA adapters."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.generate.merge_checkpoint import LORA_META, is_fsdp_checkpoint, merge
from prime_ext.utils.files import read_json

TRACKER = "latest_checkpointed_iteration.txt"
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
        merged: whether verl's merger made the folder, and so rounded to bfloat16.
    """

    name: str
    path: str
    adapter: str | None = None
    revision: str | None = None
    merged: bool = False

    def description(self) -> dict[str, Any]:
        """For results: name, revision, and what tells the same name with other weights apart."""
        known: dict[str, Any] = {"model": self.name, "revision": self.revision}
        if Path(self.path).is_dir():
            known["weights"] = weights_digest(Path(self.path))
        if self.adapter is not None:
            known["lora"] = Path(self.adapter).name if Path(self.adapter).is_dir() else self.adapter
            if Path(self.adapter).is_dir():
                known["lora_weights"] = weights_digest(Path(self.adapter))
        if self.merged:
            known["merged_to"] = "bfloat16"
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
            merged; or a folder with a LoRA adapter, which names its base.
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
    checkpoint = checkpoint_in(folder)
    if checkpoint is None:
        return ModelSource(model, str(_whole(folder)), _adapter(lora))
    ready = checkpoint / "huggingface"
    # With LoRA, verl's hf_model holds names of the wrapped model, which nothing else can load; the merger sorts them.
    if _has_weights(ready) and not (checkpoint / LORA_META).is_file():
        return ModelSource(model, str(ready), _adapter(lora))
    merged = merge(checkpoint)
    trained = merged / "lora_adapter"
    if trained.is_dir() and lora is not None:
        raise BackendError(f"--lora {lora} cannot be applied: {model} has a LoRA adapter of its own")
    return ModelSource(model, str(merged), str(trained) if trained.is_dir() else _adapter(lora), merged=True)


def checkpoint_in(folder: Path) -> Path | None:
    """The folder of a checkpoint that a run's or a step's folder leads to; None if it is no checkpoint of verl.

    Raises:
        BackendError: there are several, none, or one of Megatron.
    """
    if is_fsdp_checkpoint(folder):
        return folder
    if (folder / "actor").is_dir():
        return _actor(folder / "actor")
    if (folder / TRACKER).is_file():
        step = (folder / TRACKER).read_text(encoding="utf-8").strip()
        if not (folder / f"global_step_{step}").is_dir():
            raise BackendError(f"{folder / TRACKER} names step {step}, but there is no folder global_step_{step}")
        return checkpoint_in(folder / f"global_step_{step}")
    steps = sorted(folder.glob("global_step_*"), key=lambda step: (len(step.name), step.name))
    if steps:
        raise BackendError(f"{folder} does not say which checkpoint is the latest ({TRACKER}); give {steps[-1]}")
    if (folder / "dist_ckpt").is_dir():
        return _actor(folder)
    return None


def _actor(folder: Path) -> Path:
    if is_fsdp_checkpoint(folder):
        return folder
    if any(folder.glob("**/dist_ckpt")):
        raise BackendError(
            f"{folder} is a checkpoint of Megatron; merge it with python -m verl.model_merger merge --backend megatron"
        )
    raise BackendError(f"{folder} has no fsdp_config.json; it holds {_contents(folder)}")


def _has_weights(folder: Path) -> bool:
    return any(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))


def _whole(folder: Path) -> Path:
    """A Hugging Face folder, or :class:`BackendError`."""
    if not (folder / "config.json").is_file():
        raise BackendError(
            f"{folder} is neither a Hugging Face model (config.json), a LoRA adapter (adapter_config.json) nor a "
            f"checkpoint of verl (fsdp_config.json); it holds {_contents(folder)}"
        )
    if not _has_weights(folder):
        raise BackendError(f"{folder} has a config.json but no weights ({_WEIGHTS[0]}); it holds {_contents(folder)}")
    return folder


def _adapter(lora: str | None) -> str | None:
    """An adapter that was named, or :class:`BackendError`."""
    if lora is None:
        return None
    folder = Path(lora).expanduser()
    if not folder.exists():
        if _HUB_ID.fullmatch(lora):
            return lora
        raise BackendError(f"--lora {lora} does not exist; give a folder with adapter_config.json, or a hub id")
    _adapter_config(folder)
    return str(folder)


def _adapter_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / "adapter_config.json")
    except (OSError, ValueError):
        raise BackendError(
            f"{folder} is no LoRA adapter: adapter_config.json is missing or broken; it holds {_contents(folder)}"
        ) from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise BackendError(f"{folder} is an adapter of type {kind}; only LORA is supported")
    if not any(any(folder.glob(pattern)) for pattern in _ADAPTER_WEIGHTS):
        raise BackendError(f"{folder} has an adapter_config.json but no weights ({_ADAPTER_WEIGHTS[0]})")
    return config


def _adapted(model: str, folder: Path, lora: str | None) -> ModelSource:
    config = _adapter_config(folder)
    if lora is not None:
        raise BackendError(f"--model {model} is itself an adapter; give its base as --model, and one adapter as --lora")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise BackendError(f"{folder} does not name its base model; give --model BASE --lora {model}")
    if not Path(base).exists() and not _HUB_ID.fullmatch(base):
        raise BackendError(f"{folder} is an adapter of {base}, which is not here; give --model BASE --lora {model}")
    found = find_model(base, None, config.get("revision") if not Path(base).exists() else None)
    if found.adapter is not None:
        raise BackendError(f"{folder} is an adapter of {base}, which has an adapter of its own; merge that one first")
    return ModelSource(model, found.path, str(folder), found.revision, found.merged)


def _contents(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "nothing"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
