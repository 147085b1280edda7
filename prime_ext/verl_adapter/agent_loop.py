# SPDX-License-Identifier: Apache-2.0
"""``verl.experimental.agent_loop.agent_loop``: turns are joined as for an unknown model where the rule of a type fails.

verl wants ``<|im_end|>`` of every qwen2; R1's distilled models have none, and all their rollouts would fail. It also
warns for every rollout of a model family without a special rule, Llama among them.
"""

import logging
from types import ModuleType
from typing import Any

import wrapt


def apply() -> None:
    """Replace ``create_continuous_token_builder`` once verl imports the module, and leave out the warnings."""
    wrapt.register_post_import_hook(_replace_token_builder, "verl.experimental.agent_loop.agent_loop")
    logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").addFilter(
        lambda record: record.levelno > logging.WARNING
    )


def _replace_token_builder(module: ModuleType) -> None:
    create = module.create_continuous_token_builder

    def create_continuous_token_builder(tokenizer: Any, **options: Any) -> Any:
        try:
            return create(tokenizer, **options)
        except ValueError:
            return create(tokenizer, **{**options, "model_family": "default"})

    module.create_continuous_token_builder = create_continuous_token_builder  # type: ignore[attr-defined]
