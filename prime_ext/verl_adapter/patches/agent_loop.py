# SPDX-License-Identifier: Apache-2.0
"""``verl.experimental.agent_loop.agent_loop``: default joining of turns where a rule fails.

verl requires ``<|im_end|>`` of every qwen2; R1's distilled models have none, and all their rollouts
would fail. It also warns for every rollout of a model family without a special rule, Llama among
them (for_upstream.md).
"""

import logging
from typing import Any


def apply(module: Any) -> None:
    """Replace ``create_continuous_token_builder``, and leave out the warnings."""
    logger = logging.getLogger("verl.utils.tokenizer.continuous_token_wiring")
    logger.addFilter(lambda record: record.levelno > logging.WARNING)
    create = module.create_continuous_token_builder

    def create_continuous_token_builder(tokenizer: Any, **options: Any) -> Any:
        try:
            return create(tokenizer, **options)
        except ValueError:
            return create(tokenizer, **{**options, "model_family": "default"})

    module.create_continuous_token_builder = create_continuous_token_builder
