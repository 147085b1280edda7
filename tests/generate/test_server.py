# SPDX-License-Identifier: Apache-2.0
"""The server backend against a server that really speaks HTTP, with and without faults."""

import argparse
import asyncio
import json
import socket
import time

import pytest
from scripted_server import Answer, ScriptedServer

from prime_ext.generate.backend import BackendError, Request, Response, Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.generate.server_backend import ServerBackend


def chat(key, text, **sampling):
    return Request(
        key, ({"role": "user", "content": text},), Sampling(max_new_tokens=8, **sampling), seed=7
    )


def get_backend(server, **options):
    return ServerBackend(server.base_url, **{"model": "scripted", "attempts": 4, **options})


def answers(server, requests, **options):
    return {
        response.key: response for response in get_backend(server, **options).generate(requests)
    }


def test_chats_and_texts_are_answered_inside_a_running_event_loop():
    async def inside():
        return answers(server, [chat("a", "1+1?"), Request("b", "Once", Sampling())])

    script = {"1+1?": "2", "Once": Answer(" upon a time", "length", tokens=3, prompt_tokens=1)}
    with ScriptedServer(script) as server:
        responses = asyncio.run(inside())
    assert responses == {
        "a": Response("a", "2", 2, 1, "stop"),
        "b": Response("b", " upon a time", 3, 1, "length"),
    }


