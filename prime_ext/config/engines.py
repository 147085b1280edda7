# SPDX-License-Identifier: Apache-2.0
"""Choices for verl's engines."""

import json
import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

CHUNKED = "chunked"
VERL_BACKENDS = ("torch", "triton", "liger")
# Values of fused_kernel_options.impl_backend.
BACKENDS = (CHUNKED, *VERL_BACKENDS)
CPU_BACKENDS = (CHUNKED, "torch")

DTYPE_BYTES = {
    "fp32": 4,
    "float32": 4,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "auto": 2,
}


def sequence_parallel_ranks(section: DictConfig) -> int:
    """Return the ranks of a sequence.

    verl reads the section's deprecated key before that of the engine.
    """
    key = "ulysses_sequence_parallel_size"
    engine = section.get("engine") or section.get("fsdp_config")
    ranks = section.get(key) or 1
    return ranks if ranks > 1 or engine is None else engine.get(key) or 1


def text_config(folder: Any) -> dict[str, Any]:
    """Return a model's config.json with its language part's values on top; empty if not here."""
    path = Path(str(folder)).expanduser() / "config.json"
    model = json.loads(path.read_text()) if path.is_file() else {}
    return model | (model.get("text_config") or {})


def find_longest_sequence(config: DictConfig) -> float:
    """Return the rollout engine's limit on tokens of prompt and response; infinity if not known."""
    policy = config.actor_rollout_ref
    longest = policy.rollout.max_model_len or text_config(policy.model.path).get(
        "max_position_embeddings"
    )
    return int(longest) if longest else math.inf


ENGINE_SECTIONS = (
    "actor_rollout_ref.actor.fsdp_config",
    "actor_rollout_ref.ref.fsdp_config",
    "critic.fsdp",
    "prm.engine",
)


def shard_over_all_ranks(config: DictConfig) -> None:
    """Call :func:`name_all_ranks` for every engine of a run.

    FSDP1 keeps the root of a model, its embeddings and output layer, gathered after a forward pass
    without gradients; verl 0.9.1 frees it only if ``fsdp_size > 1``. With the default of -1 it
    would take memory while the rollout engine is awake, and the next pass would not see weights
    written into the shards, as snapshots of the policy are.
    """
    for name in ENGINE_SECTIONS:
        section = OmegaConf.select(config, name)
        if section is not None:
            name_all_ranks(section, config.trainer.n_gpus_per_node * config.trainer.nnodes)


def name_all_ranks(engine: DictConfig, ranks: int) -> None:
    """Replace an ``fsdp_size`` of -1 by the number of ranks, in place; the shards are the same."""
    if engine.get("fsdp_size") == -1:
        with open_dict(engine):
            engine.fsdp_size = ranks
