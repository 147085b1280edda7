# SPDX-License-Identifier: Apache-2.0
"""Scores of steps, from a model in this process and from a server, and everything that is not a score."""

import asyncio
import itertools
import json
import math
import shutil

import pytest
import torch
from aiohttp import web
from classify_server import ClassifyServer
from hypothesis import given
from hypothesis import strategies as st
from tiny_step_rm import described, save_bert, save_llama, scored, scorer_settings
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, RobertaConfig, T5Config

from prime_ext.config.checks import SettingsError
from prime_ext.step_rm.description import FILE, PairFormat, read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.build import build_scorer, check_model
from prime_ext.step_rm.scorers.local import LocalScorer, length_buckets, usable_positions
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores, calibrated

CHAINS = [
    Chain(("Step 1: we add 3.", "Step 2: so 7.", "Step 3: the answer is 7.")),
    Chain(()),
    Chain(("bad",)),
    Chain(("Step 1: we add 3.", "Step 2: so 7.")),
    Chain(tuple(f"Step {k}: we add {k}." for k in range(1, 30))),
]
BAD = CHAINS[2:3]


@pytest.fixture(scope="module", params=["bert", "llama"])
def model_path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    return described({"bert": save_bert, "llama": save_llama}[request.param](path))


@pytest.fixture(scope="module")
def bert_path(tmp_path_factory):
    return described(save_bert(tmp_path_factory.mktemp("bert")))


def loaded(path):
    return AutoModelForSequenceClassification.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


def one_at_a_time(path, chain):
    """The obvious way: the tokenizer's own pair, one forward pass per step."""
    model, tokenizer = loaded(path)
    found = []
    for at, step in enumerate(chain.steps):
        pair = (chain.steps[at - 1], step) if at else (step,)
        words = (" </s><s>".join(pair),) if path.name.startswith("llama") else pair
        with torch.no_grad():
            found.append(model(input_ids=tokenizer(*words, return_tensors="pt")["input_ids"]).logits[0].softmax(-1))
    return [tuple(row.tolist()) for row in found]


def all_close(outcomes, expected):
    for one, other in zip(outcomes, expected, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.probabilities), torch.tensor(other.probabilities), atol=2e-5, rtol=0
        )
        assert (one.contexts_cut, one.steps_cut) == (other.contexts_cut, other.steps_cut)


# ---- local -------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_one_step_at_a_time(model_path):
    results = LocalScorer(model_path, device="cpu").score_now(CHAINS)
    all_close(results, [StepScores(tuple(one_at_a_time(model_path, chain))) for chain in CHAINS])
    assert all(result.scores == tuple(row[2] for row in result.probabilities) for result in results)


@pytest.mark.parametrize("batch_tokens, cache_size", [(1, 0), (64, 5), (100_000, 1000)])
def test_results_depend_neither_on_the_batch_nor_on_the_cache_nor_on_the_order(model_path, batch_tokens, cache_size):
    scorer = LocalScorer(model_path, device="cpu", batch_tokens=batch_tokens, cache_size=cache_size)
    expected = LocalScorer(model_path, device="cpu").score_now(CHAINS)
    for _ in range(2):
        all_close(scorer.score_now(CHAINS[::-1]), expected[::-1])
    all_close(asyncio.run(scorer.score(CHAINS)), expected)


def test_a_step_that_was_scored_is_not_computed_again(bert_path):
    scorer, rows = LocalScorer(bert_path, device="cpu"), []
    hook = lambda module, args, kwargs: rows.append(len(kwargs["input_ids"]))  # noqa: E731
    scorer.model.register_forward_pre_hook(hook, with_kwargs=True)
    for chains in ([CHAINS[0], CHAINS[3]], CHAINS[:1]):
        scorer.score_now(chains)
        # The first two steps of both are the same.
        assert sum(rows) == 3


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
def test_batches_hold_every_input_once_and_no_more_tokens_than_allowed(lengths, limit):
    inputs = [(at,) * length for at, length in enumerate(lengths)]
    batches = list(length_buckets(inputs, limit))
    assert sorted(itertools.chain(*batches)) == sorted(inputs)
    assert all(len(batch) == 1 or len(batch) * max(map(len, batch)) <= limit for batch in batches)


