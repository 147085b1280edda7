# SPDX-License-Identifier: Apache-2.0
"""CPU mode: everything the released verl needs to train without an accelerator; ``install.py`` puts
it in place."""

import os

ROLLOUT_NAME = "transformers"


def is_active() -> bool:
    """Return whether this process was asked to run verl on the CPU (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
