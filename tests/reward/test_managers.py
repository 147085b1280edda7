# SPDX-License-Identifier: Apache-2.0
"""The reward managers: from a response to its reward, and everything that is not a reward."""

import asyncio
import json
import math
import re
import time

import numpy as np
import pytest
from scored_rows import (
    TOKENIZER,
    Calculator,
    Constant,
    composed,
    configuration,
    manager,
    numbered,
    reward,
    row,
)
from scripted_server import ScriptedServer
from tiny_llama import save_llama
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.import_utils import load_extern_object

import prime_ext.plugin  # noqa: F401
from eval.prm_data import LabeledResponse
from eval.prm_scorers import ClassifierScorer
from prime_ext.config.compose import compose_config
from prime_ext.methods.step_scorer.scorer import score_metrics
from prime_ext.reward.compute_score import compute_score
from prime_ext.step_rm.scorers.protocol import ScoringFailure, StepScores
from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.loop_thread import LoopThread
from prime_ext.utils.text_tokens import join_steps
from prime_ext.verl_adapter.reward_managers import StepScoresRewardManager

GOOD = numbered("2*3=6", "6+1=7", "so the answer is 7")


class Same:
    """A scorer with one answer to everything."""

    def __init__(self, outcome):
        self.outcome = outcome

    async def score(self, chain):
        return self.outcome


def steps(n):
    return numbered(*("we go on" for _ in range(n)))


def weibull(n):
    """Return the paper's R_s with its own constant."""
    return 10.735 * 1.5 / 8 * (n / 8) ** 0.5 * math.exp(-((n / 8) ** 1.5))


@pytest.mark.parametrize(
    ("chain", "p", "n", "golden"),
    [
        ("pspo_wrs", 0.9, 5, 0.873773),
        ("pspo_released", 0.9, 5, 6.614569),
        # CN-PPO: the first of five steps of .9 times .2, under a Gaussian around four.
        ("cn_ppo", 0.9, 5, 0.9 * 0.2**0.2 * 0.880163),
    ],
)
def test_rewards_match_the_paper_its_code_and_its_predecessor(chain, p, n, golden):
    """Equal scores p of n steps; tests/algorithms has more of these values."""
    pspo = manager(configuration(f"chain@prime.process={chain}"), Constant(p))
    assert reward(steps(n), pspo)[0] == pytest.approx(golden, abs=1e-6)


def test_scores_of_steps_become_their_geometric_mean_times_the_weibull():
    """Two right steps and one without an equation: (.9 * .9 * .1)^(1/3) * h(3)."""
    amount, info = reward(GOOD)
    score = (0.9 * 0.9 * 0.1) ** (1 / 3)
    assert amount == info["score"] == pytest.approx(score * weibull(3), abs=1e-9)
    assert json.loads(info["step_scores"]) == [0.9, 0.9, 0.1] and info["n_steps"] == 3
    assert (info["step_score"], info["lowest_step_score"]) == pytest.approx((1.9 / 3, 0.1))
    assert info["reward_failure"] == 0.0 and info["failure_detail"] == ""


def test_the_scorer_reads_the_steps_and_the_question():
    scorer = Calculator()
    prompt = [{"role": "system", "content": "add"}, {"role": "user", "content": "What is 2*3+1?"}]
    reward(GOOD, manager(scorer=scorer), raw_prompt=prompt)
    (chain,) = scorer.asked
    assert chain.steps == ("Step 1: 2*3=6\n", "Step 2: 6+1=7\n", "Step 3: so the answer is 7")
    assert chain.question == "What is 2*3+1?"
    reward(GOOD, manager(scorer=scorer), raw_prompt=prompt, extra_info={"question": "2*3+1"})
    assert scorer.asked[1].question == "2*3+1"