def test_over_long_steps_are_counted(tmp_path):
    path = described(save_bert(tmp_path / "m"), pair_format=PairFormat(max_length=16))
    long, short = "we add 3 " * 10, "so 7."
    (result,) = LocalScorer(path, device="cpu").score_now([Chain((short, short, long, short))])
    # The third step is too long itself, which leaves nothing of the second; the fourth sees a part of the third.
    assert (result.contexts_cut, result.steps_cut) == (2, 1) and len(result.scores) == 4


def test_classes_in_another_order_are_sorted_by_their_names_and_the_temperature_divides_the_logits(tmp_path):
    labels = {0: "positive", 1: "negative", 2: "neutral"}
    path = described(save_bert(tmp_path / "m", labels=labels), temperature=2.5, order=(1, -1, 0))
    model, tokenizer = loaded(path)
    with torch.no_grad():
        right, wrong, neutral = (model(**tokenizer("bad", return_tensors="pt")).logits[0] / 2.5).softmax(-1).tolist()
    all_close(LocalScorer(path, device="cpu").score_now(BAD), [StepScores(((wrong, neutral, right),))])


@given(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.floats(0.05, 20))
def test_a_temperature_on_probabilities_is_one_on_logits(logits, temperature):
    logits_C = torch.tensor(logits, dtype=torch.float64)
    expected = (logits_C / temperature).softmax(-1)
    found = calibrated(logits_C.softmax(-1).tolist(), (-1, 0, 1), temperature, "x")
    assert found == pytest.approx(tuple(expected.tolist()), abs=1e-9)


# ---- models that cannot work -------------------------------------------------------------------------------------


def labelled(path, *names):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "id2label": dict(enumerate(names))}))


