# SPDX-License-Identifier: Apache-2.0
"""A chat model as the judge of steps: what it is asked, what counts of its replies, and what goes wrong."""

import asyncio

import pytest
from scripted_server import Answer, ScriptedServer
from tiny_step_rm import scored, scorer_settings

from prime_ext.config.checks import SettingsError
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.protocol import Chain, ScoringFailure, StepScores
from prime_ext.step_rm.scorers.server import first_wrong

CHAINS = [
    Chain(("3+4=7", "7*2=15", "so 15"), "What is (3+4)*2?"),
    Chain(("3+4=7", "so 14"), "What is (3+4)*2?"),
    Chain((), "Nothing?"),
]


def settings_of(**changes):
    judge = {"instruction": "Which?", "samples": 1, "temperature": 0.0, "max_tokens": 64, "timeout_seconds": 5.0}
    options = {"kind": "server", "architecture": "judge", "model_path": None, "attempts": 2}
    return scorer_settings(**{**options, "judge": {**judge, **changes.pop("judge", {})}, **changes})


def ask(server, chains=CHAINS, rounds=1, **changes):
    return asyncio.run(scored(build_scorer(settings_of(address=server.base_url, **changes)), chains, rounds))


def reply_by_question(prompt, payload):
    return "Step 2 says \\boxed{1}? No: \\boxed{2}" if "7*2=15" in prompt else "All well. \\boxed{ 0 }"


def test_steps_before_the_named_one_are_right_and_the_others_wrong():
    with ScriptedServer(reply_by_question) as server:
        first, second, empty = ask(server)
    assert first == StepScores(((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 0.0)))
    assert second.scores == (1.0, 1.0) and empty == StepScores(())
    payload = next(sent for sent in server.requests if "15" in str(sent))
    assert payload["messages"][0]["content"] == (
        "Question:\nWhat is (3+4)*2?\n\nSolution, in steps:\n[1] 3+4=7\n[2] 7*2=15\n[3] so 15\n\nWhich?"
    )
    assert (payload["n"], payload["temperature"], payload["max_tokens"]) == (1, 0.0, 64)


def test_the_same_response_is_asked_once():
    with ScriptedServer(reply_by_question) as server:
        ask(server, rounds=3, cache_size=10)
        assert len(server.requests) == 2
        ask(server, rounds=2, cache_size=0)
        assert len(server.requests) == 6


def test_scores_of_several_replies_are_their_shares():
    replies = ["\\boxed{2}", "\\boxed{0}", "I do not know", "\\boxed{99}"]
    with ScriptedServer(reply_by_question) as server:
        whole = server._completion

        def several(prompt, payload):
            answer = whole(prompt, payload)
            answer["choices"] = [
                {"index": at, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
                for at, reply in enumerate(replies)
            ]
            return answer

        server._completion = several
        (found,) = ask(server, CHAINS[:1], judge={"samples": 4, "temperature": 0.7})
        assert found.scores == (1.0, 0.5, 0.5)
        replies[:2] = ["\\boxed{4}", ""]
        (found,) = ask(server, CHAINS[:1])
        assert found == ScoringFailure("the judge named no step of 3 in 4 replies")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [("\\boxed{3}", 3), ("\\boxed{-1}", None), ("3", None), ("\\boxed{4}", None), ("\\boxed{two} \\boxed{0}", 0),
     ("\\boxed{" + "9" * 5000 + "}", None)],
)  # fmt: skip
def test_the_last_boxed_number_counts(reply, expected):
    assert first_wrong(reply, 3) == expected


def test_a_silent_judge_is_a_failure_and_a_refusal_an_error():
    with ScriptedServer(reply_by_question, always=503) as server:
        found, *_ = ask(server, CHAINS[:1])
    assert isinstance(found, ScoringFailure) and "HTTP 503" in found.reason and "\n" not in found.reason
    with ScriptedServer(reply_by_question, always="cut") as server:
        found, *_ = ask(server, CHAINS[:1])
    assert isinstance(found, ScoringFailure) and "gave no answer (2 attempts)" in found.reason
    with ScriptedServer(lambda prompt, payload: Answer(None)) as server:
        found, *_ = ask(server, CHAINS[:1])
    assert found == ScoringFailure("the judge named no step of 3 in 1 replies")
    # A response that is too long for the judge concerns no other one.
    with ScriptedServer(reply_by_question, faults_of={}, faults=[400]) as server:
        first, second, _ = ask(server, concurrency=1)
    assert isinstance(first, ScoringFailure) and "HTTP 400" in first.reason and second.scores == (1.0, 1.0)
    with ScriptedServer(reply_by_question, always=401) as server, pytest.raises(StepRMError, match="HTTP 401"):
        ask(server, CHAINS[:1])
    with pytest.raises(StepRMError, match="the judge: .* cannot be reached"):
        ask(server)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "local", "model_path": "m"}, "architecture=judge asks a server; set step_scorer.kind=server"),
        ({"judge": {"samples": 3}}, "judge.samples=3 replies are all the same at temperature 0"),
    ],
)
def test_what_a_judge_cannot_be_is_refused(changes, said):
    with pytest.raises(SettingsError, match=said):
        settings_of(**changes)
