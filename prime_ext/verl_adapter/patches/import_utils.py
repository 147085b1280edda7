# SPDX-License-Identifier: Apache-2.0
"""``verl.utils.import_utils``: files of users become regular modules (for_upstream.md).

verl keeps them out of ``sys.modules``, where data classes with postponed annotations, and processes
that a reward function starts, look for them.
"""

from pathlib import Path
from typing import Any

from prime_ext.reward.user_function import load_file


def apply(module: Any) -> None:
    """Replace ``load_module`` for files that are loaded without a module name."""
    load = module.load_module

    def load_module(module_path: str, module_name: str | None = None) -> Any:
        path = str(module_path or "").removeprefix("file://")
        if module_name is None and Path(path).is_file():
            return load_file(path)
        return load(module_path, module_name)

    module.load_module = load_module
