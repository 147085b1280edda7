# SPDX-License-Identifier: Apache-2.0
"""Episodes: what an environment does ends with its own episode, and equal seeds repeat."""

import asyncio
import os
import time

import pytest

from prime_ext.environments import episode as episodes
from prime_ext.environments.episode import EnvironmentFailed, Episode, Turn
from prime_ext.environments.names import read_name
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.verdict import Outcome


async def play(name, texts, seed=1, **limits):
    """Return the first observation and the turns of an episode."""
    async with Episode(name, **limits) as episode:
        said = [await episode.reset(seed)]
        for text in texts:
            said.append(await episode.step(text))
        return said


def test_an_episode_pays_and_ends():
    first, *turns = asyncio.run(play("broken_games:Counting:turns=2", ["7", "x"], seed=5))
    assert first == "Write a digit. Game 5."
    assert turns == [
        Turn("Again.", 1.0, False, False, 0.0, 0.5),
        Turn("Again.", 0.0, True, True, 0.0, 1.0),
    ]


def test_episodes_at_once_are_those_played_alone():
    """Each has the generators of Python and numpy for itself."""
    texts = ["a", "b", "c"]

    async def all_at_once():
        return await asyncio.gather(*(play("broken_games:Draws", texts, seed) for seed in range(8)))

    together = asyncio.run(all_at_once())
    alone = [asyncio.run(play("broken_games:Draws", texts, seed)) for seed in range(8)]
    assert together == alone and len({first for first, *_ in alone}) == 8


@pytest.mark.parametrize(
    ("text", "outcome", "line"),
    [
        ("hang", Outcome.TIMEOUT, "did not answer within 0.5 seconds"),
        ("raise", Outcome.ERROR, "OSError: the line is dead"),
        ("die", Outcome.ERROR, "the process of broken_games:Broken died"),
        ("leak", Outcome.OUT_OF_MEMORY, "more than 256 MiB of memory"),
        ("no tuple", Outcome.ERROR, "step must return (text, reward, done, info)"),
        ("nan", Outcome.ERROR, "a reward must be a finite number, got nan"),
        ("no text", Outcome.ERROR, "an observation must be a text, got NoneType"),
        ("long", Outcome.ERROR, "an observation of 200000 characters is above 100000"),
        ("no success", Outcome.ERROR, "the last turn's info must have the key success"),
        ("much success", Outcome.ERROR, "success must be in [0, 1], got 2"),
        ("no info", Outcome.ERROR, "info must be a mapping, got NoneType"),
    ],
)
def test_a_broken_environment_ends_its_own_episode_only(text, outcome, line):
    limits = {"step_limit": 0.5, "memory_limit": 2**28}
    # On a busy machine a process may take half a second to fill its memory or to die.
    limits_of_broken = limits if text == "hang" else limits | {"step_limit": 60}

    async def beside_another():
        name = "broken_games:Broken"
        return await asyncio.gather(
            play(name, [text], **limits_of_broken),
            play(name, ["a"] * 20, **limits),
            return_exceptions=True,
        )

    failure, others = asyncio.run(beside_another())
    assert isinstance(failure, EnvironmentFailed) and failure.outcome is outcome
    assert line in str(failure) and "\n" not in str(failure)
    assert len(others) == 21


def test_prints_reach_nobody_and_surrogates_are_replaced(capfd):
    _, turn = asyncio.run(play("broken_games:Broken", ["print"]))
    assert turn.text == "?<eos>\x07ok" and turn.reward == 0.5
    assert capfd.readouterr() == ("", "")


def test_no_process_is_left_even_of_one_that_hangs():
    async def run():
        async with Episode("broken_games:Broken", step_limit=100) as episode:
            await episode.reset(1)
            hanging = asyncio.create_task(episode.step("hang"))
            await asyncio.sleep(0.2)
            hanging.cancel()
            pids.append(episode._pid)
            raise KeyError

    pids = []
    with pytest.raises(KeyError):
        asyncio.run(run())
    for _ in range(100):
        if not os.path.exists(f"/proc/{pids[0]}"):
            return
        time.sleep(0.05)
    raise AssertionError("the process lives")


