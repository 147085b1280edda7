# SPDX-License-Identifier: Apache-2.0
"""Makes this folder's helpers importable, in spawned workers too: verl has a package called `tests` of its own."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parent / "math", Path(__file__).parent / "sandbox"):
    sys.path.insert(0, str(folder))
