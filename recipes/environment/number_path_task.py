# SPDX-License-Identifier: Apache-2.0
"""The environment's task: the game ``number_path``, its tokens and its demonstrators.

A prompt is ``At 7, go to 31.``; the policy writes a move a turn, ``+5``. The demonstrators play
the shortest way, but some of their moves are drawn at random. The learner is told none of this.
"""

import random
from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from prime_ext.environments.number_path import MOVES, NumberPath
from recipes.quickstart import small_model as quickstart_model

# Four moves for a way of three: one mistake may be mended.
PARAMETERS = {"most": 40, "distance": 3, "slack": 1}
NAME = ":".join(["number_path", *(f"{key}={value}" for key, value in PARAMETERS.items())])
MAX_LENGTH = 192
# verl renders a system message of its own to see what a message of the user adds.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] +"
    " eos_token }}{% else %}{{ bos_token + message['content'] }}{% endif %}{% endfor %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: a token per character of the game; others are unknown."""
    special = (quickstart_model.PAD, quickstart_model.BOS, quickstart_model.EOS, "<unk>")
    vocabulary = [*special, *"0123456789+-*At,got. "]
    return quickstart_model.build_tokenizer(
        list(dict.fromkeys(vocabulary)), CHAT_TEMPLATE, MAX_LENGTH, unknown="<unk>"
    )


def demonstrate(seed: int, error: float, rng: random.Random) -> list[dict[str, str]]:
    """Return an episode as a chat, in which each move is drawn at random with this probability."""
    game = NumberPath(**PARAMETERS)
    messages = [{"role": "user", "content": game.reset(seed)}]
    done = False
    while not done:
        move = rng.choice(MOVES) if rng.random() < error else game.find_best_move()
        text, _, done, _ = game.step(move)
        messages.append({"role": "assistant", "content": move})
        messages.append({"role": "user", "content": text})
    return messages[:-1]


def draw_starts(exclude: set[str], seed: int) -> Iterator[int]:
    """Yield seeds of episodes that begin with none of these texts."""
    rng = random.Random(f"demonstrations-{seed}")
    game = NumberPath(**PARAMETERS)
    while True:
        start = rng.getrandbits(31)
        if game.reset(start) not in exclude:
            yield start
