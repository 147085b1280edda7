# SPDX-License-Identifier: Apache-2.0
"""The reward function: dispatch by data source, and failures of the grader marked as such."""

import asyncio

import pytest
import ray

from prime_ext.reward import compute_score as module
from prime_ext.reward.compute_score import NodeVerifiers, compute_score
from prime_ext.reward.node_actor import NodeActor
from prime_ext.verifiers import Outcome, sources
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, grader_failed, wrong

KEYS = {
    "score",
    "acc",
    "pred",
    "verdict",
    "grader_failure",
    "answer_found",
    "verifier_seconds",
    "verifier_detail",
}


class Shouting:
    """A user's verifier: the response must be the gold answer in capitals."""

    async def averify(self, response, gold, *, on_question="wrong"):
        if response == "?":
            if on_question == "break":
                raise RuntimeError("no questions")
            return grader_failed(Outcome.TIMEOUT, None, 6.0, "still thinking")
        return correct(response, 0.1) if response == gold.upper() else wrong(response, 0.1)


@pytest.fixture(autouse=True)
def user_task(monkeypatch):
    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    monkeypatch.setattr(sources, "TASKS", dict(sources.TASKS))
    module._verifiers.cache_clear()
    register_task("shouting", Shouting)
    register_source("shouts/*", "shouting")


def score(*arguments, **keywords):
    return asyncio.run(compute_score(*arguments, **keywords))


def test_every_row_has_the_same_keys():
    right = score("shouts/a", "HI", "hi")
    broken = score("shouts/a", "?", "hi")
    assert set(right) == set(broken) == KEYS
    assert (right["score"], right["acc"], right["verdict"], right["pred"]) == (
        1.0,
        1.0,
        "correct",
        "HI",
    )
    assert len(score("shouts/a", "x" * 10_000, "hi")["pred"]) == 200


def test_late_and_broken_graders_are_marked_as_failures():
    row = score("shouts/a", "?", "hi")
    assert (row["score"], row["verdict"], row["grader_failure"]) == (0.0, "timeout", 1.0)
    assert row["verifier_detail"] == "still thinking"
    register_source("shouts/*", "shouting", on_question="break")
    row = score("shouts/a", "?", "hi")
    assert (row["verdict"], row["grader_failure"]) == ("error", 1.0)
    assert row["verifier_detail"] == "RuntimeError: no questions"


def test_multiple_choice_takes_its_options_from_the_row():
    names = {"options": ["entailment", "neutral"]}
    assert score("newsnli", "Thus, the answer is option 2. #### 2", "neutral", names)["acc"] == 1.0
    assert score("newsnli", "#### 1", "neutral", names)["acc"] == 0.0
    undecidable = score("newsnli", "#### 1", "contradiction", names)
    assert (
        undecidable["grader_failure"] == 1.0 and "names no option" in undecidable["verifier_detail"]
    )
    assert score("qqa", "#### 2", 2, {"n_options": 2})["acc"] == 1.0


@pytest.mark.parametrize("parts", [False, True])
def test_an_unevaluated_expression_is_right_unless_it_restates_the_problem(parts):
    def judged(question, **options):
        content = [{"type": "image"}, {"type": "text", "text": question}] if parts else question
        messages = [
            {"role": "system", "content": "Solve 2+3*4."},
            {"role": "user", "content": content},
        ]
        return score("math", r"\boxed{2+3*4}", "14", {"raw_prompt": messages}, **options)

    restated = judged(r"Compute $2+3\times 4$.")
    assert restated["acc"] == 0.0 and restated["verifier_detail"].startswith(
        "restates the problem: 2+3"
    )
    assert judged("Two apples, and four boxes of three apples?")["acc"] == 1.0
    assert judged(r"Compute $2+3\times 4$.", math_strictness="lenient")["acc"] == 1.0


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("math", {},
         "set reward.reward_manager.name=naive_with_prompt, or math_strictness=lenient"),
        ("math", {"math_strictness": "strict"},
         "math_strictness='strict' is not one of no_restatement, lenient"),
        ("apps", {"code_reward": "some"}, "code_reward='some' is not one of all, fraction"),
        ("math", {"verifiers": {"math": {"second": 5.0}}},
         "task 'math' has no setting 'second'; it has seconds"),
        ("shouts/a", {"verifiers": {"singing": {}}}, "no task 'singing'"),
        ("poems", {}, r"data_source='poems'.*reward_kwargs.sources, e.g. \{poems: math\}"),
        ("poems", {"sources": {"poems": "verse"}},
         "no task 'verse' for data_source 'poems'; known.*choice, code"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_would_be_right(source, options, message):
    with pytest.raises(ValueError, match=message):
        score(source, r"\boxed{4}", "4", **options)


def test_sources_and_settings_of_the_configuration_reach_the_verifier():
    assert score("numina_cn_k12", "HI", "hi", sources={"numina_*": "shouting"})["acc"] == 1.0

    class Strict:
        def __init__(self, only="HI"):
            self.only = only

        async def averify(self, response, gold):
            return correct(response, 0.1) if response == self.only else wrong(response, 0.1)

    register_task("shouting", Strict)
    assert score("shouts/a", "HO", "", verifiers={"shouting": {"only": "HO"}})["acc"] == 1.0
    assert score("shouts/a", "HO", "")["acc"] == 0.0


@pytest.mark.slow
def test_an_actor_judges_all_tasks_at_once():
    """tests/reward/test_node_scorer.py tests actors that die."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        # Right and wrong must not become a timeout on a busy machine.
        settings = {"code": {"seconds": 10.0}, "math": {"seconds": 300.0}}
        verifiers = NodeActor("verifiers", NodeVerifiers, settings, max_concurrency=1000)
        tests = {"inputs": ["2"], "outputs": ["4"]}
        mixed = [
            ("choice", "#### 2", "no", {"names": ("yes", "no")}, "correct"),
            ("math", r"so \boxed{x(x+1)}", "x^2+x", {}, "correct"),
            ("math", r"so \boxed{x(x-1)}", "x^2+x", {}, "wrong"),
            ("code", "```python\nprint(int(input()) * 2)\n```", tests, {}, "correct"),
        ] * 100
        mixed.append(("code", "```python\nwhile True: pass\n```", tests, {}, "timeout"))

        async def at_once():
            return await asyncio.gather(
                *(verifiers.ask("verify", *request[:4]) for request in mixed)
            )

        assert [str(verdict.outcome) for verdict in asyncio.run(at_once())] == [
            request[4] for request in mixed
        ]
        unknown = asyncio.run(verifiers.ask("verify", "verse", "x", "y", {}))
        assert unknown.grader_failure and "no task 'verse'" in unknown.detail
    finally:
        ray.shutdown()
