# SPDX-License-Identifier: Apache-2.0
"""Checks of the tools that an agent loop calls: verl would read their file in its workers, minutes after the start."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from prime_ext.preflight.rewards import TOOL_LOOPS

ROLLOUT = "actor_rollout_ref.rollout"


def check_tools(config: DictConfig) -> Iterable[str]:
    """Whether a tool agent loop has a parser and tools. One line per problem."""
    rollout = config.actor_rollout_ref.rollout
    turns, loop = rollout.multi_turn, rollout.agent.default_agent_loop
    if loop not in TOOL_LOOPS:
        return
    from verl.experimental.agent_loop.tool_parser import ToolParser

    if turns.format not in ToolParser._registry:
        known = ", ".join(ToolParser._registry)
        yield f"{ROLLOUT}.multi_turn.format={turns.format} is no tool parser of verl: {known}"
    path, functions = turns.get("tool_config_path"), turns.get("function_tool_path")
    if not path and not functions:
        example = "recipes/agent/tools.yaml"
        yield f"{ROLLOUT}.multi_turn.tool_config_path is not set: {loop} needs tools; {example} is an example"
    for key, name in (("tool_config_path", path), ("function_tool_path", functions)):
        if name and not Path(name).expanduser().exists():
            yield f"{ROLLOUT}.multi_turn.{key}={name} does not exist"
        elif name and key == "tool_config_path":
            yield from _check_classes(f"{ROLLOUT}.multi_turn.{key}={name}", Path(name).expanduser())


def _check_classes(key: str, path: Path) -> Iterable[str]:
    try:
        names = [tool["class_name"] for tool in OmegaConf.load(path)["tools"]]
    except (YAMLError, KeyError, TypeError, IndexError):
        yield f"{key} is no list `tools` of entries with class_name"
        return
    for name in names:
        module, _, attribute = str(name).rpartition(".")
        try:
            getattr(import_module(module), attribute)
        except (ImportError, ValueError, AttributeError) as error:
            yield f"{key}: class_name {name} cannot be imported: {error}"
