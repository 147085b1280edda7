# SPDX-License-Identifier: Apache-2.0
"""Single-player games of TextArena as environments: ``textarena:TowerOfHanoi-v0:max_turns=20``.

The last part of a text in [square brackets] is the move, so reasoning may precede it; a text
without brackets is a move itself. The parameters are those of the game's class. ``GAMES`` lists
what success means; all other games are refused.

The reward comes at the end of an episode. It is 1 for a won game, and for a lost one what the game
gives, in [-1, 1]: often the share that is done. Most games end at the second invalid move in a row;
a wrong letter of Crosswords, a wrong digit of Sudoku and a mine of Minesweeper count as such.
``progress`` is 0 at the start; the reward of a lost game need not be: Countdown pays 0.57 to a
player who has done nothing.
"""

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from prime_ext.config.checks import guess
from prime_ext.utils.rows import SourceError

HOW_TO_MOVE = "Your move is the last part of your text in [square brackets]."
LONGEST_MOVE = 200
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_VARIANT = re.compile(r"-(raw|train)$")  # the same game with other wrappers, which do not matter


def _measure_completion(game: Any) -> float:
    return game._get_percentage_completion()


@dataclass(frozen=True)
class Game:
    """Facts about a game that TextArena does not state in one place.

    Attributes:
        success: what it means.
        progress: the game's measure of what is done; None if it has none, or a misleading one. A
            lost game without a measure has a reward of at most 0.
        is_won: None if the game gives a reward of 1 to won games alone.
        is_shared: whether the reward is a share of successes.
        limit: number of texts after which a game ends that might never end.
        needs_words: whether it needs word lists of NLTK, which must be on the machine.
    """

    success: str
    progress: Callable[[Any], float] | None = _measure_completion
    is_won: Callable[[Any], bool] | None = None
    is_shared: bool = False
    limit: int | None = None
    needs_words: bool = False


# By the part of the name before -v0; the variants of a game, such as -hard, differ in parameters.
# Every seed of Countdown, Cryptarithm, PegJump and TowerOfHanoi is the same puzzle, unless
# parameters change it: Countdown-v0:numbers=null:target=null draws one. Six in a hundred of
# Crosswords-v0-hardcore have more letters than turns, unless max_turns=40.
GAMES = {
    "2048": Game("the tile is reached", is_won=lambda game: game._check_status() == "win"),
    "Blackjack": Game("share of the hands that are won", is_shared=True),
    "Countdown": Game("the target is reached", lambda game: game._calculate_progress()),
    "Crosswords": Game("all letters are found"),
    # Its measure counts letters with a digit, right or wrong.
    "Cryptarithm": Game("the equation holds", progress=None),
    "FrozenLake": Game("the goal is reached"),
    "GuessTheNumber": Game("the number is found"),
    "Hangman": Game("the word is found", limit=60, needs_words=True),
    "LightsOut": Game("all lights are off"),
    "LogicPuzzle": Game("all cells are marked right"),
    "Mastermind": Game("the code is found"),
    "Minesweeper": Game("all safe cells are open"),
    "PegJump": Game("one peg is left"),
    "RushHour": Game("the red car is out", limit=100),
    "Secretary": Game("the highest value is accepted", progress=None),
    "Slitherlink": Game(
        "all clues hold on one loop", lambda game: game._progress(), lambda game: game._is_solved()
    ),
    "Sokoban": Game("all boxes are on targets"),
    "Sudoku": Game("all cells are filled"),
    "ThreeCardMonte": Game("the ball is found", progress=None),
    "TowerOfHanoi": Game("all disks are on tower C"),
    "WordLadder": Game("the target word is reached", needs_words=True),
    "WordSearch": Game("all words are found", limit=60, needs_words=True),
    "Wordle": Game("the word is found", needs_words=True),
}
# Other games of one player, of TextArena 0.7.4, or single variants.
REFUSED = {
    "BabyAiText": "it needs packages that are not on the package index",
    "Bandit": "it counts no button as the best, and pays most for the worst",
    "FifteenPuzzle": "it breaks when it is solved",
    "GuessWho": "a model answers in it, over a network",
    "Klondike": "its module has a syntax error",
    "Set": "it pays for the same card three times",
    "Sokoban-v0-medium": "making a room takes more than half a minute",
    "Sudoku-v0-hard": "making a grid takes up to 14 seconds",
    "TwentyQuestions": "a model answers in it, over a network",
    "UltimateTexasHoldem": "it takes thousands of turns",
}


