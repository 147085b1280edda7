# SPDX-License-Identifier: Apache-2.0
"""The flags of all backends: what fits together and what does not."""

import argparse

import pytest
from scripted_server import ScriptedServer

from prime_ext.generate.backend import BackendError
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments, open_backend
from prime_ext.generate.options import BackendOptions, options_from_arguments


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_backend_arguments(parser)
    return parser.parse_args(words)


def test_a_server_is_opened_from_flags(monkeypatch):
    monkeypatch.setenv("KEY", "sesame")
    with ScriptedServer(key="sesame") as server:
        words = ["--backend", "server", "--base-url", server.base_url, "--model", "scripted", "--api-key-env", "KEY"]
        backend = backend_from_arguments(parsed(*words, "--concurrency", "3", "--attempts", "2", "--timeout", "9"))
        backend.check([])
    assert (backend.concurrency, backend.policy.attempts, backend.policy.timeout_seconds) == (3, 2, 9.0)
    assert backend.policy.deadline_seconds == 7200


@pytest.mark.parametrize(
    "words, message",
    [
        ("--backend server --model m", "--backend server needs its address: --base-url http://127.0.0.1:8000/v1"),
        ("--backend vllm", "--backend vllm needs --model: a folder, a hub id or a checkpoint"),
        (
            "--backend server --base-url http://h --tensor-parallel 2",
            "--tensor-parallel means nothing to --backend server; leave it out, or use --backend vllm",
        ),
        (
            "--backend server --base-url http://h --chat-template f",
            "--chat-template means nothing to --backend server; leave it out, or use --backend vllm or "
            "--backend transformers",
        ),
        (
            "--backend transformers --model m --base-url http://h",
            "--base-url means nothing to --backend transformers; leave it out, or use --backend server",
        ),
        ("--backend vllm --model m --data-parallel 0", "--data-parallel 0 must be positive"),
        ("--backend vllm --model m --gpu-memory-utilization 90", "--gpu-memory-utilization 90.0 is a share, at most 1"),
        ("--backend vllm --model m --dtype float64", "--dtype float64 is only for --backend transformers"),
    ],
)
def test_what_does_not_fit_together_is_one_line(words, message):
    with pytest.raises(BackendError) as refused:
        options_from_arguments(parsed(*words.split()))
    assert str(refused.value) == message


def test_an_unknown_backend_is_refused():
    with pytest.raises(BackendError, match="--backend sglang is none of vllm, transformers, server"):
        open_backend("sglang", "m")


def test_only_given_options_override_those_of_a_backend():
    options = BackendOptions("vllm", "m", max_model_len=64)
    assert options.given("max_model_len", "gpu_memory_utilization") == {"max_model_len": 64}
