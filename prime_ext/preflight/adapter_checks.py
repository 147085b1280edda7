# SPDX-License-Identifier: Apache-2.0
"""Checks of LoRA adapters against the modules of their model, which is built without weights."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from prime_ext.preflight.prm_checks import has_adapter

_TIED = ("lm_head", "embed_tokens", "wte", "embed_out", "embed_in")


def check_adapter(key: str, model: Any) -> Iterable[str]:
    """Check that an adapter has modules to change, and leaves tied embeddings alone.

    Embeddings that are also the output layer get one change and not the other: the merged weights
    of rollouts and exports are then another model than the one that is trained.
    """
    folder = Path(str(model.path)).expanduser()
    if not has_adapter(model) or not (folder / "config.json").is_file():
        return
    where = f"{key}.target_modules"
    targets = model.get("target_modules")
    excluded = model.get("exclude_modules")
    if path := model.get("lora_adapter_path"):
        config = Path(str(path)).expanduser() / "adapter_config.json"
        where = f"{key}.lora_adapter_path"
        if not config.is_file():
            yield f"{where}={path} has no adapter_config.json, so it is not an adapter of peft"
            return
        adapter = json.loads(config.read_text())
        targets = adapter.get("target_modules")
        excluded = adapter.get("exclude_modules")
    targets, excluded = (
        OmegaConf.to_container(modules) if OmegaConf.is_config(modules) else modules
        for modules in (targets, excluded)
    )
    if targets in ("all-linear", None):
        # peft leaves the output layer out.
        return
    names, tied = _read_modules(folder, bool(model.trust_remote_code))
    chosen = [name for name in names if _matches(name, targets) and not _matches(name, excluded)]
    unknown = [
        target for target in _list(targets) if not any(_matches(name, [target]) for name in names)
    ]
    if not chosen or (unknown and not isinstance(targets, str)):
        known = sorted({name.rpartition(".")[2] for name in names})
        what = f"{where}={targets}" if where.endswith("modules") else f"target_modules of {where}"
        yield f"{what} names no module of {folder}: it has {', '.join(known)[:200]}"
    shared = [name for name in chosen if name.rpartition(".")[2] in _TIED]
    if tied and shared:
        yield (
            f"{where}: an adapter on {shared[0]} of {folder}, whose embeddings are tied, makes"
            " rollouts and exports another model than the one that is trained; leave it out"
        )


def _list(targets: Any) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets or ())


def _matches(name: str, targets: Any) -> bool:
    """Return whether peft takes a module for one of the targets."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in targets or ())


def _read_modules(folder: Path, remote_code: bool) -> tuple[list[str], bool]:
    """Return the names of a model's linear layers and embeddings, and whether these are tied."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=remote_code)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=remote_code)
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return names, bool(config.tie_word_embeddings)
