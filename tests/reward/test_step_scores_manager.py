# SPDX-License-Identifier: Apache-2.0
"""The reward manager `naive_with_step_scores`: the verifier's outcome, and beside it the scores of the steps."""

import json

import pytest
from pspo_rows import TOKENIZER, Calculator, composed, numbered, row
from tiny_llama import save_llama

from eval.prm_data import Response
from eval.prm_scorers import ClassifierScorer
from prime_ext.reward.managers import StepScoresRewardManager
from prime_ext.step_rm.scorers.protocol import ScoringFailure
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier, TokenReader
from prime_ext.utils.text_tokens import join_steps

STEPS = ("2*3=6", "6+1=8", "so the answer is 7")
PROMPT = [{"role": "user", "content": "What is 2*3+1?"}]
ROW = {"raw_prompt": PROMPT, "reward_model": {"ground_truth": "7"}, "extra_info": {}}


def judge(data_source, solution_str, ground_truth, extra_info):
    """A verifier that needs the prompt."""
    right = solution_str.split()[-1:] == [ground_truth]
    assert extra_info["raw_prompt"] == PROMPT
    return {
        "score": float(right),
        "acc": float(right),
        "verdict": "correct" if right else "wrong",
        "grader_failure": 0.0,
    }


def manager(*overrides, scorer=None):
    config = composed("variant=step_scorer", "step_scorer.model_path=m", *overrides, name="prime_trainer_cpu")
    return StepScoresRewardManager(config, TOKENIZER, judge, scorer=scorer)


def told(of, text):
    """The reward and what is said beside it."""
    result = of.loop.run_until_complete(of.run_single(row(text, **ROW)))
    return result["reward_score"], result["reward_extra_info"]


def test_the_outcome_is_the_verifiers_and_the_scores_come_beside_it():
    scorer = Calculator()
    reward, info = told(manager(scorer=scorer), numbered(*STEPS))
    ((chain, tokens),) = scorer.asked
    assert chain.steps == ("Step 1: 2*3=6\n", "Step 2: 6+1=8\n", "Step 3: so the answer is 7")
    assert chain.question == "What is 2*3+1?" and tokens == info["n_tokens"] == len(numbered(*STEPS)) + 1
    assert reward == info["acc"] == info["score"] == 1.0 and info["verdict"] == "correct"
    assert json.loads(info["step_scores"]) == pytest.approx([0.9, 0.05, 0.1])
    # The last step takes the end-of-sequence token with it.
    assert json.loads(info["step_ends"]) == [13, 27, len(numbered(*STEPS))]
    assert info["reward_failure"] == 0.0


def test_steps_are_those_of_prime_steps():
    scorer = Calculator()
    cutting = manager("prime.steps.splitter=delimiters", 'prime.steps.delimiters=[";"]', scorer=scorer)
    told(cutting, "2*3=6;6+1=7")
    assert scorer.asked[0][0].steps == ("2*3=6;", "6+1=7")


def test_a_response_that_cannot_be_scored_keeps_its_verdict_and_says_why():
    class Silent:
        async def score(self, chain, tokens):
            return ScoringFailure("no answer in 60 s")

    reward, info = told(manager(scorer=Silent()), numbered(*STEPS))
    assert reward == info["acc"] == 1.0
    assert (info["reward_failure"], info["failure_detail"]) == (1.0, "step scorer: no answer in 60 s")
    assert (info["step_scores"], info["n_steps"]) == ("[]", 3)
    # verl stacks infos by key.
    assert info.keys() == told(manager(scorer=Calculator()), "")[1].keys()


@pytest.mark.parametrize("layout", ["plain", "chat"])
def test_scores_of_a_published_prm_are_those_of_eval_prm(tmp_path, layout):
    path = str(save_llama(tmp_path, 3, classes=2))
    words = ["step_scorer.architecture=token_classification", f"step_scorer.layout={layout}"]
    scoring = manager(*words, f"step_scorer.model_path={path}")
    alone = ClassifierScorer(TokenClassifier(TokenReader(path, layout=layout)))
    for steps in (STEPS, STEPS[:2], ("x\u00e9\U0001f642 one", "two")):
        texts = numbered(*steps).splitlines(keepends=True)
        item = Response("What is 2*3+1?", *join_steps(texts), tuple(texts))
        (expected,) = alone.score([alone.tokens(item)])
        _, info = told(scoring, numbered(*steps))
        assert json.loads(info["step_scores"]) == pytest.approx(expected["probability"], abs=1e-6)
