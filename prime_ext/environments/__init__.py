# SPDX-License-Identifier: Apache-2.0
"""Environments: games and tasks in which a policy acts by texts, turn by turn. No verl, no torch.

A name chooses one: ``textarena:Wordle-v0``, ``reasoning_gym:chain_sum:max_terms=3``, or an import
path, ``my_games:Guess:most=20`` (:mod:`prime_ext.environments.names`). Each episode runs in a
process of its own (:mod:`prime_ext.environments.episode`).
"""

from collections.abc import Mapping
from typing import Any, Protocol


class TextEnvironment(Protocol):
    """An environment in the form of Gymnasium, with texts as actions and observations.

    One object plays one episode, alone in its process, where the global generators of Python and
    numpy are its own; they are seeded before ``reset``.
    """

    def reset(self, seed: int) -> str:
        """Begin the episode of this seed; return the first observation, which is the prompt.

        Equal seeds must give equal episodes: all rollouts of a prompt begin with the same text.
        """

    def step(self, text: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        """Take the policy's text; return observation, reward of the turn, whether it ended, info.

        Of ``info`` are read: ``success`` (true, false or a share in [0, 1]), which the last turn of
        an episode must have; ``progress`` in [0, 1], how much of the task is done, 0 at the start
        (optional); ``invalid`` (true: the text was no valid action; optional).
        """

    def close(self) -> None:
        """Free what the episode holds outside of its process."""
