# SPDX-License-Identifier: Apache-2.0
"""A small game: reach a number by a few kinds of moves. It needs no library.

    At 7, go to 22 (+15).
    > +5
    At 12, go to 22 (+10).

``progress`` is the share of the shortest way that is done; the reward is 1 on arrival, and
``invalid_reward`` for a text that is not a move.
"""

import random
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

MOVES = ("+1", "-1", "+5", "-5")


class NumberPath:
    """From one number to another, both in 1 to ``most``, in at most ``slack`` moves too many.

    ``ValueError``: no two numbers are ``distance`` moves apart.
    """

    def __init__(
        self, most: int = 40, distance: int = 4, slack: int = 2, invalid_reward: float = -0.1
    ) -> None:
        self._most = most
        self._limit = distance + slack
        self._invalid_reward = invalid_reward
        self._pairs = [
            (start, target)
            for start in range(1, most + 1)
            for target in range(1, most + 1)
            if _count_moves(target, most).get(start) == distance
        ]
        if not self._pairs:
            raise ValueError(f"no two numbers up to {most} are {distance} moves apart")

    @classmethod
    def prepare(cls, **parameters: Any) -> None:
        """Count the moves once for all episodes. ``ValueError``: as above."""
        cls(**parameters)

    def reset(self, seed: int) -> str:
        self._at, self._target = random.Random(seed).choice(self._pairs)
        self._left = self._limit
        self._distances = _count_moves(self._target, self._most)
        self._first = self._distances[self._at]
        return self._describe()

    def step(self, text: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        self._left -= 1
        reached = apply_move(self._at, text.strip(), self._most)
        if reached is not None:
            self._at = reached
        arrived = self._at == self._target
        reward = float(arrived) if reached is not None else self._invalid_reward
        info = {
            "success": arrived,
            "progress": max(0.0, 1 - self._distances[self._at] / self._first),
            "invalid": reached is None,
        }
        return self._describe(), reward, arrived or self._left == 0, info

    def close(self) -> None:
        pass

    @property
    def difference(self) -> int:
        """Return the target minus the number."""
        return self._target - self._at

    def find_best_move(self) -> str:
        """Return a move of a shortest way."""

        def count(move: str) -> float:
            reached = apply_move(self._at, move, self._most)
            return float("inf") if reached is None else self._distances.get(reached, float("inf"))

        return min(MOVES, key=count)

    def _describe(self) -> str:
        return f"At {self._at}, go to {self._target} ({self.difference:+d})."


def apply_move(at: int, move: str, most: int) -> int | None:
    """Return the number after a move; None if that is not a move, or leaves 1 to ``most``."""
    if move not in MOVES:
        return None
    reached = at + int(move)
    return reached if 1 <= reached <= most else None


@cache
def _count_moves(target: int, most: int) -> dict[int, int]:
    """Return the least number of moves to the target from each number that can reach it."""
    before: dict[int, list[int]] = {}
    for start in range(1, most + 1):
        for move in MOVES:
            if (reached := apply_move(start, move, most)) is not None:
                before.setdefault(reached, []).append(start)
    moves = {target: 0}
    waiting = deque([target])
    while waiting:
        number = waiting.popleft()
        for start in before.get(number, []):
            if start not in moves:
                moves[start] = moves[number] + 1
                waiting.append(start)
    return moves
