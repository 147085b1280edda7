# SPDX-License-Identifier: Apache-2.0
"""The reward manager `pspo_wrs`: from a response to its reward, and everything that is not a reward."""

import asyncio
import json
import math

import pytest
from omegaconf import open_dict
from pspo_rows import TOKENIZER, Calculator, Constant, configuration, manager, numbered, reward, row

from prime_ext.config.checks import SettingsError
from prime_ext.reward.pspo_info import pspo_metrics
from prime_ext.reward.pspo_manager import PSPORewardManager
from prime_ext.step_rm.scorers.protocol import ScoringFailure, StepScores

GOOD = numbered("2*3=6", "6+1=7", "so the answer is 7")


def steps(n):
    return numbered(*("we go on" for _ in range(n)))


def weibull(n):
    """The paper's R_s with its own constant."""
    return 10.735 * 1.5 / 8 * (n / 8) ** 0.5 * math.exp(-((n / 8) ** 1.5))


# ---- golden values of the paper and of the released code ------------------------------------------------------------


PAPER = [(0.9, 2, 0.799335), (0.9, 3, 0.881719), (0.9, 4, 0.899466), (0.9, 5, 0.873773), (0.9, 8, 0.666425)]
PAPER += [(0.9, 20, 0.054994), (0.5, 4, 0.499703), (0.5, 8, 0.370236), (0.1, 5, 0.097086), (0.88433, 8, 0.654822)]
RELEASED = [(0.9, 2, 2.201808), (0.9, 4, 5.985135), (0.9, 5, 6.614569), (0.9, 8, 8.928773), (0.9, 20, 29.644570)]
RELEASED += [(0.5, 5, 1.908500), (0.2, 8, 0.294017), (0.19, 8, 0.178804), (0.1, 8, 0.049530), (0.21159, 12, 0.330810)]


@pytest.mark.parametrize(("p", "n", "golden"), PAPER)
def test_rewards_of_the_paper(p, n, golden):
    """Equal scores p of n steps."""
    assert reward(steps(n), manager(scorer=Constant(p)))[0] == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize(("p", "n", "golden"), RELEASED)
def test_rewards_of_the_released_code(p, n, golden):
    """The score is multiplied in twice there."""
    pspo = manager(configuration("chain@pspo=pspo_released"), Constant(p))
    assert reward(steps(n), pspo)[0] == pytest.approx(golden, abs=1e-6)


def test_rewards_of_the_predecessor():
    """CN-PPO: five steps of .9, the first one times .2, under a Gaussian around four."""
    pspo = manager(configuration("chain@pspo=cn_ppo"), Constant(0.9))
    assert reward(steps(5), pspo)[0] == pytest.approx(0.9 * 0.2**0.2 * 0.880163, abs=1e-6)


def test_scores_of_steps_become_their_geometric_mean_times_the_weibull():
    """Two right steps and one without an equation: (.9 * .9 * .1)^(1/3) * h(3)."""
    amount, info = reward(GOOD)
    score = (0.9 * 0.9 * 0.1) ** (1 / 3)
    assert amount == info["score"] == info["chain_reward"] == pytest.approx(score * weibull(3), abs=1e-9)
    assert (info["chain_score"], info["chain_factor"]) == pytest.approx((score, weibull(3)), abs=1e-9)
    assert json.loads(info["step_scores"]) == [0.9, 0.9, 0.1] and info["n_steps"] == 3
    assert (info["step_score"], info["lowest_step_score"]) == pytest.approx((1.9 / 3, 0.1))
    assert info["steps_3_to_5"] == 1.0 and info["steps_2"] == info["steps_above_8"] == 0.0
    assert info["reward_failure"] == 0.0 and info["failure_detail"] == ""


def test_the_scorer_reads_the_steps_the_question_and_how_long_the_response_is():
    scorer = Calculator()
    prompt = [{"role": "system", "content": "add"}, {"role": "user", "content": "What is 2*3+1?"}]
    reward(GOOD, manager(scorer=scorer), raw_prompt=prompt)
    ((chain, tokens),) = scorer.asked
    assert chain.steps == ("Step 1: 2*3=6\n", "Step 2: 6+1=7\n", "Step 3: so the answer is 7")
    assert chain.question == "What is 2*3+1?" and tokens == len(GOOD) + 1
    reward(GOOD, manager(scorer=scorer), raw_prompt=prompt, extra_info={"question": "2*3+1"})
    assert scorer.asked[1][0].question == "2*3+1"


