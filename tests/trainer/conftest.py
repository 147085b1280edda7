# SPDX-License-Identifier: Apache-2.0
"""Makes the fake queue importable."""

import sys
from pathlib import Path

from own_sources import own_sources  # noqa: F401

# pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))
