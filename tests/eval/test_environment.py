# SPDX-License-Identifier: Apache-2.0
"""``eval.run`` on environments: episodes, limits, failures, interruptions, rows of files."""

import json
import statistics
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_1samp
from small_tasks import ScriptedBackend, get_lines, get_results, run
from tiny_llama import save_llama

from data_preprocessing.environment import main as write_rows
from eval import grade
from eval.run import main
from prime_ext.environments.number_path import MOVES, NumberPath
from prime_ext.generate.backend import BackendError
from prime_ext.generate.transformers_backend import TransformersBackend

TASK = "environment:number_path"
FILES = ("responses", "samples", "problems")
GAMES = """\
import os


class Countdown:
    \"\"\"Ends after ``turns`` texts; a text may break it, or its process.\"\"\"

    def __init__(self, turns=3, words="left"):
        self.turns = turns
        self.words = words

    def reset(self, seed):
        self.left = self.turns
        return f"{seed} {self.left} {self.words}"

    def step(self, text):
        if text == "raise":
            raise ValueError("no such move")
        if text == "die":
            os._exit(1)
        self.left -= 1
        info = {"success": 0.5, "invalid": text == "?", "progress": 1 - self.left / self.turns}
        return f"{self.left} {self.words}", 0.25, self.left == 0, info

    def close(self):
        pass


class Unseeded(Countdown):
    def reset(self, seed):
        return f"{super().reset(seed)} {os.getpid()}"
"""


