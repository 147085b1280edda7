# SPDX-License-Identifier: Apache-2.0
"""Environment of shrunk runs, which an untrained policy wins about half of the time."""

from collections.abc import Mapping
from typing import Any


class Lengths:
    """Two turns; each pays for a text of an even length, and the second one decides."""

    def reset(self, seed: int) -> str:
        self._turns = 0
        return f"Go {seed}."

    def step(self, text: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        self._turns += 1
        is_even = len(text) % 2 == 0
        info = {"success": is_even and self._turns == 2, "progress": self._turns / 2}
        return "Go on.", float(is_even), self._turns == 2, info

    def close(self) -> None:
        pass
