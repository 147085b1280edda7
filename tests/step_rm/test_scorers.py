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
from cachetools import LRUCache
from classify_server import ClassifyServer, save_models
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import byte_tokenizer
from tiny_step_rm import described, save_bert, scored, scorer_settings
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    RobertaConfig,
    T5Config,
)

from eval.prm_data import Response
from eval.prm_scorers import ClassifierScorer
from prime_ext.config.checks import SettingsError
from prime_ext.step_rm.description import FILE, PairFormat, read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers import server as server_module
from prime_ext.step_rm.scorers.build import build_scorer, check_model, check_server
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier, length_buckets, usable_positions
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores, calibrated
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.text_tokens import TextError, join_steps

CHAINS = [
    Chain(("Step 1: we add 3 é.", "Step 2: so 7 \U0001f642.\n", "Step 3: the answer is 7."), "2+2?"),
    Chain((), "nothing"),
    Chain(("bad",), "\u6f22\u5b57?"),
    Chain(("Step 1: we add 3 é.", "Step 2: so 7 \U0001f642.\n"), "2+2?"),
    Chain(tuple(f"Step {k}: we add {k}." for k in range(1, 20)), ""),
]
BAD = CHAINS[2:3]
# The steps spell out special tokens.
SPELT = Chain(("a <pad> longer first step", " <eos>b[SEP]", "x</s>"), "why")
ANSWERS = {"architecture": "token_classification", "answer_tokens": ["+", "-"]}
# The model, and the keys that say how it reads.
READINGS = {
    "bert": ("bert", {}),
    "llama": ("llama", {}),
    "plain": ("classifier", {"architecture": "token_classification"}),
    "chat": ("classifier", {"architecture": "token_classification", "layout": "chat", "separator": "<pad>"}),
    "tag": ("causal", {**ANSWERS, "separator": " #"}),
    "turns": ("causal", {**ANSWERS, "layout": "turns"}),
}
reading = pytest.mark.parametrize("reading", READINGS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def bert_path(paths):
    return paths["bert"]


def settings(paths, reading, **changes):
    name, keys = READINGS[reading]
    return scorer_settings(**{"model_path": str(paths[name]), **keys, **changes})


def scores(asked, chains=CHAINS, times=1):
    """Outcomes of the scorer of these settings, in this process."""
    return asyncio.run(scored(build_scorer(asked), chains, times))


def all_close(outcomes, expected):
    for one, other in zip(outcomes, expected, strict=True):
        found, wanted = (torch.tensor(each.probabilities) for each in (one, other))
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
        assert (one.contexts_cut, one.steps_cut) == (other.contexts_cut, other.steps_cut)


# ---- a model in this process -------------------------------------------------------------------------------------


def loaded(path):
    return AutoModelForSequenceClassification.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


def pair_by_pair(path, chain):
    """The tokenizer's own pair, one forward pass per step."""
    model, tokenizer = loaded(path)
    for at, step in enumerate(chain.steps):
        pair = (chain.steps[at - 1].strip(), step.strip()) if at else (step.strip(),)
        words = (" </s><s>".join(pair),) if path.name == "llama" else pair
        with torch.no_grad():
            logits_C = model(input_ids=tokenizer(*words, return_tensors="pt")["input_ids"]).logits[0]
        yield tuple(logits_C.softmax(-1).tolist())


def preference(path, text):
    """The probability of + against - behind a text in which \ue001 stands for a < of a special token, as letters."""
    tokenizer = byte_tokenizer()
    first, *others = text.split("\ue001")
    ids = tokenizer(first)["input_ids"]
    for other in others:
        ids += [*tokenizer("<")["input_ids"], *tokenizer(other)["input_ids"]]
    right, wrong = (tokenizer(token)["input_ids"][0] for token in "+-")
    with torch.no_grad():
        logits_V = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([ids])).logits[0, -1]
    return float((logits_V[right] - logits_V[wrong]).sigmoid())


def tag_by_tag(path, chain):
    for at in range(1, len(chain.steps) + 1):
        yield preference(path, chain.question + "".join(f"{step} #" for step in chain.steps[:at]))