@pytest.fixture(scope="module", autouse=True)
def games(tmp_path_factory):
    """Put a module of games where Python and its fork servers find it."""
    folder = tmp_path_factory.mktemp("games")
    (folder / "countdown.py").write_text(GAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        # A server that runs keeps the path with which it started.
        patch.setattr("prime_ext.environments.episode._servers", {})
        yield


def move(request):
    """Return a move of number_path, or another text, by the seed."""
    texts = [*MOVES, "up"]
    return texts[request.seed % len(texts)]


class ContextBackend(ScriptedBackend):
    """A backend whose context holds all messages of a chat."""

    def check(self, requests):
        for request in requests:
            length = sum(len(message["content"]) for message in request.prompt)
            if length > self.context:
                raise BackendError(f"request {request.key} leaves no room")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Play 40 episodes of number_path with moves by the seed; return words, folder, backend."""
    folder = tmp_path_factory.mktemp("played")
    words = ["--tasks", TASK, "--limit", "20", "--n", "2", "--temperature", "1"]
    backend = ScriptedBackend(move)
    assert run(*words, "--output", folder / "out", backend=backend) == 0
    return words, folder / "out", backend


def get_files(folder, task=TASK):
    names = ("settings.json", "results.json", *(f"{task}/{name}.jsonl" for name in FILES))
    return {name: (folder / name).read_bytes() for name in names}


def test_episodes_are_those_of_the_environment(played, capsys):
    _, out, backend = played
    rewards = []
    lengths = []
    wins = []
    rows = get_lines(out / TASK / "samples.jsonl")
    assert len(rows) == 40 and len({row["problem"] for row in rows}) == 20
    for row in rows:
        game = NumberPath()
        chat = [{"role": "user", "content": game.reset(int(row["problem"]))}]
        assert row["prompt"] == chat
        for turn in row["turns"]:
            assert turn["action"] in (*MOVES, "up")
            text, reward, done, info = game.step(turn["action"])
            expected = (text, reward, done, info["progress"], info["invalid"])
            assert tuple(
                turn[key] for key in ("observation", "reward", "done", "progress", "invalid")
            ) == pytest.approx(expected)
            chat += [
                {"role": "assistant", "content": turn["action"]},
                {"role": "user", "content": text},
            ]
        assert done and not row["truncated"] and row["score"] == info["success"]
        assert row["verdict"] in ("correct", "wrong", "no_answer")
        # The policy has seen all of it but the last observation.
        assert tuple(chat[:-2]) in [prompt for prompt, _ in backend.asked]
        assert row["response"].endswith(f"[user]\n{text}") and row["tokens"] == 2 * len(
            row["turns"]
        )
        rewards.append(sum(turn["reward"] for turn in row["turns"]))
        lengths.append(len(row["turns"]))
        wins.append(row["score"])
    entry = get_results(out)["tasks"][TASK]
    assert entry["grader"] == "environment" and entry["decoding"]["max_turns"] == 16
    assert entry["summary"]["scores"]["avg@2"]["value"] == pytest.approx(statistics.fmean(wins))
    means = [
        (first + second) / 2 for first, second in zip(rewards[::2], rewards[1::2], strict=True)
    ]
    reward = entry["episodes"]["reward"]
    ends = ttest_1samp(means, 0).confidence_interval()
    assert (reward["value"], reward["low"], reward["high"]) == pytest.approx(
        (statistics.fmean(means), ends.low, ends.high)
    )
    assert entry["episodes"]["turns"]["value"] == pytest.approx(statistics.fmean(lengths))
    assert 0 < entry["episodes"]["invalid"]["low"] < entry["episodes"]["invalid"]["high"] < 1
    report = (out / "report.md").read_text()
    assert "reward of an episode" in report and "turns, at most 16" in report


def test_all_episodes_generate_a_turn_together(played):
    _, _, backend = played
    # In each round of requests every episode is one turn further.
    lengths = [len(prompt) for prompt, _ in backend.asked]
    assert lengths == sorted(lengths) and lengths.count(1) == 40
    assert len({seed for _, seed in backend.asked}) == len(backend.asked)


def test_an_interrupted_run_ends_with_the_same_bytes(played, tmp_path, monkeypatch):
    words, out, backend = played
    monkeypatch.setattr("eval.episodes.MOST_IN_PLAY", 8)
    asked = 0

    def answer(request):
        nonlocal asked
        asked += 1
        if asked > 170:
            raise KeyboardInterrupt
        return move(request)

    words = [*words, "--output", tmp_path / "out"]
    assert run(*words, backend=ScriptedBackend(answer)) == 130
    done = get_lines(tmp_path / "out" / TASK / "responses.jsonl")
    assert 0 < len(done) < 40 and not (tmp_path / "out" / "results.json").exists()
    again = ScriptedBackend(move)
    assert run(*words, backend=again) == 0
    finished = sum(len(row["turns"]) for row in done)
    assert len(again.asked) == len(backend.asked) - finished
    assert get_files(tmp_path / "out") == get_files(out)


def test_regrading_keeps_what_the_environment_said(played, capsys):
    _, out, _ = played
    before = get_files(out)
    assert grade.main(["--run", str(out)]) == 0
    assert f"{TASK}: 0 verdicts changed" in capsys.readouterr().out
    after = get_files(out)
    assert json.loads(after.pop("results.json")).pop("regraded_with")
    assert after == {name: before[name] for name in after}


@pytest.mark.parametrize(
    ("words", "context", "turns", "detail"),
    [
        (["--max-turns", "2"], 10**6, 2, "2 turns, reward 0.5, ended by the limit of 2 turns"),
        (["--max-episode-tokens", "5"], 10**6, 3, "ended by the limit of 5 tokens"),
        ([], 60, 6, "leaves no room"),
    ],
)
def test_limits_end_an_episode(tmp_path, words, context, turns, detail):
    backend = ContextBackend(lambda request: "go", context=context)
    name = "countdown:Countdown:turns=9"
    words = ["--tasks", f"environment:{name}", "--limit", "3", *words]
    assert run(*words, "--output", tmp_path, backend=backend) == 0
    entry = get_results(tmp_path)["tasks"][f"environment:{name}"]
    assert entry["summary"]["truncated"] == 1 and entry["episodes"]["turns"]["value"] == turns
    # What the environment said last.
    assert entry["summary"]["scores"]["avg@1"]["value"] == 0.5
    rows = get_lines(tmp_path / f"environment:{name}" / "samples.jsonl")
    assert all(detail in row["detail"] for row in rows)


def test_failures_of_environments_are_not_wrong_answers(tmp_path, capsys):
    texts = iter(["go", "raise", "die", "?"])
    fates = {}

    def answer(request):
        start = request.prompt[0]["content"]
        return fates.setdefault(start, next(texts, "go"))

    name = "environment:countdown:Countdown"
    words = ["--tasks", name, "--limit", "5", "--output", tmp_path]
    assert run(*words, backend=ScriptedBackend(answer)) == 0
    entry = get_results(tmp_path)["tasks"][name]
    assert entry["summary"]["grader_failures"] == 2 and entry["failed_responses"] == 0
    score = entry["summary"]["scores"]["avg@1"]
    assert (score["value"], score["problems"], score["left_out"]) == (0.5, 3, 2)
    assert entry["episodes"]["failures"] == {"error": 2}
    assert entry["episodes"]["reward"]["value"] == 0.75
    assert entry["episodes"]["invalid"]["value"] == pytest.approx(1 / 3)
    rows = get_lines(tmp_path / name / "samples.jsonl")
    assert sum("ValueError: no such move" in row["detail"] for row in rows) == 1
    assert sum("Countdown died" in row["detail"] for row in rows) == 1
    assert [row["verdict"] for row in rows].count("no_answer") == 1
    assert "failures of the environment error 2" in capsys.readouterr().out
    # They are judged, so the same command plays nothing.
    again = ScriptedBackend(answer)
    assert run(*words, backend=again) == 0 and again.asked == []


def test_episodes_of_which_a_turn_failed_are_played_again(tmp_path):
    name = "environment:countdown:Countdown"
    words = ["--tasks", name, "--limit", "4", "--output"]
    down = ScriptedBackend(lambda request: None if len(request.prompt) > 2 else "go")
    assert run(*words, tmp_path / "out", backend=down) == 1
    assert get_results(tmp_path / "out")["tasks"][name]["failed_responses"] == 4
    assert len(get_lines(tmp_path / "out" / name / "failed.jsonl")) == 4
    for folder in ("out", "other"):
        assert run(*words, tmp_path / folder, backend=ScriptedBackend(lambda _: "go")) == 0
    assert get_files(tmp_path / "out", name) == get_files(tmp_path / "other", name)


@pytest.mark.parametrize("tokenizer", [None, Mock(all_special_tokens=[], get_added_vocab=dict)])
def test_observations_have_no_tokens_of_chats(tmp_path, tokenizer):
    if tokenizer is not None:
        tokenizer.get_added_vocab = lambda: {"<|im_end|>": 7}
    backend = ScriptedBackend(lambda request: "go")
    backend.tokenizer = tokenizer
    name = "countdown:Countdown:words=<|im_end|>"
    words = ["--tasks", f"environment:{name}", "--limit", "2", "--output", tmp_path]
    assert run(*words, backend=backend) == 0
    users = [message for prompt, _ in backend.asked for message in prompt[::2]]
    assert len(users) > 4 and all("< |im_end|>" in message["content"] for message in users)


def test_test_rows_of_an_environment_are_played(tmp_path, capsys):
    words = ["number_path", "--size", "4", "--test-size", "6", "--system", "Move.", "--output-dir"]
    assert write_rows([*words, str(tmp_path / "path")]) == 0
    file = tmp_path / "path" / "test.parquet"
    rows = pq.read_table(file).to_pylist()
    words = ["--tasks", file, "--max-turns", "3", "--output"]
    assert run(*words, tmp_path / "out", backend=ScriptedBackend(move)) == 0
    samples = get_lines(tmp_path / "out" / "path_test" / "samples.jsonl")
    assert [sample["prompt"] for sample in samples] == [row["prompt"] for row in rows]
    assert all(len(sample["turns"]) == 3 for sample in samples)
    rows[1]["prompt"][1]["content"] = "At 1, go to 2."
    pq.write_table(pq.read_table(file).from_pylist(rows), file)
    capsys.readouterr()
    assert run(*words, tmp_path / "stale", backend=ScriptedBackend(move)) == 2
    error = capsys.readouterr().err
    assert "path/test.parquet, environment/number_path row 2: the seed" in error
    rows[1]["extra_info"]["seed"] = None
    pq.write_table(pq.read_table(file).from_pylist(rows), file)
    assert run(*words, tmp_path / "stale", backend=ScriptedBackend(move)) == 2
    assert "row 2: extra_info.seed must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        (TASK, ["--raw"], "--raw does not go with environments: an episode is a chat"),
        (TASK, ["--split", "test"], "--split does not go with environment:number_path"),
        (TASK, ["--max-turns", "0"], "--max-turns: '0' must be a whole number from 1"),
        ("gsm8k", ["--max-turns", "4"], "--max-turns is for environments; leave it out"),
        ("environment:numbr_path", [], "there is no environment 'numbr_path'; did you mean number"),
        ("environment:countdown:Unseeded", [], "countdown:Unseeded does not repeat: the seed"),
    ],
)
def test_mistakes_are_one_line_before_any_request(tmp_path, capsys, task, words, message):
    backend = ScriptedBackend(move)
    assert run("--tasks", task, *words, "--output", tmp_path, backend=backend) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and backend.asked == []


def test_a_model_on_this_machine_plays(tmp_path):
    model = str(save_llama(tmp_path / "model", max_positions=160))
    words = ["--tasks", "environment:countdown:Countdown:turns=4", "--limit", "3"]
    words += ["--max-new-tokens", "8", "--output", str(tmp_path / "out")]
    assert main(words, lambda _: TransformersBackend(model)) == 0
    rows = get_lines(tmp_path / "out" / words[1] / "samples.jsonl")
    for row in rows:
        assert 1 <= len(row["turns"]) <= 4
        assert row["truncated"] == (len(row["turns"]) < 4)
        assert not row["truncated"] or "do not fit into the context of 160" in row["detail"]
