# SPDX-License-Identifier: Apache-2.0
"""Published process reward models as scorers of steps: the probabilities of eval.prm, whatever the batch."""

import asyncio

import pytest
import torch
from tiny_llama import byte_tokenizer, save_llama
from tiny_step_rm import scorer_settings
from transformers import AutoModelForCausalLM

from eval.prm_data import Response
from eval.prm_scorers import ClassifierScorer
from prime_ext.config.checks import SettingsError
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.build import build_scorer, check_model
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.text_tokens import join_steps

CHAINS = [
    Chain(("two é", "plus 🙂 two", "four"), "2+2?"),
    Chain(("x",), "漢字?"),
    Chain((), "nothing"),
    Chain(("a longer first step", "b"), ""),
    Chain(("two é", "plus 🙂 two", "four"), "2+2?"),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    classifier = save_llama(folder / "classifier", 3, classes=2, max_positions=64)
    return {"classifier": str(classifier), "causal": str(save_llama(folder / "causal", 4))}


def settings(path, **changes):
    return scorer_settings(model_path=path, architecture="token_classification", **changes)


def scores(scorer, chains):
    async def ask():
        try:
            return await scorer.score(chains)
        finally:
            await scorer.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("batch_tokens", [1, 60, None])
@pytest.mark.parametrize("layout", ["plain", "chat"])
def test_scores_are_those_of_eval_prm_in_any_batch(paths, layout, batch_tokens):
    outcomes = scores(build_scorer(settings(paths["classifier"], layout=layout, batch_tokens=batch_tokens)), CHAINS)
    alone = ClassifierScorer(TokenClassifier(paths["classifier"], layout=layout))
    for chain, outcome in zip(CHAINS, outcomes, strict=True):
        item = Response(chain.question, *join_steps(chain.steps), chain.steps)
        (expected,) = alone.score([alone.tokens(item)]) if chain.steps else ({"probability": []},)
        assert outcome.scores == pytest.approx(expected["probability"], abs=1e-5)
        assert all(sum(row) == pytest.approx(1) and row[1] == 0 for row in outcome.probabilities)


def test_a_causal_model_says_right_or_wrong_behind_each_step(paths):
    steps = ("one", "two")
    (outcome,) = scores(
        build_scorer(settings(paths["causal"], separator="#", answer_tokens=["+", "-"])), [Chain(steps, "q")]
    )
    model, tokenizer = AutoModelForCausalLM.from_pretrained(paths["causal"]), byte_tokenizer()
    right, wrong = (tokenizer(token)["input_ids"][0] for token in "+-")
    for number, found in enumerate(outcome.scores, start=1):
        text = "q" + "".join(f"{step}#" for step in steps[:number])
        with torch.no_grad():
            logits_V = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
        assert found == pytest.approx(float((logits_V[right] - logits_V[wrong]).sigmoid()), abs=1e-5)


def test_a_response_that_is_too_long_is_a_failure_and_the_others_are_scored(paths):
    outcomes = scores(build_scorer(settings(paths["classifier"])), [CHAINS[1], Chain(("y" * 80,), "q")])
    assert len(outcomes[0].scores) == 1
    assert isinstance(outcomes[1], ScoringFailure) and "82 tokens" in outcomes[1].reason and "64" in outcomes[1].reason


@pytest.mark.parametrize(
    ("path", "changes", "said"),
    [
        ("causal", {}, "classifies no tokens"),
        ("classifier", {"positive_label": 2}, "class 2 is none of its 2 classes"),
        ("causal", {"answer_tokens": ["++", "-"]}, "must be one token each"),
        ("classifier", {"dtype": "float7"}, "float7"),
    ],
)
def test_a_model_that_is_no_such_prm_is_one_line(paths, path, changes, said):
    with pytest.raises(StepRMError, match=said) as error:
        build_scorer(settings(paths[path], **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "server", "address": "a"}, "step_scorer.architecture=token_classification works with"),
        ({"pair_format": {"layout": "text"}}, "step_scorer.pair_format is of"),
        ({"answer_tokens": ["+"]}, "step_scorer.answer_tokens="),
        ({"layout": "x"}, "step_scorer.layout='x'"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, said):
    with pytest.raises(SettingsError, match=said):
        check_model(settings("m", **changes))
