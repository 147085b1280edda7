# SPDX-License-Identifier: Apache-2.0
"""Makes the harness and the tiny step reward models importable; `tests` itself is no package, because verl installs one
of that name."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "step_rm")]
