# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder from a policy's or a PRM's FSDP checkpoint, with a LoRA adapter merged.

  python -m prime_ext.generate.export CHECKPOINT OUTPUT [--role prm] [--dtype bfloat16]

CHECKPOINT is the folder ``actor`` or ``prm``, the ``global_step_N`` above it, or the run's folder
with ``latest_checkpointed_iteration.txt``. Weights keep their precision without ``--dtype``; verl's
``python -m verl.model_merger`` always rounds to bfloat16, and it leaves an adapter next to the base
weights. A PRM also gets ``prime_ext_prm.json`` (:mod:`prime_ext.generate.prm_description`) with
reference, beta, and the bias of ``prm.bias``, which the weights do not hold. README.md is a model
card with base model, method and settings.
"""

import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from tqdm import tqdm

from prime_ext.generate import model_card
from prime_ext.generate.backend import BackendError
from prime_ext.generate.prm_description import FILE, make_relative, model_name, prm_description
from prime_ext.utils.arguments import Parser
from prime_ext.utils.files import find_changed, read_json, write_atomically, write_text
from prime_ext.utils.report_page import join_lines
from prime_ext.utils.run_store import command

TRACKER = "latest_checkpointed_iteration.txt"
# Of complete checkpoints (prime_ext/run/checkpoint.py).
MARKER = "prime_ext_complete.json"
LORA_META = "lora_train_meta.json"
# What prime_ext/verl_adapter/outcome_bias.py saves in the folder of the weights.
BIAS_FILE = "bias.json"
_PEFT_PREFIX = "base_model.model."


def find_checkpoint(folder: Path, role: str = "actor") -> Path | None:
    """Return the folder of a role's checkpoint, from that of a run, a step or a checkpoint.

    None if it is not a checkpoint of verl. Raises ``BackendError``: the latest step is unknown or
    missing, or the checkpoint is one of Megatron.
    """
    if (folder / "fsdp_config.json").is_file() or any(folder.glob("model_world_size_*_rank_*.pt")):
        return folder
    if (folder / role).is_dir():
        return find_checkpoint(folder / role)
    if (folder / TRACKER).is_file():
        step = (folder / TRACKER).read_text(encoding="utf-8").strip()
        if not (folder / f"global_step_{step}").is_dir():
            raise BackendError(
                f"{folder / TRACKER} names step {step}, but there is no folder global_step_{step}"
            )
        return find_checkpoint(folder / f"global_step_{step}", role)
    steps = sorted(folder.glob("global_step_*"), key=lambda step: (len(step.name), step.name))
    if steps:
        raise BackendError(
            f"{folder} does not say which checkpoint is the latest ({TRACKER}); give {steps[-1]}"
        )
    if any(folder.glob("**/dist_ckpt")):
        raise BackendError(
            f"{folder} is a checkpoint of Megatron; merge it with python -m verl.model_merger merge"
            " --backend megatron"
        )
    return None


def shard_files(folder: Path) -> list[Path]:
    """Return each ``model_world_size_N_rank_R.pt``; raise ``BackendError`` if one is missing."""
    first = next(iter(sorted(folder.glob("model_world_size_*_rank_*.pt"))), None)
    if first is None:
        raise BackendError(
            f"{folder} has no model_world_size_*_rank_*.pt: it must be the folder prm or actor of a"
            " checkpoint with 'model' in checkpoint.save_contents"
        )
    size = int(first.name.split("_")[3])
    files = [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BackendError(
            f"{folder} is not complete: {len(missing)} of {size} shards are missing, {missing[0]}"
            " first; copy the files of all ranks"
        )
    if not (folder / "huggingface" / "config.json").is_file():
        raise BackendError(f"{folder} is not complete: huggingface/config.json is missing")
    return files


def merge_shards(files: list[Path]) -> dict[str, torch.Tensor]:
    """Merge the files of all ranks into full weights, in their dtype.

    Raises ``BackendError``: a file cannot be read, or does not hold FSDP's shards.
    """
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    placement: dict[str, tuple] = {}
    # It warns of meshes without process groups; only their placements are read here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    if changed := find_changed(dict.fromkeys(files, 0), {}):
        raise BackendError(
            f"{changed} cannot be read: its bytes have changed; export another checkpoint"
        )
    for path in tqdm(files, desc="Reading shards", unit="rank"):
        try:
            shard = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds
            raise BackendError(join_lines(f"{path} cannot be read: {error}")) from error
        for name, value in shard.items():
            placement[name] = (
                (value.placements, value.device_mesh.mesh.shape)
                if isinstance(value, DTensor)
                else ()
            )
            parts[name].append(value._local_tensor if isinstance(value, DTensor) else value)
    return {name: _join(name, parts.pop(name), placement[name]) for name in list(parts)}


def _join(name: str, shards: list[torch.Tensor], placement: tuple) -> torch.Tensor:
    if not placement:
        return shards[0].clone()
    placements, mesh_shape = placement
    if len(placements) == 2 and placements[0].is_replicate():
        # Hybrid sharding: the first group of ranks holds everything.
        shards = shards[: mesh_shape[-1]]
        placements = placements[1:]
    if len(placements) != 1 or not (placements[0].is_shard() or placements[0].is_replicate()):
        raise BackendError(f"{name} is placed as {placements}, which FSDP does not do")
    if placements[0].is_replicate():
        return shards[0].clone()
    return torch.cat(shards, dim=placements[0].dim).contiguous()


def build_model(
    weights: Mapping[str, torch.Tensor],
    config: Any,
    lora: Mapping[str, Any] | None = None,
    remote_code: bool = False,
) -> Any:
    """Build a causal language model with these weights, in their dtype, ready to be saved.

    An adapter, named as by peft, is merged; ``lora`` has its ``r`` and ``lora_alpha``. Raises
    ``BackendError``.
    """
    from transformers import AutoModelForCausalLM

    adapter = {name: value for name, value in weights.items() if "lora_" in name}
    base = {
        name.removeprefix(_PEFT_PREFIX).replace(".base_layer.", "."): value
        for name, value in weights.items()
        if name not in adapter
    }
    if not base:
        raise BackendError(
            "the checkpoint holds a LoRA adapter without its base model (save_lora_only); save"
            " checkpoints with save_lora_only=False"
        )
    dtype = next(value.dtype for value in base.values() if value.is_floating_point())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=remote_code)
    _, unexpected = model.load_state_dict(base, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing or unexpected:
        raise BackendError(
            f"the checkpoint does not fit its own configuration: {(missing + unexpected)[0]}"
        )
    if not adapter:
        return model
    if lora is None or not lora.get("lora_alpha"):
        raise BackendError(
            f"the checkpoint lacks {LORA_META}, so the lora_alpha of its adapter is not known"
        )
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    ending = ".lora_A.default.weight"
    targets = [
        name.removeprefix(_PEFT_PREFIX).removesuffix(ending)
        for name in adapter
        if name.endswith(ending)
    ]
    wrapped = get_peft_model(
        model, LoraConfig(r=lora["r"], lora_alpha=lora["lora_alpha"], target_modules=targets)
    )
    set_peft_model_state_dict(
        wrapped, {name.replace(".default.", "."): value for name, value in adapter.items()}
    )
    return wrapped.merge_and_unload()


def write_folder(output: Path, model: Any, tokenizer: Any, files: Mapping[str, str]) -> None:
    """Write model, configuration, tokenizer and text files; the folder appears when complete."""
    with write_atomically(output) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for name, text in files.items():
            write_text(temporary / name, text)


def export(folder: Path, output: Path, dtype: torch.dtype | None = None) -> None:
    """Write ``prm`` or ``actor`` of a step as a Hugging Face folder, over an older one.

    A PRM gets its description. Raises ``BackendError``, and writes nothing, if the checkpoint is
    not complete or does not fit its configuration.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    ready = folder / "huggingface"
    weights = merge_shards(shard_files(folder))
    lora = read_json(folder / LORA_META) if (folder / LORA_META).is_file() else None
    model = build_model(weights, AutoConfig.from_pretrained(ready), lora)
    if (ready / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(ready)
    run = read_json(folder.parent / FILE) if (folder.parent / FILE).is_file() else {}
    facts = {
        "training step": run.get("step", read_step(folder)),
        "weights": str(dtype or model.dtype).removeprefix("torch."),
        "LoRA adapter": None if lora is None else f"rank {lora['r']}, merged",
    }
    described = {}
    if run and folder.name == "prm":
        bias = read_json(folder / BIAS_FILE) if (folder / BIAS_FILE).is_file() else None
        description = prm_description(run, bias, output)
        described[FILE] = json.dumps(description, indent=2) + "\n"
        described[model_card.FILE] = prm_card(output.name, description, facts)
    else:
        described[model_card.FILE] = policy_card(output, run, read_identity(folder.parent), facts)
    tokenizer = AutoTokenizer.from_pretrained(ready)
    write_folder(output, model.to(dtype) if dtype else model, tokenizer, described)


def read_step(folder: Path) -> int | None:
    """Return the step of a checkpoint from the name of its folder, None for another name."""
    match = re.fullmatch(r"global_step_(\d+)", folder.parent.name)
    return int(match[1]) if match else None


def read_identity(step: Path) -> Mapping[str, Any]:
    """Return what a complete checkpoint records of its run, empty if it is not known."""
    return read_json(step / MARKER).get("identity", {}) if (step / MARKER).is_file() else {}


def policy_card(
    output: Path, run: Mapping[str, Any], identity: Mapping[str, Any], facts: Mapping[str, Any]
) -> str:
    """Return the card of a policy; ``run`` is the trainer's file on the PRM, if there was one."""
    # Policy and tokenizer come from one folder, unless the user names another tokenizer.
    base = identity.get("the tokenizer of", [None])[0]
    files = str(identity.get("data.train_files", [""])[0]).split(", ")
    return model_card.build_card(
        output.name,
        "A language model trained by reinforcement learning with prime_ext, a plug-in of verl.",
        None if base is None else make_relative(model_name(base), output),
        facts={"variant": run.get("variant"), **facts},
        settings={
            # Nothing about the machine.
            "data.train_files": ", ".join(Path(file).name for file in files) or None,
            **{key: identity[key][0] for key in identity if key.endswith(".seed")},
        },
        scores={},
        load=model_card.LOAD_POLICY,
        use=model_card.USE_POLICY,
        tags=["reinforcement-learning"],
    )


def prm_card(title: str, description: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the card of an implicit PRM that was trained online, from its description."""
    names = ("loss", "beta", "bias", "reference", "reference_mode", "variant")
    return model_card.build_card(
        title,
        f"{model_card.METHOD_OF_IMPLICIT_PRM} It was trained online with a policy (PRIME).",
        description["initial_model"],
        facts=facts,
        settings={name: description.get(name) for name in names},
        scores={},
        load=model_card.load_prm(description["reference"]),
        use=model_card.USE_PRM,
        tags=["process-reward-model"],
    )


@command("prime_ext.generate.export")
def main(words: Sequence[str] | None = None) -> int:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "checkpoint", type=Path, help="folder of a checkpoint, of a global_step_N or of a run"
    )
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument(
        "--role",
        choices=("actor", "prm"),
        default="actor",
        help="of a step or a run (default: actor)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="default: that of the checkpoint",
    )
    arguments = parser.parse_args(words)
    if arguments.output.exists():
        raise BackendError(f"{arguments.output} exists; name a folder that does not")
    folder = find_checkpoint(arguments.checkpoint, arguments.role) or arguments.checkpoint
    export(folder, arguments.output, getattr(torch, arguments.dtype) if arguments.dtype else None)
    print(f"{arguments.output}: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
