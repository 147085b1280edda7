# SPDX-License-Identifier: Apache-2.0
"""Identity of a checkpoint's training, so that no run of another resumes from it by itself.

It has data, tokenizer, models, seeds and all settings that shape what is learned. Files are
compared by :func:`prime_ext.utils.files.digest_files`, not by their place.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from prime_ext.config.verl_keys import walk_items
from prime_ext.methods.settings import prm_section
from prime_ext.run.checkpoint import MARKER, find_changed_bytes, find_latest
from prime_ext.utils.files import digest_files, read_json
from prime_ext.utils.run_store import RunError

_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens*",
    "added_tokens*",
    "chat_template*",
    "*.model",
)
_MODEL_FILES = ("config.json", "*.safetensors", "*.bin")

# Settings that a resumed run must have like its checkpoint.
_SECTIONS = (
    "prime",
    "prm",
    "algorithm",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.model",
    "critic",
)
_VALUES = (
    "data.train_batch_size",
    "data.max_response_length",
    *(f"actor_rollout_ref.rollout.{name}" for name in ("n", "temperature", "top_p", "top_k")),
    "trainer.v1.separate_async.parameter_sync_step",
    *(f"step_scorer.{name}" for name in ("kind", "model", "judgement")),
)
# Not among them: memory, speed and place, and what to do when something goes wrong.
_FREE = re.compile(
    r"\.(_target_|path|\w+_path|\w*micro_batch_size\w*|\w*max_token_len\w*|use_dynamic_bsz|engine"
    r"|fsdp_config|fsdp|megatron|veomni|torchtitan|checkpoint|profiler|use_torch_compile|rollout_n"
    r"|use_fused_kernels|fused_kernel_options|enable_gradient_checkpointing|tiled_mlp|use_liger"
    r"|enable_activation_offload|use_remove_padding|use_shm|trust_remote_code|external_lib|strategy"
    r"|override_config|total_training_steps|oversample|max_examined|on_exhausted|on_failure|enable"
    r"|ulysses_\w+|entropy_\w+)(\.|$)"
)
_RANKS = "ranks"
# A checkpoint's tensors have the shape of these, so no resume can change them.
_SHAPES = re.compile(r"\.(lora\w*|target_modules|exclude_modules|trainable_layers)(\.|$)")
_OPTIMIZER = re.compile(r"(.*)\.(optim)\.|(prm)\.(bias_lr)$")
# Differences that a message lists.
_SHOWN = 3
_EXPORT = (
    "start with that number, or export policy and PRM (python -m prime_ext.generate.export) and"
    " start anew from their weights (docs/how_to/multi_node.md)"
)
# Files of a rank in a checkpoint, by the contents that verl loads.
_CONTENTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}

# ``identity``: by key the value for people, and what is compared. ``settings``: by key.
Identity = dict[str, dict[str, Any]]


def read_identity(config: DictConfig) -> Identity:
    """Return what a run is trained with, as JSON; files elsewhere count by name."""
    model = config.actor_rollout_ref.model
    rollout = config.actor_rollout_ref.rollout
    seeds = {
        "data.seed": config.data.get("seed"),
        "actor_rollout_ref.rollout.seed": rollout.get("seed"),
    }
    files = config.data.train_files
    paths = list(files) if isinstance(files, ListConfig) else [files]
    identity = {
        "data.train_files": [
            ", ".join(map(str, paths)),
            digest_files(Path(str(path)).expanduser() for path in paths),
        ],
        "the tokenizer of": _digest_model(
            model.get("tokenizer_path") or model.path, _TOKENIZER_FILES
        ),
        **{key: [seed, seed] for key, seed in seeds.items()},
        **{key: _digest_model(path, _MODEL_FILES) for key, path in _find_models(config)},
    }
    return {"identity": identity, "settings": _read_settings(config)}


def _digest_model(path: Any, patterns: Iterable[str]) -> list[str]:
    folder = Path(str(path)).expanduser()
    files = sorted(
        {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    )
    return [str(folder), digest_files(files or [folder])]


def _find_models(config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Yield the models whose weights a checkpoint may lack."""
    yield "actor_rollout_ref.model.path", config.actor_rollout_ref.model.path
    prm = prm_section(config)
    if prm is not None:
        yield "prm.model.path", prm.model.path
        if prm.reference == "frozen":
            yield "prm.reference_path", prm.reference_path
    scorer = OmegaConf.select(config, "step_scorer.model_path")
    if scorer:
        yield "step_scorer.model_path", scorer


def _read_settings(config: DictConfig) -> dict[str, Any]:
    """Return the settings that shape what is learned, by key, and the number of ranks."""
    trainer = config.trainer
    settings = {_RANKS: trainer.get("n_gpus_per_node", 1) * trainer.get("nnodes", 1)}
    for key in _VALUES:
        settings[key] = OmegaConf.select(config, key)
    algorithm = config.get("algorithm") or {}
    for name in _SECTIONS:
        section: Any = OmegaConf.select(config, name)
        unused = (name == "prm" and prm_section(config) is None) or (
            name == "critic" and algorithm.get("adv_estimator") != "gae"
        )
        if section is None or unused:
            continue
        for key, value in walk_items(OmegaConf.to_container(section, resolve=True), f"{name}."):
            if not isinstance(value, dict) and not _FREE.search(key):
                settings[key] = value
    if "prime" in config:
        # The trainer of PRIME sets it.
        settings.pop("algorithm.adv_estimator", None)
    return json.loads(json.dumps(settings))