def with_more_tokens(path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(path)


BROKEN = {
    "no label map": lambda path: labelled(path, "LABEL_0", "LABEL_1", "LABEL_2"),
    "has 2 labels": lambda path: labelled(path, "0", "1"),
    "which are not -1, 0 and 1": lambda path: labelled(path, "entailment", "neutral", "contradiction"),
    f"has no {FILE}": lambda path: (path / FILE).unlink(),
    "is not JSON": lambda path: (path / FILE).write_text("{"),
    "is broken": lambda path: (path / FILE).write_text('{"temperature": 1}'),
    "temperature=nan": lambda path: (path / FILE).write_text((path / FILE).read_text().replace(": 1.0", ": NaN")),
    "has the labels": lambda path: described(path, order=(1, 0, -1)),
    "takes 128 tokens": lambda path: described(path, pair_format=PairFormat(max_length=4000)),
    "no model folder": lambda path: (path / "config.json").unlink(),
    "the tokenizer has": with_more_tokens,
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_model_that_cannot_work_is_refused_in_one_line(bert_path, tmp_path, message):
    path = shutil.copytree(bert_path, tmp_path / "m")
    BROKEN[message](path)
    with pytest.raises(StepRMError, match=message) as error:
        LocalScorer(path, device="cpu")
    assert "\n" not in str(error.value)


def test_a_format_that_contradicts_the_models_own_is_refused(bert_path):
    assert read_description(bert_path, PairFormat(max_length=64)) == read_description(bert_path)
    with pytest.raises(StepRMError, match="max_length=64, not 32"):
        read_description(bert_path, PairFormat(max_length=32))


def test_scores_that_are_not_finite_are_an_error(bert_path):
    scorer = LocalScorer(bert_path, device="cpu")
    with torch.no_grad():
        scorer.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(StepRMError, match="not finite"):
        asyncio.run(scorer.score(BAD))


def test_positions_of_roberta_begin_behind_the_padding_token():
    assert usable_positions(RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert usable_positions(BertConfig(max_position_embeddings=512)) == 512
    assert usable_positions(T5Config()) == math.inf


# ---- servers -----------------------------------------------------------------------------------------------------


def ask(server, path, chains, times=1, **changes):
    """Outcomes of a scorer on a running server."""
    values = {"kind": "server", "batch_size": 4, "timeout_seconds": 300, "backoff_seconds": 0.01, "attempts": 3}
    settings = scorer_settings(**{**values, "model_path": str(path), "concurrency": 16, **changes})

    async def run():
        async with server.running() as address:
            return await scored(build_scorer(settings, address), chains, times)

    return asyncio.run(run())


def served(path, **options):
    return ClassifyServer(*loaded(path), **options)


def test_a_server_gives_the_scores_of_the_local_model(model_path):
    all_close(ask(served(model_path), model_path, CHAINS), LocalScorer(model_path, device="cpu").score_now(CHAINS))


def test_steps_go_in_batches_each_once_and_only_so_many_requests_at_a_time(bert_path):
    server = served(bert_path)
    ask(server, bert_path, [*CHAINS, *CHAINS], times=2, concurrency=2, served_model="rm")
    inputs = [tuple(ids) for payload, _ in server.requests for ids in payload["input"]]
    distinct = {item.ids for items in LocalScorer(bert_path, device="cpu").read(CHAINS) for item in items}
    assert sorted(inputs) == sorted(distinct) and server.most_active <= 2
    assert [len(payload["input"]) for payload, _ in server.requests].count(4) == len(distinct) // 4
    assert all(payload["use_activation"] is True and payload["model"] == "rm" for payload, _ in server.requests)


def test_texts_can_be_sent_to_a_server_whose_classes_have_another_order(tmp_path):
    labels = {0: "1", 1: "0", 2: "-1"}
    path = save_bert(tmp_path / "m", labels=labels)
    pair_format = {"layout": "text", "max_length": 64}
    server = served(path)
    outcomes = ask(server, path, CHAINS, inputs="text", model_path=None, labels=[1, 0, -1], pair_format=pair_format)
    assert server.requests[0][0]["input"][1] == "Step 1: we add 3. </s><s>Step 2: so 7."
    local = LocalScorer(path, PairFormat(**pair_format), device="cpu").score_now(CHAINS)
    all_close(outcomes, local)


@pytest.mark.parametrize("fault", [500, 503, 429, "drop", "hang"])
def test_a_request_that_fails_for_a_while_is_made_again(bert_path, fault):
    # Those that do not answer are not waited for.
    timeout = {"timeout_seconds": 3} if fault == "hang" else {}
    outcomes = ask(served(bert_path, faults=[fault, fault]), bert_path, CHAINS[:1], **timeout)
    assert isinstance(outcomes[0], StepScores)


@pytest.mark.parametrize(
    "fault, reason", [(500, "HTTP 500, 3 attempts"), ("hang", "no answer in 0.3 s"), ("drop", "Disconnected")]
)
def test_a_request_that_keeps_failing_is_a_failure_and_not_a_score(bert_path, fault, reason):
    server = served(bert_path, always=fault)
    timeout = {"timeout_seconds": 0.3} if fault == "hang" else {}
    outcomes = ask(server, bert_path, [*BAD, Chain(())], **timeout)
    assert isinstance(outcomes[0], ScoringFailure) and reason in outcomes[0].reason
    # A response without steps needs no server.
    assert outcomes[1] == StepScores(()) and len(server.requests) == 3


def test_only_the_responses_of_a_failed_request_fail_and_it_is_not_remembered(bert_path):
    for times, first in ((1, ScoringFailure), (2, StepScores)):
        options = {"batch_size": 1, "concurrency": 1, "attempts": 1, "times": times}
        outcomes = ask(served(bert_path, faults=[500]), bert_path, [*BAD, Chain(("good",))], **options)
        assert [type(outcome) for outcome in outcomes] == [first, StepScores]


def test_nobody_listening_is_a_failure(bert_path):
    (outcome,) = ask(served(bert_path), bert_path, BAD, address="127.0.0.1:9")
    assert isinstance(outcome, ScoringFailure)


def _each(**values):
    return lambda answer: {**answer, "data": [{**item, **values} for item in answer["data"]]}


REFUSED = {
    "HTTP 400: told to fail": 400,
    "not finite": lambda answer: web.Response(
        text=json.dumps(_each(probs=[float("nan")] * 3)(answer)), content_type="application/json"
    ),
    "gave 2 scores": _each(probs=[0.5, 0.5], num_classes=2),
    "has no label map": _each(label="LABEL_0", probs=[0.5, 0.3, 0.2]),
    "no label map": _each(label=None),
    "another model": _each(label="1", probs=[0.5, 0.3, 0.2]),
    "no probabilities": _each(probs=[4.0, -3.0, 0.5]),
    "no list 'probs'": _each(probs=None),
    "gave 0 results for 1 inputs": lambda answer: {**answer, "data": []},
    "is no /classify server": lambda answer: {"text": "hello"},
    "does not answer with JSON": lambda answer: web.Response(text="<html>"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_server_that_cannot_work_is_one_clear_error_at_once(bert_path, message):
    server = served(bert_path, always=REFUSED[message])
    with pytest.raises(StepRMError, match=message) as error:
        ask(server, bert_path, BAD)
    assert "\n" not in str(error.value) and len(server.requests) == 1


def test_the_key_comes_from_the_environment(bert_path, monkeypatch):
    server = served(bert_path)
    with pytest.raises(StepRMError, match="STEP_RM_KEY"):
        ask(server, bert_path, BAD, api_key_variable="STEP_RM_KEY")
    monkeypatch.setenv("STEP_RM_KEY", "secret")
    ask(server, bert_path, BAD, api_key_variable="STEP_RM_KEY")
    assert server.requests[0][1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "address, url",
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000/classify"),
        ("[fe80::1]:8000", "http://[fe80::1]:8000/classify"),
        ("https://rm.example/v1/", "https://rm.example/v1/classify"),
        ("https://rm.example/classify", "https://rm.example/classify"),
    ],
)
def test_addresses_of_verls_router_and_urls(address, url):
    assert build_scorer(scorer_settings(kind="server", inputs="text"), address).url == url


# ---- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, "step_scorer.model_path"),
        ({"kind": "x"}, "step_scorer.kind='x'"),
        ({"kind": "server", "inputs": "text", "address": "a", "labels": [1, 2, 3]}, "step_scorer.labels="),
        ({"kind": "server", "inputs": "text", "address": "a", "model_path": "m"}, "step_scorer.model_path=m has"),
        ({"model_path": "m", "labels": [-1, 0, 1]}, "step_scorer.labels="),
        ({"model_path": "m", "address": "a"}, "step_scorer.address=a has no effect with step_scorer.kind=local, only"),
        ({"model_path": "m", "attempts": 0}, "step_scorer.attempts=0"),
        ({"model_path": "m", "unknown": 1}, "unknown key step_scorer.unknown"),
        ({"model_path": "nowhere"}, "step_scorer.model_path: nowhere"),
        ({"model_path": "nowhere", "pair_format": {"x": 1}}, "unknown key step_scorer.pair_format.x"),
    ],
)
def test_settings_that_cannot_work_are_one_line_before_anything_is_loaded(changes, message):
    with pytest.raises(SettingsError, match=message):
        check_model(scorer_settings(**changes))


def test_a_server_must_be_named_where_verl_has_none(bert_path):
    with pytest.raises(StepRMError, match="step_scorer.address is missing"):
        build_scorer(scorer_settings(kind="server", model_path=str(bert_path)))