@pytest.mark.parametrize("position", ["last_token", "step_ends", "tokens"])
def test_the_reward_is_the_sum_wherever_it_is_paid(position):
    values = {"process__accumulation__reward_position": position}
    amount, info = reward(GOOD, manager(configuration(**values)))
    assert amount == pytest.approx(reward(GOOD)[0], abs=1e-9)
    # The last step takes the end-of-sequence token with it.
    assert json.loads(info["step_ends"]) == [13, 27, len(GOOD)]
    assert info["n_tokens"] == len(GOOD) + 1


def test_without_an_accumulation_steps_are_paid_separately():
    amount, _ = reward(GOOD, manager(configuration("chain@prime.process=plain")))
    assert amount == pytest.approx(1.9)


GOLD = {"reward_model": {"ground_truth": "7"}}


def answers(solution_str, ground_truth, data_source, extra_info):
    """Judge as a user's reward function: the answer is the last word."""
    return float(solution_str.split()[-1:] == [ground_truth])


def test_gold_answers_are_a_metric_and_no_reward():
    """The paper uses no gold answers."""
    amount, info = reward(GOOD, manager(compute_score=answers), **GOLD)
    assert info["acc"] == 1.0 and amount == info["score"] == reward(GOOD)[0] > 0
    for columns in ({}, {"reward_model": None}, {"reward_model": {"ground_truth": ""}}):
        _, info = reward(GOOD, **columns)
        assert "acc" not in info and info["reward_failure"] == 0.0


def test_a_verifier_that_breaks_does_not_spoil_the_reward():
    def breaks(**_):
        raise RuntimeError("out of ink")

    amount, info = reward(GOOD, manager(compute_score=breaks), **GOLD)
    assert amount == info["score"] > 0 and info["reward_failure"] == 0.0
    assert (info["grader_failure"], info["verdict"], info["acc"]) == (1.0, "error", 0.0)


def test_responses_without_step_content_have_reward_0():
    scorer = Calculator()
    for text, end in (("", False), ("", True), ("[1] [2]", True)):
        amount, info = reward(text, manager(scorer=scorer), end=end)
        assert (
            amount == info["n_steps"] == info["reward_failure"] == 0
            and info["n_tokens"] == len(text) + end
        )
        assert (info["step_scores"], info["step_ends"]) == ("[]", "[]")
    assert scorer.asked == []


@pytest.mark.parametrize(
    ("scorer", "n", "detail"),
    [
        (Same(ScoringFailure("no answer in 60 s")), 3, "step scorer: no answer in 60 s"),
        (Constant(0.95), 1000, "for 1000 steps, which float32 cannot hold"),
    ],
)
def test_unscorable_responses_are_failures_with_a_reason(scorer, n, detail):
    amount, info = reward(
        steps(n), manager(configuration("chain@prime.process=pspo_released"), scorer)
    )
    assert (amount, info["reward_failure"], info["n_steps"]) == (0.0, 1.0, n)
    assert detail in info["failure_detail"]


def test_a_pattern_that_takes_too_long_makes_one_step(monkeypatch):
    def never(*_):
        raise TimeoutError

    monkeypatch.setattr("prime_ext.step_rm.response_cut.split_steps", never)
    amount, info = reward(GOOD)
    assert (amount, info["n_steps"], info["steps_timed_out"]) == (0.0, 1, 1.0)


def test_every_response_has_the_same_keys():
    """verl stacks infos by key."""
    responses = [(GOOD, None), ("", None), (GOOD, Same(ScoringFailure("no answer")))]
    infos = [
        reward(text, manager(scorer=scorer, compute_score=answers), **GOLD)[1]
        for text, scorer in responses
    ]
    assert len({frozenset(info) for info in infos}) == 1


def test_metrics_are_means_over_the_responses_that_have_a_value():
    infos = [
        reward(GOOD)[1],
        reward("")[1],
        reward(GOOD, manager(scorer=Same(ScoringFailure("no answer in 60 s"))))[1],
        reward(GOOD, manager(scorer=Same(StepScores((0.8,) * 3, contexts_cut=3, steps_cut=1))))[1],
    ]
    metrics = score_metrics(infos)
    assert metrics["prm/step_score"] == pytest.approx((1.9 / 3 + 0.8) / 2)
    # A response without a step needs no call.
    assert (metrics["prm/contexts_cut"], metrics["prm/steps_cut"]) == (3 / 3, 1 / 3)
    assert score_metrics([]) == {}


