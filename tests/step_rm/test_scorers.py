# SPDX-License-Identifier: Apache-2.0
"""Scores of steps from a model in this process and from a server, and failures to score."""

import asyncio
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
from vllm_server import vllm_server

from prime_ext.config.checks import SettingsError
from prime_ext.step_rm.description import FILE, PairFormat
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers import server_scorer as server_module
from prime_ext.step_rm.scorers.build import build_scorer, check_server, read_format
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier, count_positions
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores, calibrate
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier

CHAINS = [
    Chain(("Step 1: we add 3 é.", "Step 2: so 7 \U0001f642.\n", "Step 3: the answer is 7."),
     "2+2?"),
    Chain((), "nothing"),
    Chain(("bad",), "\u6f22\u5b57?"),
    Chain(("Step 1: we add 3 é.", "Step 2: so 7 \U0001f642.\n"), "2+2?"),
    Chain(tuple(f"Step {k}: we add {k}." for k in range(1, 20)), ""),
]  # fmt: skip
BAD = CHAINS[2:3]
# The steps spell out special tokens.
SPELT = Chain(("a <pad> longer first step", " <eos>b[SEP]", "x</s>"), "why")
ANSWERS = {"kind": "token_classification", "answer_tokens": ["+", "-"]}
# The model, and the keys that say how it reads.
READINGS = {
    "bert": ("bert", {}),
    "llama": ("llama", {}),
    "plain": ("classifier", {"kind": "token_classification"}),
    "chat": ("classifier",
     {"kind": "token_classification", "layout": "chat", "separator": "<pad>"}),
    "tag": ("causal", {**ANSWERS, "separator": " #"}),
}  # fmt: skip
reading = pytest.mark.parametrize("reading", READINGS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


def settings(paths, reading, **changes):
    name, keys = READINGS[reading]
    return scorer_settings(**{"model_path": str(paths[name]), **keys, **changes})


def scores(asked, chains=CHAINS, times=1):
    """Return outcomes of the scorer of these settings, in this process."""
    return asyncio.run(scored(build_scorer(asked), chains, times))


def all_close(outcomes, expected):
    for one, other in zip(outcomes, expected, strict=True):
        actual, wanted = (torch.tensor(each.scores) for each in (one, other))
        torch.testing.assert_close(actual, wanted, atol=2e-5, rtol=0)
        assert (one.contexts_cut, one.steps_cut) == (other.contexts_cut, other.steps_cut)


def loaded(path):
    return AutoModelForSequenceClassification.from_pretrained(
        path
    ).eval(), AutoTokenizer.from_pretrained(path)


def pair_by_pair(path, chain):
    """Yield scores by the tokenizer's own pair, with one forward pass per step."""
    model, tokenizer = loaded(path)
    for at, step in enumerate(chain.steps):
        pair = (chain.steps[at - 1].strip(), step.strip()) if at else (step.strip(),)
        words = (" </s><s>".join(pair),) if path.name == "llama" else pair
        with torch.no_grad():
            logits_C = model(input_ids=tokenizer(*words, return_tensors="pt")["input_ids"]).logits[
                0
            ]
        yield float(logits_C.softmax(-1)[2])


def preference(path, text):
    """Return the probability of + against - after a text."""
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    right, wrong = (tokenizer(token)["input_ids"][0] for token in "+-")
    with torch.no_grad():
        logits_V = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([ids])).logits[0, -1]
    return float((logits_V[right] - logits_V[wrong]).sigmoid())


def tag_by_tag(path, chain):
    for at in range(1, len(chain.steps) + 1):
        yield preference(path, chain.question + "".join(f"{step} #" for step in chain.steps[:at]))


# tests/eval/test_prm.py has the readings of classifiers.
OBVIOUS = {"bert": pair_by_pair, "llama": pair_by_pair, "tag": tag_by_tag}


@pytest.mark.parametrize("reading", OBVIOUS)
def test_scores_are_those_of_the_obvious_way(paths, reading):
    path = paths[READINGS[reading][0]]
    for chain, outcome in zip(
        CHAINS[:4], scores(settings(paths, reading), CHAINS[:4]), strict=True
    ):
        expected = [] if not chain.steps else list(OBVIOUS[reading](path, chain))
        all_close([outcome], [StepScores(tuple(expected))])


@reading
def test_scores_do_not_depend_on_batch_cache_or_order(paths, reading):
    expected = scores(settings(paths, reading))
    scorer = build_scorer(settings(paths, reading))
    scorer.batch_tokens = 64
    scorer._cache = LRUCache(5)
    all_close(scorer.score_now(CHAINS[::-1]), expected[::-1])
    all_close(scorer.score_now([*CHAINS, *CHAINS]), [*expected, *expected])


