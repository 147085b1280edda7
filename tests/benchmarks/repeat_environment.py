# SPDX-License-Identifier: Apache-2.0
"""The environment of environment_loop.py. It imports nothing: its process is a copy of a server."""

from typing import Any


class Repeat:
    """An environment that answers each text with 2, and ends after some turns."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def reset(self, seed: int) -> str:
        return "1+1?"

    def step(self, text: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._left -= 1
        return "2", 0.0, not self._left, {"success": 0.0}

    def close(self) -> None:
        pass