# ---- where it is paid -----------------------------------------------------------------------------------------------


def test_shares_at_step_ends_sum_to_the_reward():
    pspo = manager(configuration(accumulation__place="step_ends"))
    amount, info = reward(GOOD, pspo)
    paid, ends = json.loads(info["step_rewards"]), json.loads(info["step_ends"])
    assert paid == pytest.approx([amount / 3] * 3)
    # The last step takes the end-of-sequence token with it.
    assert ends == [13, 27, len(GOOD)] and info["n_tokens"] == len(GOOD) + 1


def test_the_worst_step_takes_nearly_all_with_min_form():
    pspo = manager(configuration(accumulation__place="step_ends", credit="min_form"))
    amount, info = reward(GOOD, pspo)
    paid = json.loads(info["step_rewards"])
    weights = [math.exp(-score / 0.1) for score in (0.9, 0.9, 0.1)]
    assert paid == pytest.approx([amount * weight / sum(weights) for weight in weights])


def test_without_an_accumulation_every_step_is_paid_for_itself():
    pspo = manager(configuration("chain@pspo=plain"))
    amount, info = reward(GOOD, pspo)
    assert json.loads(info["step_rewards"]) == pytest.approx([0.9, 0.9, 0.1]) and amount == pytest.approx(1.9)
    assert info["chain_score"] is None
    shaped = manager(configuration("chain@pspo=plain", shaping__name="weibull", credit="min_form"))
    amount, info = reward(GOOD, shaped)
    weights = [math.exp(-score / 0.1) for score in (0.9, 0.9, 0.1)]
    expected = [s * w / sum(weights) * weibull(3) for s, w in zip((0.9, 0.9, 0.1), weights, strict=True)]
    assert json.loads(info["step_rewards"]) == pytest.approx(expected) and amount == pytest.approx(sum(expected))


# ---- gold answers ---------------------------------------------------------------------------------------------------

GOLD = {"reward_model": {"ground_truth": "7"}}


def answers(solution_str, ground_truth, data_source, extra_info):
    """A user's reward function: the answer is the last word."""
    return float(solution_str.split()[-1:] == [ground_truth])


def test_gold_answers_are_a_metric_and_no_reward_unless_asked_for():
    """The paper uses none."""
    plain, info = reward(GOOD, manager(compute_score=answers), **GOLD)
    assert info["acc"] == 1.0 and info["outcome_reward"] == 0.0 and plain == info["chain_reward"]
    with_bonus, info = reward(GOOD, manager(configuration(outcome_coefficient=0.5), compute_score=answers), **GOLD)
    assert with_bonus == pytest.approx(plain + 0.5) and info["outcome_reward"] == 0.5
    wrong, info = reward(
        GOOD, manager(configuration(outcome_coefficient=0.5), compute_score=answers), reward_model={"ground_truth": "8"}
    )
    assert wrong == plain and info["acc"] == 0.0 and info["reward_failure"] == 0.0


def test_asynchronous_reward_functions_and_their_extra_info_are_passed_on():
    async def judge(**keywords):
        assert keywords["data_source"] == "sums" and keywords["extra_info"] == {"n": 1, "raw_prompt": None}
        return {"score": 0.25, "acc": 0.25, "pred": "7", "verdict": "wrong"}

    _, info = reward(GOOD, manager(compute_score=judge), **GOLD, extra_info={"n": 1})
    assert (info["acc"], info["pred"], info["verdict"], info["grader_failure"]) == (0.25, "7", "wrong", 0.0)
    assert info["score"] == info["chain_reward"]


@pytest.mark.parametrize("columns", [{}, {"reward_model": None}, {"reward_model": {"ground_truth": ""}}])
def test_rows_without_a_gold_answer_are_not_judged(columns):
    _, info = reward(GOOD, **columns)
    assert "acc" not in info and info["reward_failure"] == 0.0
    assert "acc" not in reward(GOOD, manager(configuration(judge=False)), **GOLD)[1]


