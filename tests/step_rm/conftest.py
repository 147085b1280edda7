# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers importable: pytest's importlib mode leaves sys.path alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
