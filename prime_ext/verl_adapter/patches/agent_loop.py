# SPDX-License-Identifier: Apache-2.0
"""``verl.experimental.agent_loop.agent_loop``: default joining of turns, errors of rollouts.

verl requires ``<|im_end|>`` of every qwen2; R1's distilled models have none, and all their rollouts
would fail. It also warns for every rollout of a model family without a special rule, such as Llama
(for_upstream.md). It only logs the error of a rollout, in the worker.
"""

import logging
from collections.abc import Callable
from typing import Any

from prime_ext.run.ray_cluster import summarize_error
from prime_ext.verl_adapter.rollout_store import report_error


def apply(module: Any) -> None:
    """Replace ``create_continuous_token_builder``, drop the warnings, and report errors."""
    logger = logging.getLogger("verl.utils.tokenizer.continuous_token_wiring")
    logger.addFilter(lambda record: record.levelno > logging.WARNING)
    create = module.create_continuous_token_builder

    def create_continuous_token_builder(tokenizer: Any, **options: Any) -> Any:
        try:
            return create(tokenizer, **options)
        except ValueError:
            return create(tokenizer, **{**options, "model_family": "default"})

    module.create_continuous_token_builder = create_continuous_token_builder
    _VERLS["run"] = module.AgentLoopWorker._run_agent_loop
    module.AgentLoopWorker._run_agent_loop = run_agent_loop


# Not in a closure: Ray would send verl's function by value to the workers, with a copy of the
# registry of agent loops that has no entry of rollout.agent.agent_loop_config_path.
_VERLS: dict[str, Callable[..., Any]] = {}


async def run_agent_loop(self: Any, sampling_params: Any, trajectory: Any, **prompt: Any) -> Any:
    """Run verl's function, and report the error of a rollout."""
    try:
        return await _VERLS["run"](self, sampling_params, trajectory, **prompt)
    except Exception as error:
        if "uid" in prompt:
            partition_id = "val" if trajectory["validate"] else "train"
            await report_error(prompt["uid"], partition_id, summarize_error(error))
        raise
