# SPDX-License-Identifier: Apache-2.0
"""The server backend against a server that really speaks HTTP, with and without faults."""

import asyncio
import json
import socket
import time

import pytest
from scripted_server import Answer, ScriptedServer

from prime_ext.generate.backend import BackendError, Request, Response, Sampling
from prime_ext.generate.server import ServerBackend, api_url


def chat(key, text, **sampling):
    return Request(key, ({"role": "user", "content": text},), Sampling(max_new_tokens=8, **sampling), seed=7)


def backend_of(server, **options):
    return ServerBackend(server.base_url, **{"model": "scripted", "attempts": 4, **options})


def answers(server, requests, **options):
    return {response.key: response for response in backend_of(server, **options).generate(requests)}


def test_chats_and_raw_texts_are_answered():
    script = {"1+1?": "2", "Once": Answer(" upon a time", "length", tokens=3, prompt_tokens=1)}
    with ScriptedServer(script) as server:
        found = answers(server, [chat("a", "1+1?"), Request("b", "Once", Sampling())])
    assert found == {
        "a": Response("a", "2", 2, 1, "stop"),
        "b": Response("b", " upon a time", 3, 1, "length"),
    }


def test_the_sampling_is_sent_and_extensions_only_where_they_mean_something():
    sampling = {"temperature": 0.3, "top_p": 0.95, "top_k": 20, "min_new_tokens": 2, "stop": ("\n\n",)}
    with ScriptedServer() as server:
        answers(server, [chat("a", "x", **sampling)])
        answers(server, [Request("b", "y", Sampling(max_new_tokens=5), seed=2**64 - 1)])
    assert server.requests[0] == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 8,
        "temperature": 0.3,
        "top_p": 0.95,
        "n": 1,
        "stream": False,
        "seed": 7,
        "top_k": 20,
        "min_tokens": 2,
        "stop": ["\n\n"],
    }
    assert not {"top_k", "min_tokens", "stop"} & set(server.requests[1])
    assert 0 <= server.requests[1]["seed"] < 2**63


def test_what_may_pass_is_asked_again():
    faults = [
        429,
        (429, "0.05"),
        408,
        500,
        503,
        "cut",
        "cut_body",
        "not_json",
        b"{",
        "no_choices",
        "no_text",
        "no_finish",
    ]
    with ScriptedServer(faults_of={str(fault): [fault] * 3 for fault in faults}) as server:
        found = answers(server, [chat(str(fault), str(fault)) for fault in faults])
    assert {key: response.text for key, response in found.items()} == {str(fault): str(fault) for fault in faults}
    assert set(server.counts.values()) == {4}


def test_what_does_not_pass_is_one_failed_response_with_one_line():
    malformed = "malformed answer: "
    details = {429: "HTTP 429: ", 500: "HTTP 500: ", "cut": "no connection: ", "not_json": malformed, b"[1]": malformed}
    details |= dict.fromkeys(("no_choices", "no_text", "no_finish"), malformed)
    with ScriptedServer(faults_of={str(fault): [fault] * 9 for fault in details}) as server:
        found = answers(
            server, [chat("good", "good"), *(chat(str(fault), str(fault)) for fault in details)], attempts=2
        )
    assert found.pop("good") == Response("good", "good", 2, 1, "stop")
    for fault, detail in details.items():
        response = found[str(fault)]
        assert (response.finish, response.text, response.tokens) == ("failed", "", 0)
        assert response.detail.startswith(detail) and "\n" not in response.detail
        assert server.counts[str(fault)] == 2


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refused_request_is_not_asked_again(status):
    with ScriptedServer(faults_of={"bad": [status] * 9}) as server:
        response = answers(server, [chat("a", "bad")])["a"]
    assert response.finish == "failed" and response.detail.startswith(f"HTTP {status}: ")
    assert "told\\n to fail" in response.detail and server.counts["bad"] == 1


def test_a_server_asks_for_a_pause_and_gets_it_unless_it_is_too_long():
    with ScriptedServer(faults_of={"short": [(429, "1.5")], "long": [(429, "3600")]}) as server:
        start = time.monotonic()
        found = answers(server, [chat("short", "short"), chat("long", "long")])
        assert time.monotonic() - start > 1.5
    assert found["short"].finish == "stop"
    assert found["long"].detail.startswith("HTTP 429: ") and server.counts["long"] == 1


def test_silence_ends_after_the_time_for_an_attempt_and_all_after_the_deadline():
    with ScriptedServer(always="hang") as server:
        waited = answers(server, [chat("a", "q")], timeout=0.3, attempts=2)["a"]
        late = answers(server, [chat("a", "q")], timeout=0.3, attempts=99, deadline=1.0)["a"]
    assert waited.detail == "no answer in 0.3 s (2 attempts)" and late.detail == "no answer before the deadline of 1 s"


def test_one_silent_request_does_not_hold_up_the_others():
    requests = [chat("slow", "slow"), *(chat(str(k), f"q{k}") for k in range(20))]
    with ScriptedServer(faults_of={"slow": ["hang"]}) as server:
        backend = backend_of(server, attempts=1, timeout=8, concurrency=4)
        order = [response.key for response in backend.generate(requests)]
    assert order[-1] == "slow" and len(order) == 21


