# SPDX-License-Identifier: Apache-2.0
"""Value models (critics) on the CPU.

verl 0.9.1 loads them with FlashAttention 2 whatever the configuration says, which needs an accelerator.
"""

from types import ModuleType
from typing import Any

import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel


def load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> PreTrainedModel:
    """Load a token classification model with the attention of ``model_config``.

    It stands in for ``verl.utils.model.load_valuehead_model``, without the fall-back to trl's value head.
    """
    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


def patch_value_model_loading(module: ModuleType) -> None:
    """Replace ``load_valuehead_model`` of ``verl.utils.model``. Raises RuntimeError if that is gone."""
    from prime_ext.verl_compat import require_verl_name

    require_verl_name(module, "load_valuehead_model")
    module.load_valuehead_model = load_value_model  # type: ignore[attr-defined]
