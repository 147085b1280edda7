# SPDX-License-Identifier: Apache-2.0
"""Games of TextArena: each can be won and lost, ends, and repeats; the others are refused."""

import asyncio
import contextlib
import hashlib
import io
import json
import os
import random
import subprocess
import sys
from collections import deque

import pytest

pytest.importorskip("textarena", reason="pip install -e '.[textarena]'")

from prime_ext.environments import textarena as adapter
from prime_ext.environments.episode import Episode
from prime_ext.environments.names import load_environment
from prime_ext.environments.textarena import GAMES, TextArenaGame, find_move
from prime_ext.utils.rows import SourceError

SEED = 3
CHAIN = "cold cord card ward warm worm form fork"
WORDS = f"{CHAIN} water house table".split()
PLAYABLE = adapter.list_games()
WITHOUT_WORDS = [task for task in PLAYABLE if not GAMES[adapter._get_family(task)].needs_words]


@pytest.fixture(scope="module")
def word_lists(tmp_path_factory):
    """Put small word lists where NLTK looks for them, and a tagger that calls all words nouns."""
    import nltk

    path = tmp_path_factory.mktemp("nltk_data")
    words = path / "corpora" / "words"
    tagger = path / "taggers" / "averaged_perceptron_tagger_eng"
    for folder in (words, tagger):
        folder.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text("\n".join(WORDS) + "\n")
    content = {"weights": {}, "tagdict": {word: "NN" for word in WORDS}, "classes": ["NN"]}
    for part, value in content.items():
        (tagger / f"averaged_perceptron_tagger_eng.{part}.json").write_text(json.dumps(value))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(path)])
        yield
    adapter._make_once.cache_clear()


@pytest.fixture(autouse=True)
def silence():
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def play(task, texts, seed=SEED, **parameters):
    """Return the first observation and the replies to the texts, or to those of a player."""
    game = TextArenaGame(task, **parameters)
    first = game.reset(seed)
    replies = []
    for text in texts(game._env) if callable(texts) else texts:
        replies.append(game.step(text))
        if replies[-1][2]:
            break
    return first, replies


# Players that see what is hidden: each takes the game of TextArena and yields winning texts.


def win_2048(game):
    while True:
        board = game.state.game_state["board"]
        for move in (0, 2, 1, 3):
            before = [list(row) for row in board]
            moved, _ = game._apply_move(move)
            board[:] = before
            if moved:
                yield ("[up]", "[down]", "[left]", "[right]")[move]
                break


def win_crosswords(game):
    for row, letters in enumerate(game.state.game_state["solution"]):
        for column, letter in enumerate(letters):
            if letter != ".":
                yield f"[{row} {column} {letter}]"


def win_frozen_lake(game):
    grid = game.state.game_state["grid"]
    waiting = deque([(game.player_pos, [])])
    seen = {game.player_pos}
    while waiting:
        (row, column), way = waiting.popleft()
        if (row, column) == game.goal_pos:
            yield from way
            return
        for name, (down, right) in game.actions.items():
            cell = (row + down, column + right)
            if cell not in seen and all(0 <= at < game.size for at in cell):
                seen.add(cell)
                if grid[cell[0]][cell[1]] != "H":
                    waiting.append((cell, [*way, f"[{name}]"]))


def win_lights_out(game):
    drawn = random.Random(SEED)
    for _ in range(drawn.randint(5, 15)):
        yield f"[{drawn.randint(0, 4)} {drawn.randint(0, 4)}]"


def win_logic_puzzle(game):
    for grid in game.game_board_solution.values():
        for row, marks in grid.items():
            for column, mark in marks.items():
                yield f"[{row} {column} {mark}]"


def win_minesweeper(game):
    yield "[0 0]"
    for row in range(game.rows):
        for column in range(game.cols):
            if game.grid[row][column] != -1 and not game.revealed[row][column]:
                yield f"[{row} {column}]"


def win_secretary(game):
    draws = game.state.game_state["draws"]
    yield from ["[continue]"] * draws.index(max(draws))
    yield "[accept]"


def win_slitherlink(game):
    drawn = random.Random(SEED)
    width, height = drawn.randint(2, 4), drawn.randint(2, 4)
    top, left = drawn.randint(0, 4 - height), drawn.randint(0, 4 - width)
    for column in range(left, left + width):
        yield f"[h {top} {column}]"
        yield f"[h {top + height} {column}]"
    for row in range(top, top + height):
        yield f"[v {row} {left}]"
        yield f"[v {row} {left + width}]"


def win_sudoku(game):
    for row, numbers in enumerate(game.full_grid):
        for column, number in enumerate(numbers):
            if game.game_board[row][column] == 0:
                yield f"[{row + 1} {column + 1} {number}]"


def win_hanoi(game, disks=3, start="A", end="C", other="B"):
    if disks:
        yield from win_hanoi(game, disks - 1, start, other, end)
        yield f"[{start} {end}]"
        yield from win_hanoi(game, disks - 1, other, end, start)


