# SPDX-License-Identifier: Apache-2.0
"""A PRM behind a server: its log-probabilities, what goes wrong, and the comparison with the model itself."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fake_queue import FakeQueue
from scripted_server import Answer, ScriptedServer
from tiny_llama import save_llama
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM
from vllm_server import vllm_server

from prime_ext.config.checks import SettingsError
from prime_ext.config.settings import ServerSettings
from prime_ext.prm.served_prm import PromptScores, ServedPRM, ServerFailed, check_server
from prime_ext.prm.worker import PRM_LOG_PROBS

MANY = [((5, 6), (number, 3)) for number in range(2, 62)]
ROWS = [((5, 6, 7), (8, 9)), ((5,), (10, 11, 12)), ((9, 9), (3,))]


def settings_of(address, **changes):
    values = {"model": None, "concurrency": 2, "attempts": 2, "timeout_seconds": 5.0, "api_key_variable": None}
    return ServerSettings(**{"address": address, **values, "check_rows": 0, "max_difference": 0.01, **changes})


def by_token(prompt, payload):
    """Each token is as likely as its number and its place say."""
    assert payload["max_tokens"] == 1 and payload["prompt_logprobs"] == 0
    return Answer("x", prompt_log_probs=[None, *(-token - 0.1 * at for at, token in enumerate(prompt[1:], start=1))])


def test_log_probabilities_are_those_of_the_responses_in_order():
    with ScriptedServer(by_token, seconds=0.02) as server:
        found = PromptScores(settings_of(server.base_url)).score(ROWS * 3)
    # Equal rows are sent once.
    assert server.most_active == 2 and len(server.requests) == 3
    for (prompt, response), log_prob_T in zip(ROWS * 3, found, strict=True):
        expected = [-token - 0.1 * (len(prompt) + at) for at, token in enumerate(response)]
        assert log_prob_T.tolist() == pytest.approx(expected)


def test_rows_that_are_begun_are_answered_while_others_are_not_there_yet_and_sent_once():
    with ScriptedServer(by_token) as server:
        scores = PromptScores(settings_of(server.base_url))
        scores.begin(ROWS[:2])
        deadline = time.monotonic() + 60
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(server.counts) == sorted((*prompt, *response) for prompt, response in ROWS[:2])
        # What is begun and not needed is forgotten, and the next step asks anew.
        for _ in range(2):
            found, expected = scores.score(ROWS[1:]), PromptScores(settings_of(server.base_url)).score(ROWS[1:])
            assert [values.tolist() for values in found] == [values.tolist() for values in expected]
        assert server.counts[(5, 6, 7, 8, 9)] == 1 and server.counts[(5, 10, 11, 12)] == 4


def test_a_row_that_fails_ahead_ends_the_run_only_where_it_is_needed():
    with ScriptedServer(by_token, faults_of={(5, 6, 7, 8, 9): [500] * 9}) as server:
        scores = PromptScores(settings_of(server.base_url))
        scores.begin(ROWS)
        assert len(scores.score(ROWS[1:])) == 2
        scores.begin(ROWS)
        with pytest.raises(ServerFailed, match="HTTP 500"):
            scores.score(ROWS)


def test_a_request_is_repeated_and_a_server_that_dies_ends_the_run_in_one_line():
    with ScriptedServer(by_token, faults=[503, "cut"]) as server:
        assert len(PromptScores(settings_of(server.base_url, attempts=3)).score(ROWS)) == 3
    with ScriptedServer(by_token, always=500) as server, pytest.raises(ServerFailed, match="^prm.server: .* HTTP 500"):
        PromptScores(settings_of(server.base_url)).score(ROWS)
    with ScriptedServer(by_token, faults_of={(5, 10, 11, 12): ["cut"] * 9}) as server:
        with pytest.raises(ServerFailed, match="^prm.server: .* cannot be reached .2 attempts.") as caught:
            PromptScores(settings_of(server.base_url, concurrency=1)).score([*ROWS, *MANY])
    # The others are not asked in vain, and nothing is left that could ask.
    assert not [thread for thread in threading.enumerate() if thread.name == "prm-server"]
    assert len(server.requests) < 30 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer("x"), "gives no log-probabilities of the prompt .prompt_logprobs., as vLLM's server does"),
        (Answer("x", prompt_log_probs=[None, None]), "gives no log-probability of token 1; does it serve"),
        (Answer("x", prompt_log_probs=[None]), "gives no log-probabilities of the prompt"),
    ],
)
def test_a_server_without_log_probabilities_is_refused_before_anything_starts(answer, said):
    with ScriptedServer(lambda prompt, payload: answer) as server, pytest.raises(SettingsError, match=said):
        check_server(settings_of(server.base_url), 10)


def test_no_server_another_model_and_a_missing_key_are_refused(monkeypatch):
    with ScriptedServer(by_token) as server:
        with pytest.raises(SettingsError, match="prm.server: .* does not serve 'other'; it serves scripted"):
            check_server(settings_of(server.base_url, model="other"), 10)
        check_server(settings_of(server.base_url, model="scripted"), 10)
    with pytest.raises(SettingsError, match="prm.server: .* cannot be reached"):
        check_server(settings_of(server.base_url), 10)
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(SettingsError, match="prm.server: the environment variable NO_KEY"):
        check_server(settings_of("http://127.0.0.1:1", api_key_variable="NO_KEY"), 10)


def test_rows_longer_than_the_servers_context_are_refused_or_left_out():
    with ScriptedServer(by_token, max_model_len=12) as server:
        settings = settings_of(server.base_url)
        check_server(settings, 11)
        assert PromptScores(settings).longest_row == 11
        with pytest.raises(SettingsError, match="its model takes 11 tokens .*, data.max_prompt_length . .* are 12"):
            check_server(settings, 12)


# ---- in a step -----------------------------------------------------------------------------------------------------


def own_log_probs(path, prompt, response):
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        log_prob_NV = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    return [float(log_prob_NV[len(prompt) - 1 + at, token]) for at, token in enumerate(response)]


def scored(monkeypatch, path, settings):
    queue = FakeQueue().install(monkeypatch)
    for number, (prompt, response) in enumerate(ROWS):
        fields = {"prompts": torch.tensor(prompt), "responses": torch.tensor(response)}
        queue.put(f"000000000001_{number}_0", {}, **fields, response_mask=torch.ones(len(response)))
    keys = list(queue.fields["train"])
    prm = ServedPRM.__new__(ServedPRM)
    prm.config = SimpleNamespace(prm=SimpleNamespace(model=SimpleNamespace(path=str(path), trust_remote_code=False)))
    prm.settings = SimpleNamespace(server=settings)
    prm._scores, prm._compared = PromptScores(settings), settings.check_rows == 0
    prm.score(KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys]))
    return [queue.fields["train"][key][PRM_LOG_PROBS].tolist() for key in keys]


def test_the_first_rows_are_compared_with_the_model_itself(monkeypatch, tmp_path):
    path = save_llama(tmp_path / "model")
    whole = {(*prompt, *response): own_log_probs(path, prompt, response) for prompt, response in ROWS}

    def like_it(prompt, payload):
        values = whole[prompt]
        return Answer("x", prompt_log_probs=[None, *[-1.0] * (len(prompt) - 1 - len(values)), *values])

    with ScriptedServer(like_it) as server:
        found = scored(monkeypatch, path, settings_of(server.base_url, check_rows=2))
        for values, expected in zip(found, whole.values(), strict=True):
            assert values == pytest.approx(expected, abs=1e-5)
    with ScriptedServer(by_token) as server:
        settings = settings_of(server.base_url, check_rows=2)
        with pytest.raises(ServerFailed, match="give log-probabilities that differ by .* a token, more than"):
            scored(monkeypatch, path, settings)
        assert scored(monkeypatch, path, replace(settings, check_rows=0))


@pytest.mark.vllm
def test_vllms_own_server_gives_the_models_log_probabilities(monkeypatch, tmp_path):
    path = save_llama(tmp_path / "model", size=64, max_positions=256)
    with vllm_server(path, tmp_path) as address:
        settings = settings_of(f"http://{address}", check_rows=3, max_difference=1e-3, timeout_seconds=60.0)
        check_server(settings, 10)
        found = scored(monkeypatch, path, settings)
    for (prompt, response), values in zip(ROWS, found, strict=True):
        assert values == pytest.approx(own_log_probs(path, prompt, response), abs=1e-3)
