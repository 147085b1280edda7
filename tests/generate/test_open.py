# SPDX-License-Identifier: Apache-2.0
"""The flags of all backends, what fits together and what does not, and the bar over a backend's responses."""

import argparse

import pytest
from scripted_server import Answer, ScriptedServer

from prime_ext.generate.backend import BackendError, Request, Sampling, generate_with_progress
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments, open_backend


def opened(*words):
    parser = argparse.ArgumentParser()
    add_backend_arguments(parser)
    return backend_from_arguments(parser.parse_args(words))


def test_a_server_is_opened_from_flags(monkeypatch):
    monkeypatch.setenv("KEY", "sesame")
    with ScriptedServer(key="sesame") as server:
        words = f"--backend server --base-url {server.base_url} --model scripted --api-key-env KEY"
        backend = opened(*words.split(), "--concurrency", "3", "--attempts", "2", "--timeout", "9")
        backend.check([])
    assert (backend.concurrency, backend.attempts, backend.timeout) == (3, 2, 9.0)


@pytest.mark.parametrize(
    "words, message",
    [
        ("--backend server --model m", "--base-url"),
        ("--backend vllm", "--model"),
        ("--backend server --base-url http://h --chat-template f", "--chat-template means nothing to --backend server"),
        ("--backend vllm --model m --data-parallel 0", "--data-parallel 0"),
    ],
)
def test_what_does_not_fit_together_is_one_line(words, message):
    with pytest.raises(BackendError, match=message):
        opened(*words.split())


def test_the_bar_shows_responses_of_all_runs_speed_and_failures(capsys):
    requests = [Request(str(number), f"q{number}", Sampling()) for number in range(6)]
    with ScriptedServer(lambda *_: Answer("x", tokens=100), faults_of={"q3": [400]}, seconds=0.01) as server:
        backend = open_backend("server", "scripted", base_url=server.base_url)
        found = list(generate_with_progress(backend, requests, "math500", done=4))
    last = capsys.readouterr().err.replace("\n", "\r").strip("\r").split("\r")[-1]
    assert len(found) == 6
    assert last.startswith("math500: 100%") and "10/10" in last and "tokens/s, 1 failed" in last
