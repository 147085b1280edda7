# SPDX-License-Identifier: Apache-2.0
"""What verl loads in every process: by its entry point, or, loudly, ``VERL_USE_EXTERNAL_MODULES=prime_ext.plugin``.

Importing it registers the trainers, the reward managers and, under ``VERL_PLATFORM=cpu``, CPU support; and it makes
``use_fused_kernels`` a choice of each model. ``python -m prime_ext.doctor`` shows errors, which verl hides.
"""

import logging
import warnings
from types import ModuleType
from typing import Any

import wrapt

# verl's optional engines; choosing one that is not installed is an error of its own. First, because the imports warn.
warnings.filterwarnings("ignore", r"\w+ engine is not available", UserWarning, r"verl\.workers\.engine")

from prime_ext.cpu import is_active  # noqa: E402
from prime_ext.cpu.install import install, install_rollout  # noqa: E402

if is_active():
    install()
install_rollout()

import prime_ext.reward.managers  # noqa: E402, F401
import prime_ext.verl_adapter.trainers  # noqa: E402, F401
from prime_ext.prm import fused_forward  # noqa: E402

fused_forward.install_when_imported()


def _join_turns_without_missing_tokens(module: ModuleType) -> None:
    """Join turns as for an unknown model where the rule for a model's type does not fit its tokenizer.

    verl wants ``<|im_end|>`` of every qwen2; R1's distilled models have none, and all their rollouts would fail.
    """
    create = module.create_continuous_token_builder

    def create_continuous_token_builder(tokenizer: Any, **options: Any) -> Any:
        try:
            return create(tokenizer, **options)
        except ValueError:
            return create(tokenizer, **{**options, "model_family": "default"})

    module.create_continuous_token_builder = create_continuous_token_builder  # type: ignore[attr-defined]


wrapt.register_post_import_hook(_join_turns_without_missing_tokens, "verl.experimental.agent_loop.agent_loop")

# verl warns for every rollout of a model family without a special rule, Llama among them.
logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").addFilter(
    lambda record: record.levelno > logging.WARNING
)
