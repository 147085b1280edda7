# SPDX-License-Identifier: Apache-2.0
"""Rows of environments: what is written, what the validator accepts, mistakes in one line."""

import pyarrow.parquet as pq
import pytest

from data_preprocessing.environment import main, split_weight
from data_preprocessing.validate import main as validate
from prime_ext.environments.number_path import NumberPath

GAMES = """\
import os
import random


class Guess:
    def __init__(self, first="{}: guess a letter."):
        self.first = first

    def reset(self, seed):
        self.random = random.Random(seed)
        return self.first.format(self.random.randint(1, 9))

    def step(self, text):
        return "no", 0.0, True, {"success": 0}

    def close(self):
        pass


class Unseeded(Guess):
    def reset(self, seed):
        return f"{seed} {os.getpid()}"


class Bare(Guess):
    def step(self, text):
        return "no", 0.0, True, {}


class Offline(Guess):
    def reset(self, seed):
        raise OSError("no route to host")
"""


@pytest.fixture(scope="module", autouse=True)
def games(tmp_path_factory):
    """Put a module of games where Python and its fork servers find it."""
    folder = tmp_path_factory.mktemp("games")
    (folder / "small_games.py").write_text(GAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delenv("PYTHONHASHSEED", raising=False)
        # A server that runs keeps the path with which it started.
        patch.setattr("prime_ext.environments.episode._servers", {})
        yield


def get_rows(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def test_rows_hold_the_first_observation_of_their_seed(tmp_path, capsys):
    names = ["number_path", "number_path:distance=2"]
    words = [f"{names[0]}=2", names[1], "--size", "24", "--test-size", "6", "--system", "Move."]
    for folder in ("a", "b"):
        assert main([*words, "--seed", "1", "--output-dir", str(tmp_path / folder)]) == 0
    for split in ("train", "test"):
        one, other = ((tmp_path / folder / f"{split}.parquet").read_bytes() for folder in "ab")
        assert one == other
    printed = capsys.readouterr().out
    assert "| environment/number_path | 20 | 0 | 0 |" in printed
    assert "rows of environment/NAME have no verifier: their environment judges" in printed
    train, test = (get_rows(tmp_path / "a", split) for split in ("train", "test"))
    assert [row["extra_info"]["index"] for row in train] == [*range(24)] and len(test) == 6
    for row in (*train, *test):
        extra = row["extra_info"]
        game = NumberPath() if extra["environment"] == names[0] else NumberPath(distance=2)
        assert row["prompt"] == [
            {"role": "system", "content": "Move."},
            {"role": "user", "content": game.reset(extra["seed"])},
        ]
        assert row["data_source"] == f"environment/{extra['environment']}"
        assert row["reward_model"]["ground_truth"] == extra["environment"]
        assert row["ability"] == "game"
    first, second = ({row["prompt"][1]["content"] for row in rows} for rows in (train, test))
    assert len(first) == 24 and len(second) == 6 and not first & second
    main([*words, "--seed", "2", "--output-dir", str(tmp_path / "c")])
    seeds = [
        {row["extra_info"]["seed"] for row in get_rows(tmp_path / folder, "train")}
        for folder in ("a", "c")
    ]
    assert not seeds[0] & seeds[1]


def test_weights_follow_complete_names():
    for word, expected in {
        "number_path": ("number_path", "", ""),
        "number_path=2": ("number_path", "=", "2"),
        "number_path:most=20": ("number_path:most=20", "", ""),
        "number_path:most=20=0.5": ("number_path:most=20", "=", "0.5"),
        "textarena:Wordle-v0=3": ("textarena:Wordle-v0", "=", "3"),
        "games:Guess:most=20:least=3": ("games:Guess:most=20:least=3", "", ""),
        "games:Guess:most=20:least=3=1": ("games:Guess:most=20:least=3", "=", "1"),
    }.items():
        assert split_weight(word) == expected


def test_hidden_starts_need_an_option(tmp_path, capsys):
    words = ["small_games:Guess:first=Guess.", "--size", "6", "--test-size", "2", "--output-dir"]
    assert main([*words, str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "made only 1 different first observations, then 200 seeds without a new one" in error
    assert error.count("\n") == 1 and not (tmp_path / "out").exists()
    assert main([*words, str(tmp_path / "out"), "--equal-texts"]) == 0
    rows = get_rows(tmp_path / "out", "train") + get_rows(tmp_path / "out", "test")
    assert len({row["extra_info"]["seed"] for row in rows}) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["numbr_path"], "environment: there is no environment 'numbr_path'; did you mean number_"),
        (["no_games:Guess"], "environment: no_games:Guess: there is no module no_games; PYTHONP"),
        (["small_games:Gess"], "small_games:Gess: small_games has no Gess; did you mean Guess?"),
        (["number_path:distance=99"], "ValueError: no two numbers up to 40 are 99 moves apart"),
        (["small_games:Offline"], "small_games:Offline: OSError: no route to host"),
        (["small_games:Unseeded"], "small_games:Unseeded does not repeat: the seed"),
        (["small_games:Bare"], "small_games:Bare: the last turn's info must have the key success"),
        (["small_games:Guess:first="], "AttributeError: 'NoneType' object has no attribute"),
        (["small_games:Guess:first=' '"], "the first observation of the seed"),
        (["number_path=0"], "number_path=0 must be NAME or NAME=WEIGHT, with a positive weight"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path, capsys, words, message):
    assert main([*words, "--size", "4", "--output-dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_the_validator_checks_names_and_seeds(tmp_path, capsys):
    words = ["number_path", "--size", "5", "--test-size", "1", "--output-dir", str(tmp_path)]
    assert main(words) == 0
    rows = get_rows(tmp_path, "train")
    rows[0]["reward_model"]["ground_truth"] = "4"
    rows[1]["extra_info"]["seed"] = None
    rows[2]["extra_info"]["environment"] = "number_path:most=20"
    for row in rows[3:]:
        row["data_source"] = row["data_source"] + "s"
    rows[3]["reward_model"]["ground_truth"] = rows[3]["extra_info"]["environment"] = "number_paths"
    table = pq.read_table(tmp_path / "train.parquet")
    pq.write_table(table.from_pylist(rows, table.schema), tmp_path / "train.parquet")
    capsys.readouterr()
    assert validate([str(tmp_path / "train.parquet")]) == 1
    printed = capsys.readouterr().out
    for number, message in enumerate(
        (
            "reward_model.ground_truth must be 'number_path', which environment/number_path names",
            "extra_info.seed must be a whole number, got None",
            "extra_info.environment must be 'number_path'",
            "there is no environment 'number_paths'; did you mean number_path?",
            "reward_model.ground_truth must be 'number_paths'",
        ),
        start=1,
    ):
        assert f"row {number}: {message}" in printed
    assert "5 rows with faults (environment 5)" in printed
