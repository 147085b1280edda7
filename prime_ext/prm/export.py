# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder from a PRM's (or a policy's) FSDP checkpoint, with the LoRA adapter merged.

    python -m prime_ext.prm.export CHECKPOINT/global_step_80/prm OUTPUT [--dtype bfloat16]

verl's ``python -m verl.model_merger`` does the same for weights without an adapter, but always rounds to bfloat16, and
it leaves an adapter beside the base weights. Here weights keep the dtype of the checkpoint unless told otherwise. A
PRM trained with ``prm.bias`` gets a model card with the bias, which the weights do not hold.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.tensor import DTensor
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from prime_ext.prm.bias import FILE as BIAS_FILE
from prime_ext.utils.files import atomic_path, read_json

_ADAPTER = ".lora_A.default.weight"
_PEFT_PREFIX = "base_model.model."

_CARD = """\
---
library_name: transformers
tags: [process-reward-model]
---
# Implicit process reward model

q is log pi_prm - log pi_ref of a token of the response, pi_ref the reference that it was trained against. The reward of
a token is beta * q. The chance that the whole response is right is

    sigmoid(beta * sum of q + b), beta = {beta}, b = {bias}

with the bias b that was trained beside these weights (`prm.bias` of prime_ext; PRIME is arXiv 2502.01456).
"""


def merge_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Whole weights from the files ``model_world_size_N_rank_R.pt`` of a checkpoint, in their own dtype.

    Raises:
        FileNotFoundError: a rank's file is missing, or there is none at all.
        ValueError: the weights are not sharded the way FSDP does it.
    """
    names = sorted(folder.glob("model_world_size_*_rank_*.pt"))
    if not names:
        raise FileNotFoundError(f"{folder} has no model_world_size_*_rank_*.pt; it must be the folder prm or actor")
    world_size = int(names[0].name.split("_")[3])
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    placement: dict[str, tuple] = {}
    for rank in tqdm(range(world_size), desc="Reading shards", unit="rank"):
        path = folder / f"model_world_size_{world_size}_rank_{rank}.pt"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the checkpoint is not whole")
        for name, value in torch.load(path, map_location="cpu", weights_only=True).items():
            placement[name] = (value.placements, value.device_mesh.mesh.shape) if isinstance(value, DTensor) else ()
            parts[name].append(value._local_tensor if isinstance(value, DTensor) else value)
    return {name: _join(name, parts.pop(name), placement[name]) for name in list(parts)}


def _join(name: str, shards: list[torch.Tensor], placement: tuple) -> torch.Tensor:
    if not placement:
        return shards[0].clone()
    placements, mesh_shape = placement
    if len(placements) == 2 and placements[0].is_replicate():
        # Hybrid sharding: the first group of ranks holds everything.
        shards, placements = shards[: mesh_shape[-1]], placements[1:]
    if len(placements) != 1 or not (placements[0].is_shard() or placements[0].is_replicate()):
        raise ValueError(f"{name} is placed as {placements}, which FSDP does not do")
    if placements[0].is_replicate():
        return shards[0].clone()
    return torch.cat(shards, dim=placements[0].dim).contiguous()


def build_model(folder: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model of a checkpoint folder with its weights, the adapter merged if there is one."""
    weights = merge_shards(folder)
    floating = next(value for value in weights.values() if value.is_floating_point())
    config = AutoConfig.from_pretrained(folder / "huggingface")
    model = AutoModelForCausalLM.from_config(config, dtype=floating.dtype)
    adapted = [name.removesuffix(_ADAPTER) for name in weights if name.endswith(_ADAPTER)]
    if adapted:
        metadata = json.loads((folder / "lora_train_meta.json").read_text())
        modules = [name.removeprefix(_PEFT_PREFIX) for name in adapted]
        peft = get_peft_model(
            model, LoraConfig(r=metadata["r"], lora_alpha=metadata["lora_alpha"], target_modules=modules)
        )
        _load(peft, weights)
        model = peft.merge_and_unload()
    else:
        _load(model, weights)
    return model.to(dtype or floating.dtype)


def _load(model: Any, weights: dict[str, torch.Tensor]) -> None:
    missing, unexpected = model.load_state_dict(weights, strict=False)
    # Tied weights are written once.
    tied = {name for name in missing if name.endswith("lm_head.weight")}
    if unexpected or set(missing) - tied:
        odd = (sorted(unexpected) or sorted(set(missing) - tied))[0]
        raise ValueError(f"the checkpoint does not fit its own configuration: {odd}")
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def bias_card(folder: Path) -> str | None:
    """The model card of a PRM that was trained with a bias; None where there is no bias."""
    path = folder / BIAS_FILE
    return _CARD.format(**read_json(path)) if path.is_file() else None


def export(folder: Path, output: Path, dtype: torch.dtype | None = None) -> None:
    """Write model, configuration and tokenizer to ``output``, whole or not at all; a model card if there is a bias.

    Raises:
        FileExistsError: ``output`` is there already.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists; name a folder that does not")
    model = build_model(folder, dtype)
    with atomic_path(output) as temporary:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(folder / "huggingface").save_pretrained(temporary)
        card = bias_card(folder)
        if card is not None:
            (temporary / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder prm or actor of a global_step_N")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: that of the checkpoint")
    arguments = parser.parse_args()
    try:
        export(arguments.checkpoint, arguments.output, getattr(torch, arguments.dtype) if arguments.dtype else None)
    except (FileNotFoundError, FileExistsError, ValueError) as error:
        sys.exit(f"prime_ext.prm.export: {error}")
    print(f"{arguments.output}: written")


if __name__ == "__main__":
    main()