def test_no_more_requests_at_a_time_than_allowed():
    with ScriptedServer(seconds=0.1) as server:
        found = answers(server, [chat(str(k), f"q{k}") for k in range(40)], concurrency=5)
    assert len(found) == 40 and server.most_active == 5


def test_a_caller_that_stops_early_stops_the_requests():
    with ScriptedServer(seconds=0.05) as server:
        responses = backend_of(server, concurrency=2).generate([chat(str(k), f"q{k}") for k in range(1000)])
        next(responses)
        responses.close()
        # Requests that were on their way may still arrive.
        time.sleep(0.3)
        assert len(server.requests) < 100


def test_it_works_where_an_event_loop_is_running():
    async def inside():
        return answers(server, [chat("a", "q")])

    with ScriptedServer() as server:
        assert asyncio.run(inside())["a"].text == "q"


@pytest.mark.parametrize(
    "answer, expected",
    [
        (Answer(None, "length"), ("", "length")),
        (Answer("x", "content_filter"), ("", "failed")),
        (Answer("x", "eos_token"), ("x", "stop")),
    ],
    ids=["cut off while reasoning", "filtered", "another server's word for the end"],
)
def test_why_a_response_ended(answer, expected):
    with ScriptedServer({"q": answer}) as server:
        response = answers(server, [chat("a", "q")])["a"]
    assert (response.text, response.finish) == expected
    assert (response.detail == "the server ended the response: content_filter") == (response.finish == "failed")


def test_lengths_that_are_not_told_are_said_to_be_unknown():
    with ScriptedServer(always="no_usage") as server:
        response = answers(server, [chat("a", "q")])["a"]
    assert response == Response("a", "q", 0, 0, "stop", "the server does not tell lengths (usage)")


# ---- the server and its model ----------------------------------------------------------------------------------------


def test_the_model_must_be_served_where_there_is_a_list():
    with ScriptedServer(models=("small", "large")) as server:
        with pytest.raises(BackendError, match="does not serve 'huge'; it serves small, large"):
            backend_of(server, model="huge").check([])
        with pytest.raises(BackendError, match=r"needs a model's name \(--model\); it serves small, large"):
            backend_of(server, model="").check([])
        backend_of(server, model="small").check([chat("a", "q")])
    with ScriptedServer(models=("only",), max_model_len=32) as server:
        known = {"backend": "server", "model": "only", "max_model_len": 32}
        assert backend_of(server, model="").description() == known
    with ScriptedServer(models=None) as server:
        backend_of(server, model="any").check([chat("a", "q")])
        with pytest.raises(BackendError, match="answers with HTTP 404"):
            backend_of(server, model="").check([])


def test_no_server_is_one_line_at_check_and_one_failure_per_request():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(BackendError, match="cannot be reached, is the server running?"):
        ServerBackend(url, "m").check([])
    with ScriptedServer(models=None) as server:
        backend = backend_of(server, concurrency=4, attempts=1)
        backend.check([])
    details = [response.detail for response in backend.generate([chat(str(k), "q") for k in range(200)])]
    tried = [detail for detail in details if detail.startswith("no connection: ")]
    assert len(details) == 200 and 0 < len(tried) < 20
    assert {detail.split(":")[0] for detail in details} == {"no connection", "not asked"}


def test_beams_and_a_context_that_is_too_short_are_refused():
    with ScriptedServer(max_model_len=16) as server:
        with pytest.raises(BackendError, match="servers have no beams .num_beams 5.; use --backend transformers"):
            backend_of(server).check([chat("a", "q", num_beams=5)])
        with pytest.raises(BackendError, match="request b: 512 new tokens leave no room .* 16 tokens of scripted"):
            backend_of(server).check([Request("b", "q", Sampling())])


def test_what_the_model_sees_is_known_for_raw_texts_only():
    with ScriptedServer() as server:
        assert backend_of(server).shown(Request("a", "raw", Sampling())) == "raw"
        with pytest.raises(BackendError, match="the server applies its own chat template"):
            backend_of(server).shown(chat("a", "q"))


def test_the_key_comes_from_the_named_variable_only_and_is_never_repeated(monkeypatch):
    for name, value in (("RIGHT", "sesame"), ("WRONG", "open-barley"), ("OPENAI_API_KEY", "of-another-server")):
        monkeypatch.setenv(name, value)
    with ScriptedServer(key="sesame", models=("scripted",)) as server:
        assert answers(server, [chat("a", "q")], api_key_variable="RIGHT")["a"].finish == "stop"
        with pytest.raises(BackendError, match="HTTP 401") as refused:
            backend_of(server, api_key_variable="WRONG").check([])
        with pytest.raises(BackendError, match="the environment variable UNSET with the server's key is not set"):
            backend_of(server, api_key_variable="UNSET")
    assert "open-barley" not in str(refused.value) and "***" in str(refused.value)
    with ScriptedServer() as server:
        answers(server, [chat("a", "q")])
    assert "of-another-server" not in json.dumps(server.headers)


@pytest.mark.parametrize("url, expected", [("http://h:1", "http://h:1/v1"), ("https://h/x/v2/", "https://h/x/v2")])
def test_the_path_of_the_interface_may_be_left_out(url, expected):
    assert api_url(url) == expected


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(BackendError, match="is no URL; it looks like"):
        ServerBackend(url, "m")
