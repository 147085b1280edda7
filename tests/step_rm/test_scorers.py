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
from classify_server import ClassifyServer, PoolingServer, save_models
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import byte_tokenizer, save_llama
from tiny_step_rm import described, save_bert, save_qwen_prm, scored, scorer_settings
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
from prime_ext.step_rm.scorers.build import build_scorer, check_model, check_server, read_format
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores, calibrate
from prime_ext.step_rm.scorers.response_reader import ResponseReader, count_positions
from prime_ext.step_rm.scorers.server_scorer import ClassifyScorer

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
    tokens = ResponseReader(str(paths["classifier"]), separator="<pad>").tokens(
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


# One of each endpoint.
endpoint = pytest.mark.parametrize("reading", ["bert", "plain"])


def serve(paths, reading, **options):
    """Return the server of a model, as vLLM would serve it."""
    name, keys = READINGS[reading]
    if keys:
        return PoolingServer(paths[name], keys.get("answer_tokens"), **options)
    return ClassifyServer(paths[name], **options)


def server_settings(paths, reading, **changes):
    name, keys = READINGS[reading]
    reads = {"response_format": {key: keys[key] for key in keys if key != "kind"}} if keys else {}
    values = {"kind": "server", "timeout_seconds": 300.0, "attempts": 3, "concurrency": 16}
    return scorer_settings(**{"model_path": str(paths[name]), **values, **reads, **changes})


def ask(server, paths, reading="bert", chains=CHAINS, times=1, **changes):
    """Return outcomes of a scorer on a running server."""
    with server:
        scorer = build_scorer(server_settings(paths, reading, **changes), server.address)
        return asyncio.run(scored(scorer, chains, times))


@reading
def test_a_server_gives_local_scores_and_is_asked_once(paths, reading, monkeypatch):
    monkeypatch.setattr(ClassifyScorer, "batch_size", 4)
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
    server = serve(paths, reading)
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
    tasks = {payload.get("task") for payload in server.requests}
    if isinstance(server, ClassifyServer):
        assert [len(payload["input"]) for payload in server.requests].count(4) == len(sent) // 4
        assert tasks == {None}
    else:
        # A request for each response that has steps.
        assert len(server.requests) == len(sent) == 5 and tasks == {"token_classify"}


def test_rows_of_separators_alone_are_read_as_those_of_all_tokens(paths):
    server = serve(paths, "chat", separator=0)
    all_close(ask(server, paths, "chat"), scores(settings(paths, "chat")))


@endpoint
def test_equal_responses_at_the_same_time_are_sent_once(paths, reading):
    async def ask_together(scorer):
        try:
            calls = [asyncio.create_task(scorer.score(CHAINS[:1])) for _ in range(4)]
            # Who stops waiting leaves the answer to the others.
            await asyncio.sleep(0)
            calls[0].cancel()
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await scorer.close()

    with serve(paths, reading) as server:
        scorer = build_scorer(server_settings(paths, reading), server.address)
        gone, *others = asyncio.run(ask_together(scorer))
    assert isinstance(gone, asyncio.CancelledError) and len(server.requests) == 1
    for outcomes in others:
        all_close(outcomes, scores(settings(paths, reading), CHAINS[:1]))


@endpoint
@pytest.mark.parametrize(
    "fault, reason",
    [
        (500, "HTTP 500, 3 attempts"),
        ((429, "0.01"), "HTTP 429, 3 attempts"),
        ("hang", "no answer in 0.3 s, 3 attempts"),
        ("cut", "no connection: "),
    ],
)
def test_requests_are_repeated_and_lasting_faults_are_failures(paths, reading, fault, reason):
    # A scorer waits long enough for those that answer.
    seconds = [3.0, 0.3] if fault == "hang" else [300.0, 300.0]
    server = serve(paths, reading, faults=[fault, fault])
    (outcome,) = ask(server, paths, reading, BAD, timeout_seconds=seconds[0])
    assert isinstance(outcome, StepScores)
    server = serve(paths, reading, always=fault)
    outcomes = ask(server, paths, reading, [*BAD, Chain(())], timeout_seconds=seconds[1])
    assert isinstance(outcomes[0], ScoringFailure) and reason in outcomes[0].reason
    # A response without steps needs no server.
    assert outcomes[1] == StepScores(()) and len(server.requests) == 3


@endpoint
def test_failed_requests_fail_only_their_responses_and_are_not_remembered(
    paths, reading, monkeypatch
):
    monkeypatch.setattr(ClassifyScorer, "batch_size", 1)
    for times, first in ((1, ScoringFailure), (2, StepScores)):
        server = serve(paths, reading, faults=[500])
        chains = [*BAD, Chain(("good",))]
        outcomes = ask(server, paths, reading, chains, times, concurrency=1, attempts=1)
        assert [type(outcome) for outcome in outcomes] == [first, StepScores]
        # What was answered is not requested again.
        assert len(server.requests) == 1 + times


def test_answers_before_an_error_are_remembered(paths, monkeypatch):
    monkeypatch.setattr(ClassifyScorer, "batch_size", 1)
    nonsense = lambda answer: {"text": "hello"}  # noqa: E731
    with serve(paths, "bert", faults=[None, nonsense]) as server:
        scorer = build_scorer(server_settings(paths, "bert", concurrency=1), server.address)

        async def ask_twice():
            with pytest.raises(StepRMError):
                await scorer.score(CHAINS[:1])
            return await scored(scorer, CHAINS[:1])

        all_close(asyncio.run(ask_twice()), scores(settings(paths, "bert"), CHAINS[:1]))
    assert len(server.requests) == 3 + 1


def _each(**values):
    return lambda answer: {**answer, "data": [{**item, **values} for item in answer["data"]]}


def _rows(change):
    """Return a fault that changes the rows of tokens of each result."""
    return lambda answer: {
        **answer,
        "data": [{**item, "data": change(item["data"])} for item in answer["data"]],
    }


def _dumps(change):
    """Return a fault whose JSON may have NaN, as Python's has."""
    return lambda answer: web.Response(
        text=json.dumps(change(answer)), content_type="application/json"
    )


NOT_JSON = lambda answer: web.Response(text="<html>")  # noqa: E731
# By what is said: the fault of the server.
REFUSED = {
    "bert": {
        "HTTP 400: .*told": 400,
        "not finite": _dumps(_each(probs=[float("nan")] * 3)),
        "gave 2 scores": _each(probs=[0.5, 0.5], num_classes=2),
        "has no label map": _each(label="LABEL_0", probs=[0.5, 0.3, 0.2]),
        "another model": _each(label="1", probs=[0.5, 0.3, 0.2]),
        "not probabilities": _each(probs=[4.0, -3.0, 0.5]),
        "is not a /classify server": lambda answer: {"text": "hello"},
        "does not answer with JSON": NOT_JSON,
        "gave 0 results for 2 inputs": lambda answer: {**answer, "data": []},
        "no /classify, or no such model.*HTTP 501": 501,
    },
    "plain": {
        "HTTP 400: .*told": 400,
        "gave 3 scores for a step, the model has 2 classes":
            _rows(lambda rows: [[0.2, 0.3, 0.5]] * len(rows)),
        "gave no list of probabilities for each token": _rows(lambda rows: rows[-1]),
        "gave probabilities at 1 of 5 tokens, which have 2 separators":
            _rows(lambda rows: rows[-1:]),
        "not probabilities": _rows(lambda rows: [[4.0, -3.0]] * len(rows)),
        "not finite numbers": _dumps(_rows(lambda rows: [[float("nan"), 1.0]] * len(rows))),
        "are not finite numbers: ..None": _rows(lambda rows: [[None, 1.0]] * len(rows)),
        "is not a /pooling server": lambda answer: {"text": "hello"},
        "does not answer with JSON": NOT_JSON,
        "gave 2 results for 1 inputs": lambda answer: {**answer, "data": answer["data"] * 2},
        "no /pooling, or no such model.*HTTP 404": 404,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "message"), [(name, message) for name in REFUSED for message in REFUSED[name]]
)
def test_unusable_servers_are_one_error_before_training(paths, reading, message):
    with serve(paths, reading, always=REFUSED[reading][message]) as server:
        attempts = 1 if "501" in message else 3
        asked = server_settings(paths, reading, address=server.address, attempts=attempts)
        with pytest.raises(SettingsError, match=f"step_scorer.address: .*{message}") as error:
            check_server(asked)
        assert "\n" not in str(error.value) and len(server.requests) == 1
        with pytest.raises(StepRMError):
            asyncio.run(scored(build_scorer(asked), CHAINS[:1]))
        server.always = None
        check_server(asked)


@endpoint
def test_no_server_is_one_line_before_training(paths, reading):
    asked = server_settings(paths, reading, address="127.0.0.1:9")
    line = "^step_scorer.address: http://127.0.0.1:9/[a-z]+: no connection: .*, 3 attempts$"
    with pytest.raises(SettingsError, match=line):
        check_server(asked)


@pytest.mark.parametrize(
    ("name", "reads", "message"),
    [
        ("causal", {}, "classifies no tokens"),
        ("classifier", {"separator": 1}, "step_scorer.response_format.separator"),
        ("classifier", {"column": "x"}, "unknown key step_scorer.response_format.column"),
        ("causal", {"answer_tokens": ["++", "-"]}, "must be one token each"),
        (".", {}, "step_scorer.model_path: "),
    ],
)
def test_a_response_format_that_does_not_fit_is_one_line(paths, name, reads, message):
    path = str(paths.get(name, "nowhere/at/all"))
    with pytest.raises(SettingsError, match=f"^[^\n]*{message}[^\n]*$"):
        check_model(scorer_settings(kind="server", model_path=path, response_format=reads))
    both = {"response_format": {}, "pair_format": {"layout": "text"}}
    with pytest.raises(SettingsError, match="pair_format and step_scorer.response_format: a model"):
        scorer_settings(kind="server", model_path=path, **both)


# Of a model that vLLM serves: how it is saved, the format of responses, and options of the server.
CONVERTED = (
    "--convert classify --pooler-config.task token_classify --hf-overrides"
    ' {"classifier_from_token":["+","-"],"method":"no_post_processing"}'
).split()
VLLM = {
    "steps": (lambda path: described(save_bert(path, size=64), temperature=1.7), {}, []),
    "plain": (lambda path: save_llama(path, 3, classes=2, size=64), {"layout": "plain"}, []),
    "separators": (
        save_qwen_prm,
        {"layout": "chat", "separator": "<pad>"},
        ["--pooler-config.step_tag_id", "0"],
    ),
    "answers": (
        lambda path: save_llama(path, 4, size=64),
        {"separator": " #", "answer_tokens": ["+", "-"]},
        CONVERTED,
    ),
}


@pytest.mark.vllm
@pytest.mark.parametrize("form", VLLM)
def test_a_vllm_server_gives_the_scores_of_a_local_model(tmp_path, form):
    save, keys, words = VLLM[form]
    path = save(tmp_path / "model")
    # Also with special tokens in the steps, and steps that are too long.
    chains = [
        Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good.<pad>" for k in range(1, n)), "2+2?")
        for n in (1, 2, 5, 9)
    ]
    chains.append(Chain(("we add 3 " * 60, "so 7."), "\u6f22?"))
    with vllm_server(path, tmp_path, "--runner", "pooling", *words) as address:
        values = {"kind": "server", "address": address, "timeout_seconds": 60.0, "attempts": 3}
        asked = scorer_settings(
            model_path=str(path), trust_remote_code=True, response_format=keys or None, **values
        )
        check_server(asked)
        outcomes = scores(asked, chains)
    kind = {"kind": "token_classification", **keys} if keys else {}
    local = scorer_settings(model_path=str(path), device="cpu", trust_remote_code=True, **kind)
    all_close(outcomes, scores(local, chains))


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
