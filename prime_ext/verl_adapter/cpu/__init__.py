# SPDX-License-Identifier: Apache-2.0
"""CPU mode: what the released verl needs without an accelerator; ``install.py`` installs it."""

import os

ROLLOUT_NAME = "transformers"


def is_active() -> bool:
    """Return whether verl runs on the CPU in this process (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
