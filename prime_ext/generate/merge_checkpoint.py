# SPDX-License-Identifier: Apache-2.0
"""FSDP checkpoints of verl as Hugging Face folders, made by verl's model merger, once per checkpoint.

The merger rounds all weights to bfloat16, whatever they were trained in.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.generate.http_retry import one_line
from prime_ext.utils.files import atomic_path, read_json, write_json

MERGED = "merged_hf"
MARK = "prime_ext_merge.json"
# Where merged models go when the checkpoint's folder cannot be written to.
CACHE_VARIABLE = "PRIME_EXT_CACHE"
LORA_META = "lora_train_meta.json"


def is_fsdp_checkpoint(folder: Path) -> bool:
    """Whether verl's FSDP engine wrote a model here."""
    return (folder / "fsdp_config.json").is_file() or any(folder.glob("model_world_size_*_rank_*.pt"))


def shard_files(folder: Path) -> list[Path]:
    """The files with the weights of all ranks.

    Raises:
        BackendError: some are missing; the checkpoint was not written to its end, or not copied whole.
    """
    try:
        size = read_json(folder / "fsdp_config.json")["world_size"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BackendError(
            f"{folder} is no whole checkpoint of verl: it has no fsdp_config.json with a world_size"
        ) from None
    files = [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BackendError(
            f"{folder} is no whole checkpoint: {len(missing)} of {size} shards are missing, {missing[0]} first; "
            "save with 'model' in checkpoint.save_contents, and copy the files of all ranks"
        )
    if not (folder / "huggingface" / "config.json").is_file():
        raise BackendError(f"{folder} is no whole checkpoint: huggingface/config.json is missing")
    return files


def state_of(folder: Path, shards: list[Path]) -> list[list[Any]]:
    """Names, sizes and times of the files that a merged model depends on."""
    files = [*shards, folder / "fsdp_config.json", folder / LORA_META]
    files += [file for file in (folder / "huggingface").iterdir() if file.is_file()]
    return sorted(
        [str(file.relative_to(folder)), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.exists()
    )


def target_of(folder: Path) -> Path:
    """Where the merged model of a checkpoint is or will be."""
    beside = folder / MERGED
    if beside.is_dir() or os.access(folder, os.W_OK):
        return beside
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "prime_ext")
    return cache / "merged" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def _check_not_adapter_only(folder: Path, shard: Path) -> None:
    """Raises :class:`BackendError` for a checkpoint without the weights of its base model."""
    import torch

    names = torch.load(shard, map_location="cpu", weights_only=True, mmap=True).keys()
    if all("lora_" in name or ".adapter_" in name for name in names):
        raise BackendError(
            f"{folder} holds a LoRA adapter without its base model (save_lora_only), which verl's merger cannot read; "
            "save checkpoints with save_lora_only=False"
        )


def merge(folder: Path) -> Path:
    """The merged model of a checkpoint: a Hugging Face folder, with ``lora_adapter`` in it if there is one.

    It is written to ``merged_hf`` in the checkpoint (or below ``$PRIME_EXT_CACHE`` if that is not allowed), appears
    when it is whole, and is made again when the checkpoint has changed.

    Args:
        folder: with ``fsdp_config.json``.

    Raises:
        BackendError: the checkpoint is not whole, or the merger fails.
    """
    shards = shard_files(folder)
    state, target = state_of(folder, shards), target_of(folder)
    if (target / MARK).is_file() and read_json(target / MARK)["checkpoint"] == state:
        return target
    if (folder / LORA_META).is_file():
        _check_not_adapter_only(folder, shards[0])
    print(f"merging {folder} ({len(shards)} shards, to bfloat16) into {target}", file=sys.stderr, flush=True)
    with atomic_path(target) as temporary:
        _run_merger(folder, temporary)
        write_json(temporary / MARK, {"checkpoint": state, "dtype": "bfloat16"})
    return target


def _run_merger(folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(folder), "--target_dir", str(target)]
    # In a process of its own: importing verl changes the process, and the memory is given back. It computes on the CPU.
    environment = os.environ | {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "prime_ext.plugin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise BackendError(one_line(f"verl's merger cannot merge {folder}: {lines[-1]}"))
    adapter = target / "lora_adapter" / "adapter_config.json"
    if adapter.is_file() and not json.loads(adapter.read_text(encoding="utf-8")).get("lora_alpha"):
        raise BackendError(f"{folder} lacks {LORA_META}, so the lora_alpha of its adapter is not known")
