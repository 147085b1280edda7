# SPDX-License-Identifier: Apache-2.0
"""Checks that what is trained learns, and that its checkpoints are whole, for all models alike."""

import pkgutil
from collections.abc import Iterable, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.preflight.prm_checks import check_weights

ACTOR = "actor_rollout_ref.actor"
CRITIC = "critic"
PRM = "prm"
# Where the engine of each model is, on FSDP.
ENGINES = {ACTOR: f"{ACTOR}.fsdp_config", CRITIC: "critic.fsdp", PRM: "prm.engine"}
# Contents of a checkpoint without which a resumed run is another one.
CONTENTS = ("model", "optimizer", "extra")


def check_learning(config: DictConfig, learners: Sequence[str]) -> Iterable[str]:
    """Check the sections of the models that are trained: ``actor``, ``critic`` and ``prm``."""
    for section in learners:
        yield from _check_engine(config, section)
        yield from _check_optimizer(
            f"{section}.optim", OmegaConf.select(config, f"{section}.optim")
        )
        yield from _check_contents(config, section)
    yield from _check_clip(config.actor_rollout_ref.actor)
    warmup = config.trainer.critic_warmup
    if warmup > 0 and tuple(learners) == (ACTOR,):
        yield (
            f"trainer.critic_warmup={warmup} holds the policy, and neither a critic nor a PRM is"
            " trained meanwhile; set it to 0"
        )


def _check_engine(config: DictConfig, section: str) -> Iterable[str]:
    key = ENGINES[section]
    engine: Any = OmegaConf.select(config, key)
    # Megatron's optimizer keeps weights in float32 itself.
    if engine is None or "model_dtype" not in engine:
        return
    yield from check_weights(key, engine)
    if engine.get("forward_only"):
        yield f"{key}.forward_only=true builds no optimizer; leave it false"


def _check_optimizer(key: str, optimizer: Any) -> Iterable[str]:
    """Check that FSDP's optimizer can be imported, which verl does in its workers."""
    if "optimizer_impl" not in optimizer:
        return
    name = f"{optimizer.optimizer_impl}:{optimizer.optimizer}"
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        yield f"{key}.optimizer={optimizer.optimizer} cannot be imported: {error}"
    changes = optimizer.get("override_optimizer_config") or {}
    for name in sorted({"lr", "betas", "weight_decay"} & set(changes)):
        yield f"{key}.override_optimizer_config.{name} replaces {key}.{name}; set that"


def _check_contents(config: DictConfig, section: str) -> Iterable[str]:
    """Check that checkpoints hold what a resumed run loads.

    Whoever names a checkpoint may leave out its optimizer and schedule, to begin them anew.
    """
    trainer = config.trainer
    checkpoint: Any = OmegaConf.select(config, f"{section}.checkpoint")
    saved = [*checkpoint.save_contents]
    loaded = [*checkpoint.load_contents]
    if trainer.resume_mode == "disable":
        return
    saves = trainer.save_freq > 0
    needed: dict[str, tuple[str, ...]] = {
        # Where nothing is saved, load_contents follows save_contents.
        "load_contents": (
            CONTENTS[:1]
            if trainer.resume_mode != "auto"
            else CONTENTS
            if saves or loaded != saved
            else ()
        ),
        "save_contents": CONTENTS if saves else (),
    }
    for name, contents in (("save_contents", saved), ("load_contents", loaded)):
        missing = [content for content in needed[name] if content not in contents]
        if missing:
            yield (
                f"{section}.checkpoint.{name}={contents} lacks {', '.join(missing)}, without which"
                " a resumed run is another one; add it, or set trainer.resume_mode=disable"
            )


def _check_clip(actor: Any) -> Iterable[str]:
    """Check that ``clip_ratio`` is not hidden by its two bounds, which verl reads before it."""
    hidden = [
        name
        for name in ("clip_ratio_low", "clip_ratio_high")
        if actor[name] is not None and actor[name] != actor.clip_ratio
    ]
    if len(hidden) == 2 and actor.clip_ratio != 0.2:
        yield (
            f"{ACTOR}.clip_ratio={actor.clip_ratio} is not read, because"
            f" clip_ratio_low={actor.clip_ratio_low} and clip_ratio_high={actor.clip_ratio_high}"
            " are; set these two"
        )
