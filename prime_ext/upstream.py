# SPDX-License-Identifier: Apache-2.0
"""Questions that checks and commands ask the installed verl and Ray; each imports them when asked.

All else that knows verl is in :mod:`prime_ext.verl_adapter`.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def find_configurations() -> Path:
    """Return the folder of verl's configurations, without importing verl, which takes seconds.

    Raises ModuleNotFoundError: verl is not installed.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed", name="verl")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


def list_registered_estimators() -> set[str]:
    """Return the advantage estimators in verl's registry."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    return set(ADV_ESTIMATOR_REGISTRY)


def list_registered_trainers() -> set[str]:
    """Return the modes in the registry of verl's V1 trainers."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    return set(TRAINER_REGISTRY)


def get_device_name() -> str:
    """Return the kind of device that verl has chosen."""
    from verl.utils.device import get_device_name

    return get_device_name()


def load_tools(config_path: str | None, function_path: str | None) -> list[Any]:
    """Load an agent loop's tools as verl does. Raises the exceptions of their modules."""
    from verl.tools.tool_registry import load_all_tools

    return load_all_tools(config_path, function_path)


def resolve_agent_path(path: str) -> str:
    """Return where verl looks for a list of agent loops."""
    from verl.experimental.agent_loop.utils import resolve_config_path

    return resolve_config_path(path)


def load_main() -> Callable[[], None]:
    """Return the program of verl's trainers."""
    from verl.trainer.main_ppo import main

    return main


def read_left_address(folder: str | None) -> str | None:
    """Return the address that Ray's last cluster on this machine has left in its folder."""
    from ray._private.utils import read_ray_address

    return read_ray_address(folder)


def turn_tokens_on() -> None:
    """Let Ray send its token, in this process too, which may have read Ray's settings before."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")


def join_turns(tokenizer: Any, model_type: str | None, template_options: dict[str, Any]) -> None:
    """Add a message of the user to a dialogue, as verl's agent loops do.

    Raises whatever the chat template or verl raises: such a dialogue cannot be continued.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    builder = create_continuous_token_builder(
        tokenizer, hf_model_type=model_type, chat_template_kwargs=template_options
    )
    dialogue = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    tokens = builder.build_initial_tokens(dialogue[:1])
    answer = [*tokenizer("2", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    tokens = builder.merge_assistant_tokens(tokens, answer).token_ids
    longer = [*dialogue, {"role": "user", "content": "3"}]
    merged = builder.merge_context_tokens(dialogue, longer, tokens).token_ids
    if len(merged) == len(tokens):
        raise ValueError("a message of the user adds no tokens")
