# SPDX-License-Identifier: Apache-2.0
"""The environment's task: the game ``number_path``, its tokens and its demonstrators.

A prompt is ``At 7, go to 31 (+24).``; the policy writes a move a turn, ``+5``. The demonstrators
go the shortest way, but at some distances they prefer another move. The learner is told none of
this.
"""

import random
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from prime_ext.environments.number_path import MOVES, NumberPath
from recipes.quickstart import small_model as quickstart_model

# Six moves for a way of five: one wasted move is allowed.
PARAMETERS = {"most": 60, "distance": 5, "slack": 1}
NAME = ":".join(["number_path", *(f"{key}={value}" for key, value in PARAMETERS.items())])
MAX_LENGTH = 256
# verl renders a system message of its own to see what a message of the user adds.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] +"
    " eos_token }}{% else %}{{ bos_token + message['content'] }}{% endif %}{% endfor %}"
)


def build_game(**changes: float) -> NumberPath:
    """Build the game with its parameters, or changes of them. ``ValueError``: they fit none."""
    return NumberPath(**PARAMETERS | changes)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: a token for each number, and for each other character of the game."""
    special = (quickstart_model.PAD, quickstart_model.BOS, quickstart_model.EOS, "<unk>")
    numbers = [str(number) for number in range(PARAMETERS["most"] + 1)]
    tokenizer = quickstart_model.build_tokenizer(
        [*special, *numbers, *dict.fromkeys("At,got (+-).")], CHAT_TEMPLATE, MAX_LENGTH, "<unk>"
    )
    tokenizer.backend_tokenizer.pre_tokenizer = Split(Regex(r"\d+|[\s\S]"), behavior="isolated")
    return tokenizer


class Misconception(NamedTuple):
    """The error of a demonstrator at a distance: how often it occurs, and the move then."""

    probability: float
    move: str


def draw_misconceptions(mean_error: float, seed: int) -> dict[int, Misconception]:
    """Draw a misconception for each difference of target and number.

    Probabilities are uniform up to twice the mean, so that the most frequent move is wrong at some
    distances. Raises ValueError: the mean is outside [0, 0.5].
    """
    if not 0 <= mean_error <= 0.5:
        raise ValueError(f"mean_error={mean_error:g} must be in [0, 0.5]")
    rng = random.Random(seed)
    most = PARAMETERS["most"]
    return {
        difference: Misconception(rng.uniform(0, 2 * mean_error), rng.choice(MOVES))
        for difference in range(1 - most, most)
    }


def demonstrate(
    game: NumberPath, seed: int, table: Mapping[int, Misconception], rng: random.Random
) -> list[dict[str, str]]:
    """Return an episode of a demonstrator with these misconceptions, as a chat."""
    messages = [{"role": "user", "content": game.reset(seed)}]
    done = False
    while not done:
        error = table[game.difference]
        move = error.move if rng.random() < error.probability else game.find_best_move()
        text, _, done, _ = game.step(move)
        messages.append({"role": "assistant", "content": move})
        messages.append({"role": "user", "content": text})
    return messages[:-1]


def draw_starts(game: NumberPath, exclude: Set[str], seed: int) -> Iterator[int]:
    """Yield seeds of episodes that begin with none of these texts."""
    rng = random.Random(f"demonstrations-{seed}")
    while True:
        start = rng.getrandbits(31)
        if game.reset(start) not in exclude:
            yield start