class TextArenaGame:
    """One game of TextArena, by the name that TextArena gives it."""

    def __init__(self, task: str, **parameters: Any) -> None:
        self._task = task
        self._parameters = parameters
        self._game = GAMES[_get_family(task)]

    @classmethod
    def prepare(cls, task: str, **parameters: Any) -> None:
        """Import the game. Raises SourceError: it is refused, or takes no such parameters."""
        if find_spec("textarena") is None:
            raise SourceError("textarena is not installed: pip install -e '.[textarena]'")
        _refuse_others(task)
        game = GAMES[_get_family(task)]
        try:
            _make(task, game, parameters)
        except Exception as error:
            if game.needs_words and isinstance(error, LookupError):
                raise SourceError(
                    f"textarena:{task} needs word lists of NLTK on this machine:"
                    " python -m nltk.downloader words averaged_perceptron_tagger_eng"
                ) from error
            detail = " ".join(f"{type(error).__name__}: {error}".split())
            raise SourceError(f"textarena:{task} cannot be made: {detail}") from error

    def reset(self, seed: int) -> str:
        random.seed(seed)
        self._env = _make(self._task, self._game, self._parameters)
        try:
            self._env.reset(num_players=1, seed=seed)
        except ZeroDivisionError:  # one LightsOut of 5000 begins solved
            self._env.reset(num_players=1, seed=seed + 1_000_003)
        self._turns = 0
        self._first = self._measure()
        _order_arguments(self._env.state)
        return "\n\n".join([*(text for _, text in self._read_messages()), HOW_TO_MOVE])

    def step(self, text: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        self._turns += 1
        self._env.step(find_move(text))
        state = self._env.state
        messages = self._read_messages()
        lines = [message for _, message in messages]
        invalid = state.game_info[0]["invalid_move"] or "GAME_ADMIN" in dict(messages)
        info: dict[str, Any] = {"invalid": invalid}
        if self._game.progress is not None:
            info["progress"] = self._compare_with_start()
        if not state.done and self._turns != self._game.limit:
            return "\n\n".join(lines), 0.0, False, info
        if state.done:
            lines.append(str(state.game_info[0]["reason"]))
            reward = max(-1.0, float(state.rewards[0]))
        else:
            lines.append(f"The game ends after {self._turns} texts.")
            reward = self._measure()
        if self._game.is_shared:
            info["success"] = _clip(reward)
        else:
            info["success"] = self._is_won(reward, invalid)
            if info["success"] and self._game.progress is not None:
                info["progress"] = 1.0
            elif not info["success"] and self._game.progress is None:
                reward = min(0.0, reward)
        return "\n\n".join(lines), reward, True, info

    def close(self) -> None:
        pass

    def _measure(self) -> float:
        return 0.0 if self._game.progress is None else float(self._game.progress(self._env))

    def _compare_with_start(self) -> float:
        """Return the share of what was to be done at the start that is done."""
        to_do = 1 - self._first
        return _clip((self._measure() - self._first) / to_do) if to_do > 0 else 0.0

    def _is_won(self, reward: float, invalid: bool) -> bool:
        if self._game.is_won is not None:
            return self._game.is_won(self._env)
        return self._env.state.done and reward == 1 and not invalid

    def _read_messages(self) -> list[tuple[str, str]]:
        """Return kind and text of what the game has said since the last turn."""
        from textarena import ObservationType

        return [
            (kind.name, message.strip())
            for _, message, kind in self._env.state.get_current_player_observation()
            # Some games add the player's text with its arguments in the wrong order.
            if isinstance(kind, ObservationType) and kind is not ObservationType.PLAYER_ACTION
        ]


def find_move(text: str) -> str:
    """Return a text's move, in brackets; ``[]``, an invalid one, if it is too long."""
    parts = _BRACKETS.findall(text)
    move = parts[-1] if parts else f"[{text.strip()}]"
    return move if len(move) <= LONGEST_MOVE else "[]"


def list_games() -> list[str]:
    """Return the names of all games that can be played."""
    return [task for task in _list_registered() if not _VARIANT.search(task) and not _judge(task)]


def _list_registered() -> list[str]:
    import textarena  # noqa: F401  it fills the registry
    from textarena.envs.registration import ENV_REGISTRY

    return list(ENV_REGISTRY)


def _get_family(task: str) -> str:
    return task.partition("-v0")[0]


def _judge(task: str) -> str:
    """Return why a game is refused; empty if it is not."""
    family = _get_family(task)
    if reason := REFUSED.get(task) or REFUSED.get(family):
        return reason
    return "" if family in GAMES else "it needs several players"


def _refuse_others(task: str) -> None:
    if task not in _list_registered():
        raise SourceError(f"TextArena has no game {task!r}{guess(task, list_games())}")
    plain = _VARIANT.sub("", task)
    if reason := _judge(plain):
        raise SourceError(f"textarena:{task} is refused: {reason}")
    if plain != task:
        raise SourceError(f"textarena:{task} is refused: name the game itself, textarena:{plain}")


def _make(task: str, game: Game, parameters: Mapping[str, Any]) -> Any:
    """Return a new game without TextArena's wrappers."""
    if game.needs_words:  # loading them takes seconds
        return copy.copy(_make_once(task, tuple(sorted(parameters.items()))))
    return _construct(task, parameters)


@cache
def _make_once(task: str, parameters: tuple[tuple[str, Any], ...]) -> Any:
    return _construct(task, dict(parameters))


def _construct(task: str, parameters: Mapping[str, Any]) -> Any:
    import textarena

    with _no_downloads():
        if task.startswith("Wordle"):
            _keep_tagger()
        return textarena.make(f"{task}-raw", **parameters)


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Keep TextArena's modules from downloading word lists."""
    import nltk

    download = nltk.download
    nltk.download = lambda *_, **__: True
    try:
        yield
    finally:
        nltk.download = download


def _keep_tagger() -> None:
    """Load the tagger of words once: Wordle loads it for each of up to 200,000 words."""
    import textarena.envs.Wordle.env as wordle
    from nltk.tag import PerceptronTagger

    wordle.pos_tag = PerceptronTagger().tag


def _order_arguments(state: Any) -> None:
    """Accept that some games give reward and reason of an invalid move in the wrong order."""
    set_invalid_move = state.set_invalid_move

    def set_in_order(reason: Any, reward: Any = -1.0) -> None:
        if not isinstance(reason, str):
            reason, reward = reward, reason
        set_invalid_move(reason=reason, reward=reward)

    state.set_invalid_move = set_in_order


def _clip(share: float) -> float:
    return min(1.0, max(0.0, share))