def test_restating_the_prompt_is_not_an_answer_for_either_trainer():
    columns = {
        "data_source": "math",
        "reward_model": {"ground_truth": "14"},
        "extra_info": {"index": 3},
    }
    columns["raw_prompt"] = np.array([{"role": "user", "content": "Compute 2+3*4."}], dtype=object)
    prime = load_reward_manager(compose_config("prime_trainer", []), TOKENIZER)
    for of in (prime, manager(compute_score=compute_score)):
        for response, right in ((r"\boxed{2+3*4}", 0.0), (r"\boxed{14}", 1.0)):
            result = of.loop.run_until_complete(of.run_single(row(response, **columns)))
            assert result["reward_extra_info"]["acc"] == right
            assert of is not prime or result["reward_score"] == right


STEPS = ("2*3=6", "6+1=8", "so the answer is 7")
PROMPT = [{"role": "user", "content": "What is 2*3+1?"}]


def needs_prompt(data_source, solution_str, ground_truth, extra_info):
    right = float(solution_str.split()[-1:] == [ground_truth])
    assert extra_info["raw_prompt"] == PROMPT
    return {
        "score": right,
        "acc": right,
        "verdict": "correct" if right else "wrong",
        "grader_failure": 0.0,
    }


def told(text, *overrides, scorer=None):
    """Return the reward and the extra info of ``naive_with_step_scores``."""
    model = [] if "step_scorer=judge" in overrides else ["step_scorer.model_path=m"]
    config = composed("variant=step_scorer", *model, *overrides, name="prime_trainer_cpu")
    of = StepScoresRewardManager(config, TOKENIZER, needs_prompt, score=scorer and scorer.score)
    result = of.loop.run_until_complete(
        of.run_single(row(text, raw_prompt=PROMPT, extra_info={}, **GOLD))
    )
    return result["reward_score"], result["reward_extra_info"]


def test_the_outcome_is_the_verifiers_and_scores_are_added():
    scorer = Calculator()
    amount, info = told(numbered(*STEPS), scorer=scorer)
    assert amount == info["acc"] == info["score"] == 1.0 and info["verdict"] == "correct"
    assert json.loads(info["step_scores"]) == pytest.approx([0.9, 0.05, 0.1])
    assert (
        json.loads(info["step_ends"]) == [13, 27, len(numbered(*STEPS))]
        and info["reward_failure"] == 0.0
    )
    # Steps are those of prime.steps.
    told("2*3=6;6+1=7", 'prime.steps={delimiters: [";"]}', scorer=scorer)
    assert scorer.asked[1].steps == ("2*3=6;", "6+1=7")


def test_unscorable_responses_keep_their_verdict_and_give_a_reason():
    amount, info = told(numbered(*STEPS), scorer=Same(ScoringFailure("no answer in 60 s")))
    assert amount == info["acc"] == 1.0
    assert (info["reward_failure"], info["failure_detail"]) == (
        1.0,
        "step scorer: no answer in 60 s",
    )
    assert (info["step_scores"], info["n_steps"]) == ("[]", 3)
    # verl stacks infos by key.
    assert info.keys() == told("", scorer=Calculator())[1].keys()


@pytest.mark.parametrize("layout", ["plain", "chat"])
def test_scores_of_a_published_prm_are_those_of_eval_prm(tmp_path, layout):
    path = str(save_llama(tmp_path, 3, classes=2))
    words = ["step_scorer=token_classification", f"step_scorer.layout={layout}"]
    alone = ClassifierScorer(TokenClassifier(ResponseReader(path, layout=layout)))
    for texts in (STEPS, ("x\u00e9\U0001f642 one", "two")):
        lines = numbered(*texts).splitlines(keepends=True)
        (expected,) = alone.score(
            [alone.tokens(LabeledResponse("What is 2*3+1?", *join_steps(lines), tuple(lines)))]
        )
        _, info = told(numbered(*texts), *words, f"step_scorer.model_path={path}")
        assert json.loads(info["step_scores"]) == pytest.approx(expected["probability"], abs=1e-6)