def win_word_ladder(game):
    chain = CHAIN.split()
    start, end = chain.index(game.start_word), chain.index(game.target_word)
    step = 1 if end > start else -1
    yield from (f"[{word}]" for word in chain[start + step : end + step or None : step])


def win_word_search(game):
    for word, (row, column, direction) in game.placed_words.items():
        far = len(word) - 1
        across = direction == "across"
        yield f"[{row} {column} {row + far * (not across)} {column + far * across}]"


PEGS = "12 5,3 8,10 3,1 6,8 10,4 1,15 9,6 15,7 13,14 5,15 9,9 2,1 4".split(",")
WINNERS = {
    "2048-v0-ultra-easy": win_2048,
    "Countdown-v0": ["[0 1 +]", "[0 3 /]", "[0 1 +]", "[0 1 *]", "[0 1 +]"],
    "Crosswords-v0": win_crosswords,
    "Cryptarithm-v0": [f"[{pair[0]} {pair[1]}]" for pair in "S9 E5 N6 D7 M1 O0 R8 Y2".split()],
    "FrozenLake-v0-hardcore": win_frozen_lake,
    "GuessTheNumber-v0": lambda game: [f"[{game.game_number}]"],
    "LightsOut-v0": win_lights_out,
    "LogicPuzzle-v0": win_logic_puzzle,
    "Mastermind-v0": lambda game: [
        f"[{' '.join(str(digit) for digit in game.state.game_state['secret_code'])}]"
    ],
    "Minesweeper-v0-small": win_minesweeper,
    "PegJump-v0": [f"[{move}]" for move in PEGS],
    "Secretary-v0": win_secretary,
    "Slitherlink-v0": win_slitherlink,
    "Sudoku-v0": win_sudoku,
    "ThreeCardMonte-v0": lambda game: [f"[{game.ball_pos}]"],
    "TowerOfHanoi-v0": win_hanoi,
}
WINNERS_WITH_WORDS = {
    "Hangman-v0": lambda game: [f"[{game.state.game_state['target_word']}]"],
    "WordSearch-v0": win_word_search,
    "Wordle-v0": lambda game: ["[table]", f"[{game.state.game_state['secret_word']}]"],
    "WordLadder-v0": win_word_ladder,
}


def check_win(task):
    first, replies = play(task, WINNERS.get(task) or WINNERS_WITH_WORDS[task])
    text, reward, done, info = replies[-1]
    assert adapter.HOW_TO_MOVE in first
    assert done and info["success"] == 1 and reward == 1, (task, replies)
    assert text and not info["invalid"]
    assert info.get("progress", 1) == 1
    assert all(reward == 0 and not ended for _, reward, ended, _ in replies[:-1])


@pytest.mark.parametrize("task", WINNERS)
def test_a_player_who_sees_the_solution_wins(task):
    check_win(task)


def test_games_of_words_are_won_with_word_lists(word_lists):
    for task in ("Hangman-v0", "WordSearch-v0"):
        check_win(task)


@pytest.mark.slow
def test_games_of_dictionaries_are_won_with_word_lists(word_lists):
    for task in ("Wordle-v0", "WordLadder-v0"):
        check_win(task)


@pytest.mark.parametrize("task", WITHOUT_WORDS)
def test_two_invalid_texts_end_every_game(task):
    TextArenaGame.prepare(task)
    first, replies = play(task, ["I do not know.", "Nor now."])
    assert len(first) > len(adapter.HOW_TO_MOVE)
    assert [info["invalid"] for *_, info in replies] == [True, True]
    assert [done for _, _, done, _ in replies] == [False, True]
    assert all(text for text, *_ in replies)
    assert replies[0][1] == 0 and -1 <= replies[1][1] < 1 and replies[1][3]["success"] == 0
    assert all(info.get("progress", 0) == 0 for *_, info in replies)


def test_games_without_an_end_have_a_limit(word_lists):
    def move_back_and_forth(game):
        vehicles = game.state.game_state["vehicles"]
        while True:
            for forward, sign, back in ((True, "+", "-"), (False, "-", "+")):
                for name, vehicle in vehicles.items():
                    if name != "X" and game._can_move(vehicles, vehicle, forward):
                        yield f"[{name}{sign}]"
                        yield f"[{name}{back}]"

    def repeat_a_word(game):
        while True:
            yield next(win_word_search(game))

    for task, texts in {
        "RushHour-v0": move_back_and_forth,
        "Hangman-v0": ["[wrong]"] * 100,
        "WordSearch-v0": repeat_a_word,
    }.items():
        _, replies = play(task, texts)
        assert len(replies) == GAMES[adapter._get_family(task)].limit
        assert replies[-1][2] and replies[-1][3]["success"] == 0 and replies[-1][1] < 1


def test_a_lost_game_with_full_reward_is_no_success():
    """A loss at a tile of 1024 may pay as much as the tile of 2048."""
    game = TextArenaGame("2048-v0")
    game.reset(SEED)
    game._env.state.game_state["board"] = [
        [1024, 512, 256, 128],
        [2, 4, 8, 16],
        [4, 8, 16, 32],
        [8, 16, 32, 0],
    ]
    game._env.state.game_state["score"] = 20_000
    reply = game.step("[right]")
    while not reply[2]:
        reply = game.step("[nowhere]")
    assert reply[1] == 1 and reply[3]["success"] == 0


