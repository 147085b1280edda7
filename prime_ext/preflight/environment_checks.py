# SPDX-License-Identifier: Apache-2.0
"""Checks of environments: rows and agent loop agree, episodes begin as their rows say."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.environments.episode import EnvironmentFailed, Episode
from prime_ext.environments.names import DATA_SOURCE
from prime_ext.names import ENVIRONMENT_LOOPS, SINGLE_TURN_LOOPS, TOOL_LOOPS
from prime_ext.preflight.data_checks import load_policy_tokenizer
from prime_ext.upstream import join_turns
from prime_ext.utils.rows import SourceError

_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"


def check_environments(config: DictConfig, first: Mapping[str, tuple[str, Any]]) -> Iterable[str]:
    """Check a run's environments by the first row of each."""
    loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
    for source, (where, row) in sorted(first.items()):
        is_played = source.startswith(DATA_SOURCE)
        if is_played and loop in (*SINGLE_TURN_LOOPS, *TOOL_LOOPS) and not row.get("agent_name"):
            yield (
                f"{where}: {source} is played by an agent loop, and {_LOOP}={loop}; set it to"
                " environment_agent (seeded_environment_agent on a CPU)"
            )
        elif loop in ENVIRONMENT_LOOPS and not is_played:
            yield (
                f"{where}: {_LOOP}={loop} plays environments, and {source} is none; write rows by"
                " python -m data_preprocessing.environment"
            )
        elif is_played:
            yield from _try_to_begin(where, row, config.data.prompt_key)
    if loop in ENVIRONMENT_LOOPS:
        yield from _check_turns(config, loop)


def _try_to_begin(where: str, row: Mapping[str, Any], prompt_key: str) -> Iterable[str]:
    """Begin an episode, as rollouts will."""
    info = row.get("extra_info") or {}
    name, seed = info.get("environment"), info.get("seed")
    if not isinstance(name, str) or not isinstance(seed, int):
        yield (
            f"{where}: extra_info must have environment and seed, got environment={name!r},"
            f" seed={seed!r}"
        )
        return
    try:
        text = asyncio.run(_begin(name, seed))
    except EnvironmentFailed as failure:
        yield f"{where}: {failure}"
        return
    if text != row[prompt_key][-1]["content"]:
        yield (
            f"{where}: the episode of seed {seed} of {name} begins otherwise than its prompt says;"
            " write the rows again"
        )


async def _begin(name: str, seed: int) -> str:
    async with Episode(name) as episode:
        return await episode.reset(seed)


def read_model_type(path: str) -> str | None:
    """Return ``model_type`` of a local model's config.json, by which verl joins turns."""
    file = Path(path).expanduser() / "config.json"
    return json.loads(file.read_text()).get("model_type") if file.is_file() else None


def _check_turns(config: DictConfig, loop: str) -> Iterable[str]:
    """Check that messages can be added to a dialogue, and that no tools are named."""
    section = "actor_rollout_ref.rollout.multi_turn"
    turns = config.actor_rollout_ref.rollout.multi_turn
    for name in ("tool_config_path", "function_tool_path"):
        if turns.get(name):
            yield f"{section}.{name}={turns[name]}: {loop} calls no tools; leave it out"
    try:
        tokenizer = load_policy_tokenizer(config)
    except SourceError:
        return  # check_data says so
    if tokenizer is None:
        return
    options: Any = OmegaConf.to_container(config.data.apply_chat_template_kwargs, resolve=True)
    try:
        join_turns(tokenizer, read_model_type(config.actor_rollout_ref.model.path), options)
    except Exception as error:
        yield (
            f"actor_rollout_ref.model: its chat template cannot add a turn to a dialogue ({error});"
            " add_generation_prompt and earlier messages must not change what comes before"
        )
