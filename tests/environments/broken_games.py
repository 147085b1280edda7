# SPDX-License-Identifier: Apache-2.0
"""Environments that do what an environment must not, for tests."""

import os
import random
import sys
import time


class Counting:
    """Game of three turns, each of which pays 1 for a text with a digit; it counts in progress."""

    def __init__(self, turns=3, said="Again."):
        self._turns = turns
        self._said = said
        self._played = 0

    def reset(self, seed):
        self._seed = seed
        return f"Write a digit. Game {seed}."

    def step(self, text):
        self._played += 1
        paid = float(any(map(str.isdigit, text)))
        done = self._played == self._turns
        info = {"success": done * paid, "progress": self._played / self._turns, "invalid": not paid}
        return self._said, paid, done, info

    def close(self):
        pass


class Draws(Counting):
    """Uses Python's global generator."""

    def reset(self, seed):
        random.seed(seed)
        return f"Draw {random.random()}"

    def step(self, text):
        return f"{random.random()}", 0.0, False, {}


class Broken(Counting):
    """Breaks in the way that its first text names."""

    def step(self, text):
        if text == "hang":
            time.sleep(1000)
        if text == "raise":
            raise OSError("the line\nis dead")
        if text == "die":
            os._exit(3)
        if text == "leak":
            self._leak = [bytearray(2**26) for _ in range(64)]
        if text == "print":
            print("noise" * 1000)
            os.write(1, b"noise")
            sys.stderr.write("noise")
        replies = {
            "no tuple": "hello",
            "nan": ("x", float("nan"), False, {}),
            "no text": (None, 0.0, False, {}),
            "long": ("x" * 200_000, 0.0, False, {}),
            "no success": ("x", 0.0, True, {}),
            "much success": ("x", 0.0, True, {"success": 2}),
            "no info": ("x", 0.0, False, None),
        }
        return replies.get(text, ("\ud800<eos>\x07ok", 0.5, False, {}))


class Unsteady(Counting):
    """Begins otherwise each time."""

    def reset(self, seed):
        return f"{time.time()}"


class NoGame:
    """Not an environment."""