def test_overlong_steps_are_counted_and_overlong_responses_fail(paths, tmp_path):
    path = described(save_bert(tmp_path / "m"), pair_format=PairFormat(max_length=16))
    step = "we add 3 " * 10
    short = "so 7."
    (result,) = LocalScorer(StepClassifier(path, device="cpu")).score_now(
        [Chain((short, short, step, short))]
    )
    # The third step alone is too long, so it does not see the second; the fourth sees part of it.
    assert (result.contexts_cut, result.steps_cut) == (2, 1) and len(result.scores) == 4
    long, short = scores(settings(paths, "plain"), [Chain(("y" * 1100,), "q"), CHAINS[0]])
    assert (
        "1102 tokens" in long.reason
        and "takes 1024" in long.reason
        and isinstance(short, StepScores)
    )


def test_classes_are_sorted_by_name_and_temperature_divides_logits(
    tmp_path,
):
    labels = {0: "positive", 1: "negative", 2: "neutral"}
    path = described(save_bert(tmp_path / "m", labels=labels), temperature=2.5, order=(1, -1, 0))
    model, tokenizer = loaded(path)
    with torch.no_grad():
        right, _, _ = (
            (model(**tokenizer("bad", return_tensors="pt")).logits[0] / 2.5).softmax(-1).tolist()
        )
    all_close(
        LocalScorer(StepClassifier(path, device="cpu")).score_now(BAD), [StepScores((right,))]
    )


@given(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.floats(0.05, 20))
def test_a_temperature_on_probabilities_is_one_on_logits(logits, temperature):
    logits_C = torch.tensor(logits, dtype=torch.float64)
    expected = (logits_C / temperature).softmax(-1)
    probability = calibrate(logits_C.softmax(-1).tolist(), (-1, 0, 1), temperature, "x")
    assert probability == pytest.approx(float(expected[2]), abs=1e-9)


def test_a_step_cannot_forge_a_separator(paths):
    tokens = TokenClassifier(str(paths["classifier"]), separator="<pad>").tokens(
        "q", ["a<pad>b", "c"]
    )
    assert tokens.ids.count(0) == 2 and [tokens.ids[end] for end in tokens.ends] == [0, 0]


def labeled(path, *names):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "id2label": dict(enumerate(names))}))


def with_more_tokens(path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(path)


BROKEN = {
    "no label map": lambda path: labeled(path, "LABEL_0", "LABEL_1", "LABEL_2"),
    "has 2 labels": lambda path: labeled(path, "0", "1"),
    f"has no {FILE}": lambda path: (path / FILE).unlink(),
    "is not JSON": lambda path: (path / FILE).write_text("{"),
    "temperature must": lambda path: (path / FILE).write_text(
        (path / FILE).read_text().replace(": 1.0", ": NaN")
    ),
    "has the labels": lambda path: described(path, order=(1, 0, -1)),
    "takes 128 tokens": lambda path: described(path, pair_format=PairFormat(max_length=4000)),
    "not a model folder": lambda path: (path / "config.json").unlink(),
    "the tokenizer has": with_more_tokens,
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_model_that_cannot_work_is_refused_in_one_line(paths, tmp_path, message):
    path = shutil.copytree(paths["bert"], tmp_path / "m")
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
    ],
)
def test_a_model_that_is_no_published_prm_is_one_line(paths, path, changes, said):
    with pytest.raises(StepRMError, match=f"^[^\\n]*{said}[^\\n]*$"):
        build_scorer(settings(paths, "plain", **{"model_path": str(paths[path]), **changes}))


@reading
def test_scores_that_are_not_finite_are_an_error(paths, reading):
    scorer = build_scorer(settings(paths, reading))
    with torch.no_grad():
        next(iter(scorer.model.model.parameters())).fill_(float("nan"))
    with pytest.raises(StepRMError, match="not finite"):
        asyncio.run(scorer.score(BAD))