def test_sampling_options_are_sent_and_extensions_only_when_set():
    sampling = {
        "temperature": 0.3,
        "top_p": 0.95,
        "top_k": 20,
        "min_new_tokens": 2,
        "stop": ("\n\n",),
    }
    with ScriptedServer() as server:
        answers(server, [chat("a", "x", **sampling)])
        answers(server, [Request("b", "y", Sampling(max_new_tokens=5), seed=2**64 - 1)])
        options = {"chat_template_kwargs": {"enable_thinking": False}}
        answers(server, [chat("c", "z"), Request("d", "raw", Sampling())], **options)
    first, second, with_options, raw = server.requests
    assert with_options["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in raw
    assert first.pop("messages") == [{"role": "user", "content": "x"}]
    assert first == {
        **{
            "model": "scripted",
            "n": 1,
            "stream": False,
            "seed": 7,
            "temperature": 0.3,
            "top_p": 0.95,
        },
        **{"max_tokens": 8, "min_tokens": 2, "top_k": 20, "stop": ["\n\n"]},
    }
    assert not {"top_k", "min_tokens", "stop"} & set(second) and 0 <= second["seed"] < 2**63


def test_what_may_pass_is_asked_again():
    faults = [429, (429, "0.05"), 408, 500, "cut", "cut_body", "not_json", "no_choices"]
    with ScriptedServer(faults_of={str(fault): [fault] * 3 for fault in faults}) as server:
        responses = answers(server, [chat(str(fault), str(fault)) for fault in faults])
    assert {key: response.text for key, response in responses.items()} == {
        str(fault): str(fault) for fault in faults
    }
    assert set(server.counts.values()) == {4}


def test_a_lasting_fault_is_one_failed_response_with_one_line():
    asked_again = {429: "HTTP 429: ", 500: "HTTP 500: ", "cut": "no connection: "}
    asked_again |= dict.fromkeys(
        ("not_json", b"[1]", "no_choices", "no_text", "no_finish"), "malformed answer: "
    )
    refused = {status: f"HTTP {status}: " for status in (400, 401, 404, 422)}
    details = asked_again | refused
    with ScriptedServer(faults_of={str(fault): [fault] * 9 for fault in details}) as server:
        requests = [chat("good", "good"), *(chat(str(fault), str(fault)) for fault in details)]
        responses = answers(server, requests, attempts=2)
    assert responses.pop("good") == Response("good", "good", 2, 1, "stop")
    for fault, detail in details.items():
        response = responses[str(fault)]
        assert (response.finish, response.text, response.tokens) == ("failed", "", 0)
        assert response.detail.startswith(detail) and "\n" not in response.detail
        assert server.counts[str(fault)] == (1 if fault in refused else 2)


def test_silent_requests_time_out_alone_and_concurrency_is_limited():
    requests = [chat("slow", "slow"), *(chat(str(k), f"q{k}") for k in range(40))]
    with ScriptedServer(faults_of={"slow": ["hang"]}, seconds=0.1) as server:
        *others, slow = get_backend(server, attempts=1, timeout=8, concurrency=5).generate(requests)
    assert (
        len(others) == 40
        and slow.detail == "no answer in 8 s (1 attempts)"
        and server.most_active == 5
    )


def test_a_caller_that_stops_early_stops_the_requests():
    with ScriptedServer(seconds=0.05) as server:
        responses = get_backend(server, concurrency=2).generate(
            [chat(str(k), f"q{k}") for k in range(1000)]
        )
        next(responses)
        responses.close()
        # Requests that were on their way may still arrive.
        time.sleep(0.3)
        assert len(server.requests) < 100


def test_the_model_must_be_served_where_there_is_a_list():
    with ScriptedServer(models=("small", "large")) as server:
        with pytest.raises(BackendError, match="does not serve 'huge'; it serves small, large"):
            get_backend(server, model="huge").check([])
        with pytest.raises(
            BackendError, match=r"needs a model's name \(--model\); it serves small, large"
        ):
            get_backend(server, model="").check([])
        get_backend(server, model="small").check([chat("a", "q")])
    with ScriptedServer(models=("only",), max_model_len=32) as server:
        known = {"backend": "server", "model": "only", "max_model_len": 32}
        assert get_backend(server, model="").description() == known
    with ScriptedServer(models=None) as server:
        get_backend(server, model="any").check([chat("a", "q")])
        with pytest.raises(BackendError, match="answers with HTTP 404"):
            get_backend(server, model="").check([])


def test_an_unreachable_server_is_one_line_and_fails_every_request():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(BackendError, match="cannot be reached, is the server running?"):
        ServerBackend(url, "m").check([])
    with ScriptedServer(models=None) as server:
        backend = get_backend(server, concurrency=4, attempts=1)
        backend.check([])
    details = [
        response.detail for response in backend.generate([chat(str(k), "q") for k in range(200)])
    ]
    tried = [detail for detail in details if detail.startswith("no connection: ")]
    assert len(details) == 200 and 0 < len(tried) < 20
    assert {detail.split(":")[0] for detail in details} == {"no connection", "not asked"}


def test_only_the_server_can_render_a_chat():
    with ScriptedServer() as server:
        backend = get_backend(server)
        assert backend.render_prompt(Request("a", "raw", Sampling())) == "raw"
        with pytest.raises(BackendError, match="chat template"):
            backend.render_prompt(chat("a", "q"))


def test_the_key_comes_from_its_variable_and_is_never_shown(monkeypatch):
    for name, value in (
        ("RIGHT", "sesame"),
        ("WRONG", "open-barley"),
        ("OPENAI_API_KEY", "of-another-server"),
    ):
        monkeypatch.setenv(name, value)
    with ScriptedServer(key="sesame", models=("scripted",)) as server:
        assert answers(server, [chat("a", "q")], api_key_env="RIGHT")["a"].finish == "stop"
        with pytest.raises(BackendError, match="HTTP 401") as refused:
            get_backend(server, api_key_env="WRONG").check([])
        with pytest.raises(
            BackendError, match="the environment variable UNSET with the server's key is not set"
        ):
            get_backend(server, api_key_env="UNSET")
    assert "open-barley" not in str(refused.value) and "***" in str(refused.value)
    with ScriptedServer() as server:
        answers(server, [chat("a", "q")])
    assert "of-another-server" not in json.dumps(server.headers)


def opened(*words):
    parser = argparse.ArgumentParser()
    add_backend_arguments(parser)
    return backend_from_arguments(parser.parse_args(words))


def test_flags_that_do_not_fit_together_are_one_line():
    for words, message in (
        ("--backend server --model m", "--base-url"),
        ("--backend vllm", "--model"),
        (
            "--backend server --base-url http://h --revision f",
            "--revision means nothing to --backend server",
        ),
        (
            "--backend server --model m --base-url localhost:8000",
            "--base-url localhost:8000 is not a URL",
        ),
        (
            "--backend server --model m --base-url http://me:secret@h",
            "holds a user name or password",
        ),
    ):
        with pytest.raises(BackendError, match=message):
            opened(*words.split())
