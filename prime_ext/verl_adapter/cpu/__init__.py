# SPDX-License-Identifier: Apache-2.0
"""CPU mode: what the released verl needs without an accelerator; ``install.py`` installs it."""

import os

ROLLOUT_NAME = "transformers"


def is_active() -> bool:
    """Return whether this process was asked to run verl on the CPU (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