def turn_by_turn(path, chain):
    tokenizer, chat = AutoTokenizer.from_pretrained(path), []
    for number, step in enumerate(chain.steps):
        spelled = step.replace("<", "\ue001").strip()
        chat.append({"role": "user", "content": spelled if number else f"{chain.question} {spelled}"})
        yield preference(path, tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        chat.append({"role": "assistant", "content": "+"})


def by_eval(path, chain, **keys):
    """As eval.prm scores the response alone."""
    alone = ClassifierScorer(TokenClassifier(str(path), **keys))
    (found,) = alone.score([alone.tokens(Response(chain.question, *join_steps(chain.steps), chain.steps))])
    return found["probability"]


OBVIOUS = {
    "bert": pair_by_pair,
    "llama": pair_by_pair,
    "plain": by_eval,
    "chat": lambda path, chain: by_eval(path, chain, layout="chat", separator="<pad>"),
    "tag": tag_by_tag,
    "turns": turn_by_turn,
}


@reading
def test_scores_are_those_of_the_obvious_way(paths, reading):
    chains = [*CHAINS[:4], *([SPELT] if reading in ("chat", "turns") else [])]
    path = paths[READINGS[reading][0]]
    for chain, outcome in zip(chains, scores(settings(paths, reading), chains), strict=True):
        expected = [] if not chain.steps else list(OBVIOUS[reading](path, chain))
        if reading not in ("bert", "llama"):
            # What is not right is wrong, and nothing is neutral.
            expected = [(1 - right, 0.0, right) for right in expected]
        all_close([outcome], [StepScores(tuple(expected))])
        assert outcome.scores == tuple(row[2] for row in outcome.probabilities)


@reading
@pytest.mark.parametrize("batch_tokens, cache_size", [(1, 1), (64, 5)])
def test_results_depend_neither_on_the_batch_nor_on_the_cache_nor_on_the_order(
    paths, reading, batch_tokens, cache_size
):
    expected, scorer = scores(settings(paths, reading)), build_scorer(settings(paths, reading))
    scorer.batch_tokens, scorer._cache = batch_tokens, LRUCache(cache_size)
    all_close(scorer.score_now(CHAINS[::-1]), expected[::-1])
    all_close(scorer.score_now([*CHAINS, *CHAINS]), [*expected, *expected])


def test_a_step_that_was_scored_is_not_computed_again(bert_path):
    model, rows = StepClassifier(bert_path, device="cpu"), []
    scorer = LocalScorer(model)
    hook = lambda module, args, kwargs: rows.append(len(kwargs["input_ids"]))  # noqa: E731
    model.model.register_forward_pre_hook(hook, with_kwargs=True)
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
    (result,) = LocalScorer(StepClassifier(path, device="cpu")).score_now([Chain((short, short, long, short))])
    # The third step is too long itself, which leaves nothing of the second; the fourth sees a part of the third.
    assert (result.contexts_cut, result.steps_cut) == (2, 1) and len(result.scores) == 4


def test_classes_in_another_order_are_sorted_by_their_names_and_the_temperature_divides_the_logits(tmp_path):
    labels = {0: "positive", 1: "negative", 2: "neutral"}
    path = described(save_bert(tmp_path / "m", labels=labels), temperature=2.5, order=(1, -1, 0))
    model, tokenizer = loaded(path)
    with torch.no_grad():
        right, wrong, neutral = (model(**tokenizer("bad", return_tensors="pt")).logits[0] / 2.5).softmax(-1).tolist()
    all_close(LocalScorer(StepClassifier(path, device="cpu")).score_now(BAD), [StepScores(((wrong, neutral, right),))])


@given(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.floats(0.05, 20))
def test_a_temperature_on_probabilities_is_one_on_logits(logits, temperature):
    logits_C = torch.tensor(logits, dtype=torch.float64)
    expected = (logits_C / temperature).softmax(-1)
    found = calibrated(logits_C.softmax(-1).tolist(), (-1, 0, 1), temperature, "x")
    assert found == pytest.approx(tuple(expected.tolist()), abs=1e-9)


def test_a_chat_as_the_prompt_ends_with_the_user(paths):
    reader = TokenClassifier(str(paths["causal"]), layout="turns", answer_tokens=["+", "-"])
    chat = [{"role": "system", "content": "mind"}, {"role": "user", "content": "2+2?"}]
    decoded = byte_tokenizer().decode(reader.tokens(chat, ["two é\n", "plus two"]).ids)
    assert decoded == "system:mind<eos>user:2+2? two é<eos>assistant:+<eos>user:plus two<eos>assistant:+"
    with pytest.raises(TextError, match="ends with a turn of assistant"):
        reader.tokens([*chat, {"role": "assistant", "content": "4"}], ["x"])


def test_a_step_cannot_forge_a_separator(paths):
    tokens = TokenClassifier(str(paths["classifier"]), separator="<pad>").tokens("q", ["a<pad>b", "c"])
    assert tokens.ids.count(0) == 2 and [tokens.ids[end] for end in tokens.ends] == [0, 0]


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
        StepClassifier(path, device="cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "changes", "said"),
    [
        ("causal", {}, "classifies no tokens"),
        ("causal", {"answer_tokens": ["++", "-"]}, "must be one token each"),
        ("classifier", {"dtype": "float7"}, "float7"),
        ("bare", {"layout": "turns", "answer_tokens": ["+", "-"]}, "needs answer tokens, such as . and -, and a chat"),
    ],
)
def test_a_model_that_is_no_published_prm_is_one_line(paths, path, changes, said):
    with pytest.raises(StepRMError, match=said) as error:
        build_scorer(settings(paths, "plain", **{"model_path": str(paths[path]), **changes}))
    assert "\n" not in str(error.value)


def test_a_format_that_contradicts_the_models_own_is_refused(bert_path):
    assert read_description(bert_path, PairFormat(max_length=64)) == read_description(bert_path)
    with pytest.raises(StepRMError, match="max_length=64.* not .*max_length=32"):
        read_description(bert_path, PairFormat(max_length=32))


@reading
def test_scores_that_are_not_finite_are_an_error(paths, reading):
    scorer = build_scorer(settings(paths, reading))
    with torch.no_grad():
        next(iter(scorer.model.model.parameters())).fill_(float("nan"))
    with pytest.raises(StepRMError, match="not finite"):
        asyncio.run(scorer.score(BAD))


def test_positions_of_roberta_begin_behind_the_padding_token():
    assert usable_positions(RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert usable_positions(BertConfig(max_position_embeddings=512)) == 512
    assert usable_positions(T5Config()) == math.inf


# ---- servers -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The client waits little between attempts."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def ask(server, paths, reading="bert", chains=CHAINS, times=1, **changes):
    """Outcomes of a scorer on a running server."""
    values = {"kind": "server", "timeout_seconds": 300.0, "attempts": 3, "concurrency": 16}

    async def run():
        async with server.running() as address:
            return await scored(build_scorer(settings(paths, reading, **{**values, **changes}), address), chains, times)

    return asyncio.run(run())


@pytest.mark.parametrize("reading", ["bert", "llama"])
def test_a_server_gives_the_scores_of_the_local_model_and_is_asked_once(paths, reading, monkeypatch):
    monkeypatch.setattr(server_module, "BATCH_SIZE", 4)
    server, chains = ClassifyServer(paths[reading]), [*CHAINS, SPELT, *CHAINS]
    all_close(ask(server, paths, reading, chains, times=2, concurrency=2), scores(settings(paths, reading), chains))
    payloads = [payload for payload, _ in server.requests]
    sent = [tuple(ids) for payload in payloads for ids in payload["input"]]
    read = build_scorer(settings(paths, reading)).model.read(chains)
    assert sorted(sent) == sorted({item.ids for items in read for item in items}) and server.most_active <= 2
    assert all(payload["use_activation"] is True for payload in payloads)
    assert [len(payload["input"]) for payload in payloads].count(4) == len(sent) // 4


@pytest.mark.parametrize("fault", [500, 429, "drop", "hang"])
def test_a_request_that_fails_for_a_while_is_made_again(paths, fault):
    # Those that do not answer are not waited for.
    timeout = {"timeout_seconds": 3.0} if fault == "hang" else {}
    outcomes = ask(ClassifyServer(paths["bert"], faults=[fault, fault]), paths, chains=CHAINS[:1], **timeout)
    assert isinstance(outcomes[0], StepScores)


@pytest.mark.parametrize(
    "fault, reason", [(500, "HTTP 500, 3 attempts"), ("hang", "no answer in 0.3 s"), ("drop", "no connection: ")]
)
def test_a_request_that_keeps_failing_is_a_failure_and_not_a_score(paths, fault, reason):
    server = ClassifyServer(paths["bert"], always=fault)
    timeout = {"timeout_seconds": 0.3} if fault == "hang" else {}
    outcomes = ask(server, paths, chains=[*BAD, Chain(())], **timeout)
    assert isinstance(outcomes[0], ScoringFailure) and reason in outcomes[0].reason
    # A response without steps needs no server.
    assert outcomes[1] == StepScores(()) and len(server.requests) == 3


def test_only_the_responses_of_a_failed_request_fail_and_it_is_not_remembered(paths, monkeypatch):
    monkeypatch.setattr(server_module, "BATCH_SIZE", 1)
    for times, first in ((1, ScoringFailure), (2, StepScores)):
        server, chains = ClassifyServer(paths["bert"], faults=[500]), [*BAD, Chain(("good",))]
        outcomes = ask(server, paths, "bert", chains, times, concurrency=1, attempts=1)
        assert [type(outcome) for outcome in outcomes] == [first, StepScores]


def test_a_response_that_is_too_long_is_a_failure(paths):
    long, short = scores(settings(paths, "plain"), [Chain(("y" * 1100,), "q"), CHAINS[0]])
    assert isinstance(long, ScoringFailure) and "1102 tokens" in long.reason and "takes 1024" in long.reason
    assert isinstance(short, StepScores)


def _each(**values):
    return lambda answer: {**answer, "data": [{**item, **values} for item in answer["data"]]}


# By what is said: the fault of the server.
REFUSED = {
    "HTTP 400: told to fail": 400,
    "HTTP 404": 404,
    "not finite": lambda answer: web.Response(
        text=json.dumps(_each(probs=[float("nan")] * 3)(answer)), content_type="application/json"
    ),
    "gave 2 scores": _each(probs=[0.5, 0.5], num_classes=2),
    "has no label map": _each(label="LABEL_0", probs=[0.5, 0.3, 0.2]),
    "no label map": _each(label=None),
    "another model": _each(label="1", probs=[0.5, 0.3, 0.2]),
    "no probabilities": _each(probs=[4.0, -3.0, 0.5]),
    "no list 'probs'": _each(probs=None),
    "gave 0 results for [12] inputs": lambda answer: {**answer, "data": []},
    "is no /classify server": lambda answer: {"text": "hello"},
    "does not answer with JSON": lambda answer: web.Response(text="<html>"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_server_that_cannot_work_is_one_clear_error_at_once_and_before_training(paths, message):
    async def work():
        server = ClassifyServer(paths["bert"], always=REFUSED[message])
        async with server.running() as address:
            asked = settings(paths, "bert", kind="server", address=address, attempts=3)
            with pytest.raises(SettingsError, match=f"step_scorer.address: .*{message}") as error:
                await asyncio.to_thread(check_server, asked)
            assert "\n" not in str(error.value) and len(server.requests) == 1
            with pytest.raises(StepRMError):
                await scored(build_scorer(asked), CHAINS[:1])

    asyncio.run(work())


def test_no_server_is_one_line_before_training(paths):
    with pytest.raises(SettingsError, match="step_scorer.address: .*no connection: "):
        check_server(settings(paths, "bert", kind="server", address="127.0.0.1:9"))
    with ClassifyServer(paths["bert"]).in_thread() as address:
        check_server(settings(paths, "bert", kind="server", address=address))


def test_the_key_comes_from_the_named_variable_only(paths, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
    server = ClassifyServer(paths["bert"])
    with pytest.raises(StepRMError, match="STEP_RM_KEY"):
        ask(server, paths, chains=BAD, api_key_variable="STEP_RM_KEY")
    monkeypatch.setenv("STEP_RM_KEY", "secret")
    ask(server, paths, chains=BAD, api_key_variable="STEP_RM_KEY")
    ask(server, paths, chains=BAD)
    assert [headers["Authorization"] for _, headers in server.requests] == ["Bearer secret", "Bearer none"]


@pytest.mark.parametrize(
    "address, url",
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000/classify"),
        ("[fe80::1]:8000", "http://[fe80::1]:8000/classify"),
        ("https://rm.example/v1/", "https://rm.example/v1/classify"),
        ("https://rm.example/classify", "https://rm.example/classify"),
    ],
)
def test_addresses_of_verls_router_and_urls(paths, address, url):
    assert build_scorer(settings(paths, "bert", kind="server"), address).url == url


# ---- settings ----------------------------------------------------------------------------------------------------

BY_RESPONSE = {"architecture": "token_classification", "model_path": "m"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, "step_scorer.model_path"),
        ({"kind": "x"}, "step_scorer.kind='x'"),
        ({"model_path": "m", "attempts": 0}, "step_scorer.attempts=0"),
        ({"model_path": "m", "unknown": 1}, "unknown key step_scorer.unknown"),
        ({"model_path": "nowhere"}, "step_scorer.model_path: nowhere"),
        ({"model_path": "nowhere", "pair_format": {"x": 1}}, "unknown key step_scorer.pair_format.x"),
        ({**BY_RESPONSE, "answer_tokens": ["+"]}, "step_scorer.answer_tokens="),
        ({**BY_RESPONSE, "layout": "x"}, "step_scorer.layout='x'"),
        ({**BY_RESPONSE, "layout": "turns"}, "step_scorer.answer_tokens=None"),
        ({**BY_RESPONSE, "kind": "server"}, "token_classification has no server; set step_scorer.kind=local"),
    ],
)
def test_settings_that_cannot_work_are_one_line_before_anything_is_loaded(changes, message):
    with pytest.raises(SettingsError, match=message):
        check_model(scorer_settings(**changes))


def test_a_server_must_be_named_where_verl_has_none(paths):
    with pytest.raises(StepRMError, match="step_scorer.address is missing"):
        build_scorer(settings(paths, "bert", kind="server"))