def test_a_judge_scores_steps_in_training_and_its_failures_are_counted():
    text = numbered(*STEPS)
    answers = {'"3": "Step 3': '{"first_error": 2}', "": "I am not sure."}

    def judge(message, payload):
        return next(answer for mark, answer in answers.items() if mark in message)

    with ScriptedServer(judge) as server:
        words = ["step_scorer=judge", "step_scorer.model=scripted"]
        words += [f"step_scorer.address={server.base_url}"]
        amount, info = told(text, *words)
        assert (amount, json.loads(info["step_scores"])) == (1.0, [1.0, 0.0, 0.0])
        assert (info["lowest_step_score"], info["reward_failure"]) == (0.0, 0.0)
        _, info = told(numbered(*STEPS[:2]), *words)
    assert info["reward_failure"] == 1.0 and info["step_scores"] == "[]"
    assert re.fullmatch(
        "step scorer: .*no JSON object with first_error, .* I am not sure.", info["failure_detail"]
    )
    assert "What is 2*3+1?" in server.requests[0]["messages"][0]["content"]


# ---- a user's own reward function ----------------------------------------------------------------

BODIES = [
    ("return ground_truth + bonus == 'gold!'", "correct", ""),
    ("return {'score': 0.5, 'acc': 0.5}", "wrong", ""),
    ("raise KeyError('no box')", "error", "compute_score: KeyError: 'no box'"),
    ("return None", "error", "it returned None, and must return a finite number"),
    ("return float('inf')", "error", "it returned inf, and must return a finite number"),
    ("__import__('time').sleep(99)", "timeout", "compute_score: more than 1"),
    # Holds the interpreter's lock, so no thread could end it.
    ("return __import__('re').match('(a*)*b', 'a' * 99) is None", "timeout",
     "compute_score: more than 1"),
    ("__import__('os').abort()", "error", "the process died twice during this run: exit code -6"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("body", "outcome", "detail"), BODIES)
def test_failing_or_late_reward_functions_are_grader_failures(
    tmp_path, kind, body, outcome, detail
):
    if kind == "async def":
        if "'re'" in body or "abort" in body:
            pytest.skip("a coroutine stays in this process")
        body = body.replace("__import__('time')", "await __import__('asyncio')")
    arguments = "data_source, solution_str, ground_truth, extra_info, bonus"
    (tmp_path / "score.py").write_text(f"{kind} compute_score({arguments}):\n    {body}\n")
    config = compose_config(
        "prime_trainer_cpu",
        [
            f"reward.custom_reward_function.path={tmp_path}/score.py",
            "+reward.custom_reward_function.reward_kwargs.bonus='!'",
            f"+reward.timeout={1 if outcome == 'timeout' else 5}",
        ],
    )
    manager_of_config = load_reward_manager(config.copy(), TOKENIZER)
    amount, info = reward(GOOD, manager_of_config, reward_model={"ground_truth": "gold"})
    assert (info["verdict"], info["grader_failure"]) == (outcome, float(bool(detail)))
    assert detail in info.get("verifier_detail", "") and amount == info["score"]


def test_a_blocking_coroutine_does_not_delay_later_ones():
    thread = LoopThread()

    async def block():
        time.sleep(20)

    async def answer():
        return 7

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(thread.run(block(), 0.2))
    assert asyncio.run(thread.run(answer(), 5.0)) == 7


def test_verl_loads_files_with_postponed_annotations(tmp_path):
    path = tmp_path / "postponed.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\n"
        "class Result:\n    score: float\n"
    )
    assert load_extern_object(str(path), "Result")(1.0).score == 1.0