def test_positions_of_roberta_begin_behind_the_padding_token():
    assert count_positions(RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert count_positions(BertConfig(max_position_embeddings=512)) == 512
    assert count_positions(T5Config()) == math.inf


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Make the client wait little between attempts."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def ask(server, paths, reading="bert", chains=CHAINS, times=1, **changes):
    """Return outcomes of a scorer on a running server."""
    values = {"kind": "server", "timeout_seconds": 300.0, "attempts": 3, "concurrency": 16}

    with server:
        scorer = build_scorer(settings(paths, reading, **{**values, **changes}), server.address)
        return asyncio.run(scored(scorer, chains, times))


@pytest.mark.parametrize("reading", ["bert", "llama"])
def test_a_server_gives_local_scores_and_is_asked_once(paths, reading, monkeypatch):
    monkeypatch.setattr(server_module, "BATCH_SIZE", 4)
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
    server = ClassifyServer(paths[reading])
    chains = [*CHAINS, SPELT, *CHAINS]
    all_close(
        ask(server, paths, reading, chains, times=2, concurrency=2),
        scores(settings(paths, reading), chains),
    )
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer none"}
    sent = [tuple(ids) for payload in server.requests for ids in payload["input"]]
    read = build_scorer(settings(paths, reading)).model.read(chains)
    assert (
        sorted(sent) == sorted({item.ids for items in read for item in items})
        and server.most_active <= 2
    )
    assert all(payload["use_activation"] is True for payload in server.requests)
    assert [len(payload["input"]) for payload in server.requests].count(4) == len(sent) // 4


@pytest.mark.parametrize(
    "fault, reason",
    [(500, "HTTP 500, 3 attempts"), ("hang", "no answer in 0.3 s"), ("cut", "no connection: ")],
)
def test_requests_are_repeated_and_lasting_faults_are_failures(paths, fault, reason):
    # A scorer waits long enough for those that answer.
    seconds = [3.0, 0.3] if fault == "hang" else [300.0, 300.0]
    server = ClassifyServer(paths["bert"], faults=[fault, fault])
    assert isinstance(ask(server, paths, chains=BAD, timeout_seconds=seconds[0])[0], StepScores)
    server = ClassifyServer(paths["bert"], always=fault)
    outcomes = ask(server, paths, chains=[*BAD, Chain(())], timeout_seconds=seconds[1])
    assert isinstance(outcomes[0], ScoringFailure) and reason in outcomes[0].reason
    # A response without steps needs no server.
    assert outcomes[1] == StepScores(()) and len(server.requests) == 3


def test_failed_requests_fail_only_their_responses_and_are_not_remembered(paths, monkeypatch):
    monkeypatch.setattr(server_module, "BATCH_SIZE", 1)
    for times, first in ((1, ScoringFailure), (2, StepScores)):
        server = ClassifyServer(paths["bert"], faults=[500])
        chains = [*BAD, Chain(("good",))]
        outcomes = ask(server, paths, "bert", chains, times, concurrency=1, attempts=1)
        assert [type(outcome) for outcome in outcomes] == [first, StepScores]


def _each(**values):
    return lambda answer: {**answer, "data": [{**item, **values} for item in answer["data"]]}


# By what is said: the fault of the server.
REFUSED = {
    "HTTP 400: .*told": 400,
    "not finite": lambda answer: web.Response(
        text=json.dumps(_each(probs=[float("nan")] * 3)(answer)), content_type="application/json"
    ),
    "gave 2 scores": _each(probs=[0.5, 0.5], num_classes=2),
    "has no label map": _each(label="LABEL_0", probs=[0.5, 0.3, 0.2]),
    "another model": _each(label="1", probs=[0.5, 0.3, 0.2]),
    "not probabilities": _each(probs=[4.0, -3.0, 0.5]),
    "is not a /classify server": lambda answer: {"text": "hello"},
    "does not answer with JSON": lambda answer: web.Response(text="<html>"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unusable_servers_are_one_error_before_training(paths, message):
    with ClassifyServer(paths["bert"], always=REFUSED[message]) as server:
        asked = settings(paths, "bert", kind="server", address=server.address, attempts=3)
        with pytest.raises(SettingsError, match=f"step_scorer.address: .*{message}") as error:
            check_server(asked)
        assert "\n" not in str(error.value) and len(server.requests) == 1
        with pytest.raises(StepRMError):
            asyncio.run(scored(build_scorer(asked), CHAINS[:1]))
        server.always = None
        check_server(asked)


@pytest.mark.vllm
def test_a_vllm_server_gives_the_scores_of_a_local_model(tmp_path):
    path = described(save_bert(tmp_path / "model", size=64), temperature=1.7)
    # Also with special tokens in the steps, and steps that are too long.
    chains = [
        Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good." for k in range(1, n)))
        for n in (1, 2, 5, 9)
    ]
    chains.append(Chain(("we add 3 " * 60, "so 7.")))
    with vllm_server(path, tmp_path, "--runner", "pooling") as address:
        values = {"kind": "server", "address": address, "timeout_seconds": 60.0, "attempts": 3}
        asked = scorer_settings(model_path=str(path), **values)
        check_server(asked)
        outcomes = scores(asked, chains)
    all_close(outcomes, scores(scorer_settings(model_path=str(path), device="cpu"), chains))


def test_separators_of_a_shell_are_line_breaks(tmp_path):
    path = str(tmp_path)
    token = scorer_settings(kind="token_classification", model_path=path, separator=r" x\n")
    assert token.separator == " x\n"
    pair_format = {"layout": "text", "separator": r"\n"}
    local = scorer_settings(model_path=path, pair_format=pair_format)
    assert read_format(local).separator == "\n"
    # A description has what the model was trained with.
    described(tmp_path, pair_format=PairFormat(separator=r"\n"))
    assert json.loads((tmp_path / FILE).read_text())["pair_format"]["separator"] == r"\n"