def test_blackjack_reports_the_share_of_won_hands():
    _, replies = play("Blackjack-v0", ["[stand]"] * 5)
    wins = sum("you win" in text for text, *_ in replies)
    assert wins and replies[-1][1] == replies[-1][3]["success"] == wins / 5


def test_an_invalid_text_is_told_its_reason():
    """TextArena's Countdown mixes up reason and reward."""
    (reply,) = play("Countdown-v0", ["[0 0 +]"])[1]
    assert "Must be different" in reply[0] and "[0 0 +]" not in reply[0]


def digest_of_games():
    """Return a number for the replies of all games that need no word lists."""
    digest = hashlib.sha256()
    with contextlib.redirect_stdout(io.StringIO()):
        for task, texts in WINNERS.items():
            digest.update(repr(play(task, texts)).encode())
        for task in WITHOUT_WORDS:
            digest.update(repr(play(task, ["no", "[up]", "[1 1]", "no", "no"])).encode())
    return digest.hexdigest()


def test_games_repeat_under_their_seed_in_another_process():
    program = (
        "import runpy, sys; print(runpy.run_path(sys.argv[1])['digest_of_games'](), flush=True)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, __file__], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == digest_of_games(), done.stderr


def test_a_puzzle_that_begins_solved_is_replaced():
    import textarena

    seed = next(seed for seed in range(20_000) if not any_light(textarena, seed))
    first, _ = play("LightsOut-v0", [], seed)
    assert "O" in first.split("remaining")[1]


def any_light(textarena, seed):
    """Return whether TextArena's LightsOut of a seed begins with a light."""
    try:
        textarena.make("LightsOut-v0-raw").reset(num_players=1, seed=seed)
    except ZeroDivisionError:
        return False
    return True


def test_seeds_differ_where_games_are_drawn():
    fixed = {"Countdown", "Cryptarithm", "PegJump", "TowerOfHanoi"}
    # What these draw is not shown at first.
    hidden = {"GuessTheNumber", "Mastermind", "Minesweeper"}
    same = {
        adapter._get_family(task)
        for task in WITHOUT_WORDS
        if len({play(task, [], seed)[0] for seed in range(2)}) == 1
    }
    assert same == fixed | hidden


def test_parameters_are_those_of_the_game():
    draws = {play("Countdown-v0", [], seed, numbers=None, target=None)[0] for seed in range(3)}
    assert len(draws) == 3
    assert "with 4 disks" in load_environment("textarena:TowerOfHanoi-v0:num_disks=4")().reset(0)
    with pytest.raises(SourceError, match="cannot be made.*disks"):
        load_environment("textarena:TowerOfHanoi-v0:disks=4")


@pytest.mark.parametrize(
    "name, reason",
    [
        ("Wordel-v0", "no game 'Wordel-v0'; did you mean Wordle-v0"),
        ("Chess-v0", "several players"),
        ("TwentyQuestions-v0-hardcore", "network"),
        ("Bandit-v0", "no button as the best"),
        ("Set-v0", "same card three times"),
        ("Sokoban-v0-medium", "half a minute"),
        ("Sudoku-v0-train", "name the game itself, textarena:Sudoku-v0"),
    ],
)
def test_other_games_are_refused(name, reason):
    with pytest.raises(SourceError, match=reason) as refusal:
        load_environment(f"textarena:{name}")
    assert "\n" not in str(refusal.value)


def test_every_game_that_is_refused_exists():
    registered = adapter._list_registered()
    for name in [*GAMES, *adapter.REFUSED]:
        assert any(name in (task, adapter._get_family(task)) for task in registered), name
    assert len(PLAYABLE) == 62


def test_games_of_words_are_refused_without_word_lists(tmp_path):
    program = (
        "from prime_ext.environments.names import load_environment;"
        "load_environment('textarena:Hangman-v0')"
    )
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "NLTK_DATA": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    if done.returncode == 0:
        pytest.skip("word lists of NLTK are installed")
    assert "python -m nltk.downloader words" in done.stderr.splitlines()[-1]


def test_the_last_brackets_are_the_move():
    assert find_move("I tried [1 2], so now [3 4].") == "[3 4]"
    assert find_move(" up\n") == "[up]"
    assert find_move("word " * 100) == "[]"


def test_a_game_is_won_in_a_process_of_its_own():
    async def win():
        async with Episode("textarena:TowerOfHanoi-v0") as episode:
            await episode.reset(SEED)
            return [await episode.step(f"First, {move}") for move in win_hanoi(None)]

    turns = asyncio.run(win())
    assert turns[-1].done and turns[-1].success == turns[-1].reward == 1
    assert [turn.progress for turn in turns][-1] == 1 and not any(turn.done for turn in turns[:-1])
