# SPDX-License-Identifier: Apache-2.0
"""The environment's quickstart: demonstrators, tokens, episodes and process rewards of turns."""

import asyncio
import random
import re
from itertools import islice
from pathlib import Path

import pytest

from prime_ext.environments.episode import Episode
from recipes.environment import number_path_task as task
from recipes.environment.environment_report import score_episode
from recipes.environment.play import play, summarize
from recipes.quickstart.quickstart_sft import IGNORED_LABEL, examples
from recipes.quickstart.small_model import build_model

TOKENIZER = task.build_tokenizer()
PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "environment.md"


@pytest.fixture(scope="module")
def model():
    return build_model(TOKENIZER, 0, max_position_embeddings=task.MAX_LENGTH).eval()


def test_without_errors_demonstrators_go_the_shortest_way():
    table = task.draw_misconceptions(0.0, seed=1)
    for seed in range(20):
        messages = task.demonstrate(task.build_game(), seed, table, random.Random(0))
        assert len(messages) == 2 * task.PARAMETERS["distance"]
        assert [message["role"] for message in messages[:2]] == ["user", "assistant"]


def test_a_demonstrator_prefers_its_wrong_move_at_a_distance():
    table = {difference: task.Misconception(1.0, "-1") for difference in range(-59, 60)}
    messages = task.demonstrate(task.build_game(), 3, table, random.Random(0))
    moves = [message["content"] for message in messages if message["role"] == "assistant"]
    assert moves == ["-1"] * (task.PARAMETERS["distance"] + task.PARAMETERS["slack"])
    with pytest.raises(ValueError, match=r"mean_error=0.6 must be in \[0, 0.5\]"):
        task.draw_misconceptions(0.6, seed=1)


def test_demonstrations_begin_with_no_held_out_text():
    game = task.build_game()
    held_out = {game.reset(seed) for seed in range(300)}
    begun = [
        game.reset(seed) for seed in islice(task.draw_starts(task.build_game(), held_out, 0), 100)
    ]
    assert not held_out & set(begun)


def test_numbers_are_tokens_and_moves_have_the_loss():
    messages = task.demonstrate(
        task.build_game(), 3, task.draw_misconceptions(0.2, 1), random.Random(0)
    )
    (row,) = examples([messages], TOKENIZER)
    trained = [label for label in row["labels"] if label != IGNORED_LABEL]
    moves = [message["content"] for message in messages if message["role"] == "assistant"]
    assert TOKENIZER.decode(trained) == "".join(f"{move}<eos>" for move in moves)
    assert TOKENIZER.unk_token_id not in row["input_ids"]
    assert TOKENIZER.tokenize("(+24)") == ["(", "+", "24", ")"]


def test_turns_get_the_sum_of_their_tokens_rewards(model, tmp_path):
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    game = task.build_game()
    rows = [
        {
            "prompt": [{"role": "user", "content": game.reset(seed)}],
            "extra_info": {"environment": task.NAME, "seed": seed},
        }
        for seed in range(6)
    ]
    episodes = play(tmp_path, rows, seed=0, temperature=1.0)
    # Neither the other episodes nor the padding that they need change an episode.
    assert play(tmp_path, rows[:2], seed=0, temperature=1.0) == episodes[:2]
    other = build_model(TOKENIZER, 1, max_position_embeddings=task.MAX_LENGTH).eval()
    for played in episodes:
        scored = score_episode(other, model, TOKENIZER, played, beta=0.5)
        paid = [piece for piece in scored.pieces if piece.reward is not None]
        assert len(paid) == len(played.gains)
        assert [piece.right for piece in paid] == [gain > 0 for gain in played.gains]
    summary = summarize(episodes)
    assert summary["accuracy"] == 0 and summary["n"] == 6
    assert 0 < summary["turns_per_episode"] and 0 <= summary["useful_turns"] <= 1


def test_the_game_of_the_page_plays(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# my_games\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_games.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))

    async def guess():
        # A limit of its own, so that its fork server knows the new folder.
        async with Episode("my_games:Guess:most=20", memory_limit=2**30) as episode:
            said = [await episode.reset(4)]
            low, high = 1, 20
            while True:
                middle = (low + high) // 2
                turn = await episode.step(str(middle))
                if turn.done:
                    return said[0], turn
                low, high = (middle + 1, high) if turn.text == "higher" else (low, middle - 1)

    first, last = asyncio.run(guess())
    assert first.startswith("Guess my number, from 1 to 20.")
    assert last.success == last.reward == 1.0
