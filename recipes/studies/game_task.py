# SPDX-License-Identifier: Apache-2.0
"""The game of the environment's recipe, as a task of studies in one process.

An episode is one response: the policy's moves and, between them, the replies of the game, which the
mask leaves out.
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from examples.minimal_prime import Rollouts, pad_left, sample
from prime_ext.algorithms.turns import place_turn_rewards
from recipes.environment import environment_data, environment_sft, number_path_task

# Tokens of a move with its end; a longer text is not a move.
MOVE_TOKENS = 4
# Seeds that are tried for games that begin otherwise, and games that are held out.
TRIED, HELD_OUT = 10_000, 100


class PlayedTurns(NamedTuple):
    """Rewards of the turns of an episode, and how much progress rose in each."""

    rewards: list[float]
    gains: list[float]


class GameTask:
    """Episodes of ``number_path``; a problem is the seed of one, and begins as no other problem.

    ``distance`` and ``slack`` are the game's. The start imitates demonstrators (``mean_error``) for
    some ``steps``, as in the recipe, but not of games that are held out.
    """

    held_out = 300

    def __init__(self, distance: int, slack: int = 1, mean_error: float = 0.45, steps: int = 250):
        self.build_game = partial(number_path_task.build_game, distance=distance, slack=slack)
        self.mean_error = mean_error
        self.steps = steps
        self.tokenizer = number_path_task.build_tokenizer()
        self.pad, self.bos, self.eos = (
            getattr(self.tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
        )
        seeds = {self.build_game().reset(seed): seed for seed in range(TRIED)}
        texts = random.Random(0).sample(sorted(seeds), len(seeds))
        self.held_out_texts = set(texts[:HELD_OUT])
        self.seeds = {
            held_out: [
                seed for text, seed in seeds.items() if (text in self.held_out_texts) == held_out
            ]
            for held_out in (False, True)
        }
        # Of the episodes that were played last.
        self.turns: list[PlayedTurns] = []
        self.outcome_B = torch.zeros(0)

    def write_start(self, folder: Path) -> None:
        """Train the model that all runs start from."""
        data = folder.with_name(f"{folder.name}.parquet")
        environment_data.write_demonstrations(
            data, self.build_game(), self.held_out_texts, mean_error=self.mean_error
        )
        environment_sft.train(data, folder, steps=self.steps)

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> list[int]:
        seeds = self.seeds[held_out]
        return [seeds[k] for k in torch.randint(len(seeds), (count,), generator=generator).tolist()]

    def prompts(self, problems: Sequence[int]) -> list[list[int]]:
        return [self.encode(self.build_game().reset(problem)) for problem in problems]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of what the game says."""
        return [self.bos, *self.tokenizer.encode(text, add_special_tokens=False)]

    def verify(self, problems: Sequence[int], response_BT: torch.Tensor) -> torch.Tensor:
        """Return 1 for episodes that arrived, ``(B,)``: those that :func:`play` returned last."""
        return self.outcome_B

    def turn_rewards(self, field: str, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return ``rewards`` or ``gains`` of the last episodes at the ends of turns, ``(B, T)``."""
        return place_turn_rewards([getattr(turns, field) for turns in self.turns], mask_BT, mask_BT)


def play(
    model: Any, task: GameTask, problems: Sequence[int], generator: torch.Generator
) -> Rollouts:
    """Play an episode of each problem at temperature 1; the mask has the policy's tokens."""
    games = [task.build_game() for _ in problems]
    prompts = [task.encode(game.reset(seed)) for game, seed in zip(games, problems, strict=True)]
    responses: list[list[int]] = [[] for _ in problems]
    masks: list[list[bool]] = [[] for _ in problems]
    task.turns = [PlayedTurns([], []) for _ in problems]
    task.outcome_B = torch.zeros(len(problems))
    # The prompts of `sample` are the episodes so far.
    move = SimpleNamespace(pad=task.pad, eos=task.eos, limit=MOVE_TOKENS, prompts=list)
    running = list(range(len(problems)))
    while running:
        batch = sample(model, move, [prompts[row] + responses[row] for row in running], generator)
        for row, text_T, mask_T in zip(
            list(running), batch.response_BT, batch.mask_BT, strict=True
        ):
            tokens = text_T[mask_T].tolist()
            text = task.tokenizer.decode(tokens, skip_special_tokens=True)
            before = sum(task.turns[row].gains)
            reply, reward, done, info = games[row].step(text)
            task.turns[row].rewards.append(reward)
            task.turns[row].gains.append(info["progress"] - before)
            responses[row] += tokens
            masks[row] += [True] * len(tokens)
            if done:
                task.outcome_B[row] = float(info["success"])
                running.remove(row)
            else:
                reply_tokens = task.encode(reply)
                responses[row] += reply_tokens
                masks[row] += [False] * len(reply_tokens)
    prompt_BP, prompt_mask_BP = pad_left(prompts, task.pad)
    pad = torch.nn.utils.rnn.pad_sequence
    response_BT = pad([torch.tensor(row) for row in responses], True, task.pad)
    mask_BT = pad([torch.tensor(row) for row in masks], True, False)
    return Rollouts(prompt_BP, prompt_mask_BP, response_BT, mask_BT)