def find_checkpoint(config: DictConfig) -> Path | None:
    """Return the folder that a run resumes from, None for none.

    Raises RunError: all that there are have been damaged.
    """
    trainer = config.trainer
    if trainer.resume_mode == "auto":
        return find_latest(Path(trainer.default_local_dir))
    if trainer.resume_mode != "resume_path" or not trainer.get("resume_from_path"):
        return None
    folder = Path(trainer.resume_from_path)
    if problem := find_changed_bytes(folder):
        raise RunError(f"trainer.resume_from_path={folder} is damaged: {problem}; choose another")
    return folder


def explain_refusal(config: DictConfig, identity: Identity, checkpoint: Path | None) -> str:
    """Return why a run must not resume from a checkpoint; empty if it may.

    Whoever names the checkpoint may change what a resumed run follows, but nothing that it would
    ignore.
    """
    trainer = config.trainer
    if checkpoint is None:
        return ""
    # verl loads the checkpoint for a validation, too, and then follows no setting of its training.
    if trainer.get("val_only", False):
        return next(iter(_find_missing_files(config, checkpoint)), "")
    marker = checkpoint / MARKER
    kept = read_json(marker) if marker.is_file() else {}
    changed = dict(_find_changes(kept, identity))
    named = trainer.resume_mode == "resume_path"
    for keys, remedy in (
        ([_RANKS], _EXPORT),
        (_select(_SHAPES, changed), "choose another trainer.default_local_dir"),
    ):
        if problem := _describe(checkpoint, changed, keys, remedy):
            return problem
    optimizers = [
        key
        for key in _select(_OPTIMIZER, changed)
        if not (named and _begins_optimizer_anew(config, key))
    ]
    begin = (
        f"trainer.resume_mode=resume_path trainer.resume_from_path={checkpoint}"
        " {}.checkpoint.load_contents=[model]"
    )
    if optimizers:
        section = optimizers[0].partition(".optim.")[0].partition(".bias_lr")[0]
        remedy = (
            "the optimizer of the checkpoint would go on with the old one. Leave it, or, to begin"
            f" an optimizer with these weights, set {begin.format(section)}"
        )
        return _describe(checkpoint, changed, optimizers, remedy)
    if not named:
        remedy = (
            "choose another trainer.default_local_dir, or, to continue from it all the same, set"
            f" trainer.resume_mode=resume_path trainer.resume_from_path={checkpoint}"
        )
        if problem := _describe(checkpoint, changed, changed, remedy):
            return problem
    return next(iter(_find_missing_files(config, checkpoint)), "")


def _find_changes(kept: dict[str, Any], identity: Identity) -> Iterator[tuple[str, str]]:
    """Yield keys that differ, as far as the checkpoint has them, with both values as text."""
    old = kept.get("identity", {})
    for key, (shown, compared) in identity["identity"].items():
        if key in old and old[key][1] != compared:
            now = "changed" if shown == old[key][0] else shown
            yield key, f"{key} {old[key][0]}, now it is {now}"
    before = kept.get("settings")
    now = identity["settings"]
    if before is None:
        return
    for key in sorted(before | now):
        if before.get(key) != now.get(key):
            yield key, f"{key} {_show(before.get(key))}, now it is {_show(now.get(key))}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _select(pattern: re.Pattern[str], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if pattern.search(key)]


def _describe(checkpoint: Path, changed: dict[str, str], keys: Iterable[str], remedy: str) -> str:
    reasons = [key for key in keys if key in changed]
    if not reasons:
        return ""
    # The variant says most.
    lines = [changed[key] for key in dict.fromkeys(["prime.variant", *reasons]) if key in changed]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"{checkpoint} was trained with {'; '.join(lines[:_SHOWN])}{more}; {remedy}"


def _begins_optimizer_anew(config: DictConfig, key: str) -> bool:
    match = _OPTIMIZER.match(key)
    section = match and (match[1] or match[3])
    contents = OmegaConf.select(config, f"{section}.checkpoint.load_contents") or ()
    return not {"optimizer", "extra"} & set(contents)


def _find_missing_files(config: DictConfig, checkpoint: Path) -> Iterator[str]:
    """Yield a line for each model that the checkpoint cannot restore on these ranks."""
    policy = config.actor_rollout_ref
    algorithm = config.get("algorithm") or {}
    sections = {}
    if str(OmegaConf.select(policy, "actor.strategy")).startswith("fsdp"):
        sections["actor"] = OmegaConf.select(policy, "actor.checkpoint")
        if algorithm.get("adv_estimator") == "gae":
            sections["critic"] = config.critic.checkpoint
    prm = prm_section(config)
    if prm is not None and prm.update_mode != "none":
        sections["prm"] = prm.checkpoint
    if OmegaConf.select(config, "prime.anchor") is not None:
        sections["policy_average"] = None
    ranks = _read_settings(config)[_RANKS]
    for name, section in sections.items():
        contents = ["model"] if section is None else section.load_contents
        for kind in contents:
            files = f"{_CONTENTS.get(kind, kind)}_world_size_{{}}_rank_*.pt"
            folder = checkpoint / name
            saved = {
                int(path.name.partition("_world_size_")[2].partition("_")[0])
                for path in folder.glob(files.format("*"))
            }
            if ranks in saved:
                continue
            if saved:
                yield (
                    f"{folder} was saved by {', '.join(map(str, sorted(saved)))} ranks, and this"
                    f" run has {ranks} (trainer.nnodes * trainer.n_gpus_per_node); {_EXPORT}"
                )
            else:
                yield (
                    f"{folder} has no {files.format(ranks)}, so this run cannot resume from it;"
                    " choose another trainer.default_local_dir, or export what is there"
                )
