# SPDX-License-Identifier: Apache-2.0
"""``verl.utils.model`` on a CPU: a critic has the attention that is set (for_upstream.md)."""

from typing import Any


def apply(module: Any) -> None:
    """Replace ``load_valuehead_model``, which takes FlashAttention 2."""

    def load_valuehead_model(
        local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
    ) -> Any:
        return module.AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
        )

    module.load_valuehead_model = load_valuehead_model