def test_a_dead_fork_server_is_started_again():
    asyncio.run(play("broken_games:Counting", ["1"]))
    for server in episodes._servers.values():
        server.kill()
    assert asyncio.run(play("broken_games:Counting", ["1"]))[1].reward == 1.0


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("number_pth", "there is no environment 'number_pth'; did you mean number_path?"),
        ("reasoning_gm:x", "there is no module reasoning_gm; did you mean reasoning_gym?"),
        ("no_such_module:Game", "no module no_such_module; PYTHONPATH must name its folder"),
        ("broken_games:Countng", "broken_games has no Countng; did you mean Counting?"),
        ("broken_games:NoGame", "NoGame has no method reset, step, close"),
        ("broken_games:Counting:turns", "'turns' must be PARAMETER=VALUE"),
        ("broken_games:Counting:turms=2", "unexpected keyword argument 'turms'"),
        ("reasoning_gym", "name a task, as in reasoning_gym:TASK"),
        ("reasoning_gym:chain_smu", "did you mean chain_sum?"),
        ("number_path:most=3:distance=9", "no two numbers up to 3 are 9 moves apart"),
    ],
)
def test_a_wrong_name_is_one_line(name, line):
    with pytest.raises(EnvironmentFailed) as error:
        asyncio.run(play(name, []))
    assert line in str(error.value) and "\n" not in str(error.value)


def test_parameters_are_read_as_yaml():
    read = read_name("my.games:Guess:most=20:words=[a, b]:hard=true")
    assert read.path == "my.games:Guess"
    assert read.parameters == {"most": 20, "words": ["a", "b"], "hard": True}
    with pytest.raises(SourceError, match="not YAML"):
        read_name("my.games:Guess:most=[")


# ---- environments of the package ----


def test_the_shortest_way_makes_steady_progress():
    from prime_ext.environments.number_path import MOVES, NumberPath, _count_moves, apply_move

    for seed in range(50):
        game = NumberPath(most=30, distance=3, slack=1)
        text = game.reset(seed)
        at, target = (int(number) for number in text[3:].split(" (")[0].split(", go to "))
        gains = []
        for done in (False, False, True):
            distances = _count_moves(target, 30)
            move = min(MOVES, key=lambda m: distances.get(apply_move(at, m, 30), 99))
            at = apply_move(at, move, 30)
            said, reward, ended, info = game.step(move)
            gains.append(info["progress"])
            assert said == f"At {at}, go to {target} ({target - at:+d})."
            assert (ended, reward, info["success"]) == (done, float(done), done)
        assert gains == pytest.approx([1 / 3, 2 / 3, 1])


def test_number_path_ends_at_its_limit_and_marks_invalid_texts():
    _, *turns = asyncio.run(play("number_path:distance=2:slack=1", ["hello", "+1000", "+5 "]))
    assert [turn.invalid for turn in turns[:2]] == [True, True]
    assert [turn.reward for turn in turns[:2]] == [-0.1, -0.1]
    assert turns[-1].done and not turns[-1].success


def test_a_problem_of_reasoning_gym_is_one_turn():
    name = "reasoning_gym:chain_sum:max_terms=2:max_digits=1"
    first, turn = asyncio.run(play(name, ["no box"], seed=3))
    assert turn.done and turn.success == 0 and turn.invalid
    terms = first.split(": ")[1].split(" =")[0]
    answer = sum(int(term) for term in terms.replace("- ", "-").replace("+ ", "").split())
    again, turn = asyncio.run(play(name, [rf"\boxed{{{answer}}}"], seed=3))
    assert again == first and turn.success == 1 and turn.reward == 1