def test_a_reward_that_needs_a_gold_answer_is_none_without_it():
    amount, info = reward(GOOD, manager(configuration(outcome_coefficient=0.5), compute_score=answers))
    assert amount == 0.0 and info["reward_failure"] == 1.0
    assert info["failure_detail"] == "verifier: the row has no gold answer, and pspo.outcome_coefficient is above 0"


def test_a_verifier_that_breaks_spoils_the_reward_only_where_the_reward_needs_it():
    def breaks(**_):
        raise RuntimeError("out of ink")

    amount, info = reward(GOOD, manager(compute_score=breaks), **GOLD)
    assert amount == info["chain_reward"] > 0 and info["reward_failure"] == 0.0
    assert (info["grader_failure"], info["verdict"], info["acc"]) == (1.0, "error", 0.0)
    amount, info = reward(GOOD, manager(configuration(outcome_coefficient=1.0), compute_score=breaks), **GOLD)
    assert amount == 0.0 and info["reward_failure"] == 1.0
    assert info["failure_detail"] == "verifier: RuntimeError: out of ink"
    # What was not judged is no wrong answer in the metrics.
    assert "pspo/acc" not in pspo_metrics([info])


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   \n\n", "...", "[1] [2]"])
def test_a_response_without_a_letter_or_digit_has_no_step_and_the_reward_0(text):
    scorer = Calculator()
    amount, info = reward(text, manager(scorer=scorer))
    assert amount == 0.0 and info["n_steps"] == 0 and info["steps_at_most_1"] == 1.0
    assert info["reward_failure"] == 0.0 and scorer.asked == []
    assert (info["chain_score"], info["step_scores"], info["step_ends"]) == (0.0, "[]", "[]")


def test_a_response_without_any_token_is_the_same():
    result = asyncio.run(manager().run_single(row("", end=False, padding=1)))
    assert result["reward_score"] == 0.0 and result["reward_extra_info"]["n_tokens"] == 0


def test_one_step_is_worth_nothing_unless_it_is_to_be_kept():
    amount, info = reward("2*3=6")
    assert (amount, info["chain_factor"], info["chain_score"]) == (0.0, 0.0, pytest.approx(0.9))
    kept = manager(configuration(accumulation__single_step="keep"))
    assert reward("2*3=6", kept)[0] == pytest.approx(0.9 * weibull(1))


def test_a_thousand_steps_are_scored_without_underflow():
    text = steps(1000)
    amount, info = reward(text, manager(configuration(shaping__name="none"), Constant(0.01)))
    assert info["n_steps"] == 1000 and amount == pytest.approx(0.01) and info["steps_above_8"] == 1.0
    assert 0.0 <= reward(text, manager(scorer=Constant(0.9)))[0] < 1e-300


def test_a_reward_that_float32_cannot_hold_is_a_failure_and_not_an_infinity():
    pspo = manager(configuration("chain@pspo=pspo_released"), Constant(0.95))
    amount, info = reward(steps(1000), pspo)
    assert amount == 0.0 and info["reward_failure"] == 1.0
    assert "for 1000 steps, which float32 cannot hold" in info["failure_detail"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_a_failure(value):
    amount, info = reward(GOOD, manager(scorer=Constant(value)))
    assert amount == 0.0 and info["reward_failure"] == 1.0
    assert info["failure_detail"].startswith(f"step scorer: scores that are not finite numbers: ['{value}'")
    assert info["chain_reward"] is None


class Same:
    """A scorer with one answer to everything."""

    def __init__(self, outcome):
        self.outcome = outcome

    async def score(self, chain, tokens):
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "detail"),
    [
        (ScoringFailure("no answer in 60 s"), "step scorer: no answer in 60 s"),
        (StepScores(((0.1, 0.1, 0.8),)), "step scorer: 1 scores for 3 steps"),
    ],
)
def test_a_scorer_without_an_answer_for_every_step_is_a_failure_with_its_reason(outcome, detail):
    amount, info = reward(GOOD, manager(scorer=Same(outcome)))
    assert (amount, info["reward_failure"], info["failure_detail"], info["n_steps"]) == (0.0, 1.0, detail, 3)


def test_steps_that_were_cut_are_counted():
    cut = StepScores(((0.1, 0.1, 0.8),) * 3, contexts_cut=2, steps_cut=1)
    _, info = reward(GOOD, manager(scorer=Same(cut)))
    assert (info["contexts_cut"], info["steps_cut"]) == (2.0, 1.0)
    assert pspo_metrics([info, reward(GOOD)[1]])["pspo/steps_cut"] == 0.5


def test_a_pattern_that_takes_too_long_makes_one_step(monkeypatch):
    def never(*_):
        raise TimeoutError

    monkeypatch.setattr("prime_ext.step_rm.response_cut.split_steps", never)
    amount, info = reward(GOOD)
    assert (amount, info["n_steps"], info["steps_timed_out"]) == (0.0, 1, 1.0)


def test_every_response_has_the_same_keys():
    """verl stacks them by key."""
    judged = {"compute_score": answers}
    infos = [
        reward(text, manager(scorer=scorer, **judged), **GOLD)[1]
        for text, scorer in (
            (GOOD, None),
            ("", None),
            (GOOD, Same(ScoringFailure("no answer in 60 s"))),
            (GOOD, Constant(math.nan)),
        )
    ]
    assert len({frozenset(info) for info in infos}) == 1


def test_a_configuration_without_the_sections_is_one_line():
    config = configuration()
    with open_dict(config):
        del config["step_scorer"]
    with pytest.raises(SettingsError, match=r"pspo_wrs needs the section step_scorer; .*\+step_scorer=step_scorer"):
        PSPORewardManager(config, TOKENIZER, answers, scorer=Calculator())


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_metrics_are_means_over_the_responses_that_have_a_value():
    judge = {"compute_score": answers}
    infos = [
        reward(GOOD, manager(**judge), **GOLD)[1],
        reward(steps(9), manager(**judge), reward_model={"ground_truth": "x"})[1],
        reward("", manager(**judge))[1],
        reward(GOOD, manager(scorer=Same(ScoringFailure("no answer in 60 s"))))[1],
    ]
    metrics = pspo_metrics(infos)
    assert (metrics["pspo/n_steps/mean"], metrics["pspo/n_steps/max"]) == (15 / 4, 9)
    shares = [metrics[f"pspo/steps_{name}"] for name in ("at_most_1", "3_to_5", "above_8")]
    assert shares == [0.25, 0.5, 0.25]
    assert metrics["pspo/acc"] == 0.5 and metrics["pspo/reward_failure"] == 0.25
    assert metrics["pspo/chain_reward"] == pytest.approx(sum(info["chain_reward"] for info in infos[:3]) / 3)
    assert pspo_metrics([]) == {}


def test_one_json_line_for_each_response(tmp_path):
    pspo = manager(configuration(log_path=str(tmp_path / "log"), accumulation__place="step_ends"))
    for text in (GOOD, "", "2*3=5\n\nand so on"):
        reward(text, pspo)
    (path,) = (tmp_path / "log").iterdir()
    first, empty, last = map(json.loads, path.read_text().splitlines())
    assert (first["global_step"], first["uid"], first["rollout"], first["data_source"]) == (3, "7", 2, "sums")
    assert [step["text"] for step in first["steps"]] == GOOD.splitlines(keepends=True)
    assert [step["score"] for step in first["steps"]] == [0.9, 0.9, 0.1]
    assert sum(step["paid"] for step in first["steps"]) == pytest.approx(first["score"])
    assert (empty["n_steps"], empty["steps"], empty["failure"]) == (0, [], "")
    assert last["n_steps"] == 2 and last["acc"] is None


def test_many_responses_at_once():
    """As verl's reward loop asks: each for itself, all at the same time."""
    pspo = manager()

    async def all_of_them():
        return await asyncio.gather(*(pspo.run_single(row(numbered(*["1+1=2"] * (n % 7)))) for n in range(200)))

    results = asyncio.run(all_of_them())
    counts = [result["reward_extra_info"]["n_steps"] for result in results]
    assert counts == [n % 7 for n in range(200)]
    for count, result in zip(counts, results, strict=True):
        assert result["reward_score"] == pytest.approx(0.9 * weibull(count) if count > 1 else 0.0)
