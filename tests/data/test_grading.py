# SPDX-License-Identifier: Apache-2.0
"""Queries to verifiers: exceptions, tasks that are registered again, machines without a sandbox."""

import asyncio

import pytest

from data_preprocessing.grading import Judge, find_gold_fault, get_verdicts
from prime_ext.utils.run_store import RunError
from prime_ext.verifiers import sources
from prime_ext.verifiers.judging import make_verifier
from prime_ext.verifiers.sandbox.client import SandboxUnavailable
from prime_ext.verifiers.verdict import correct, wrong


class Verifier:
    """A verifier with these verdicts by response; others raise."""

    def __init__(self, **verdicts):
        self.verdicts = verdicts

    async def averify(self, response, gold):
        return self.verdicts[response]


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr(sources, "_registered", [sources.Source("odes", "odes", {})])
    return lambda make: monkeypatch.setitem(sources.TASKS, "odes", make)


def test_an_exception_fails_only_its_own_verdict(register):
    register(lambda: Verifier(good=correct("good", 0.0), bad=wrong("bad", 0.0)))
    texts = ["good", "broken", "bad"] * 40
    verdicts = get_verdicts([Judge("odes", text, "gold") for text in texts])
    assert [verdict.score for verdict in verdicts] == [1.0, None, 0.0] * 40
    assert verdicts[1].grader_failure and "KeyError: 'broken'" in verdicts[1].detail
    assert "fails: KeyError" in asyncio.run(find_gold_fault("odes", "broken", {}))


def test_a_task_that_is_registered_again_has_its_new_verifier(register):
    for verdict in (correct("x", 0.0), wrong("x", 0.0)):
        register(lambda verdict=verdict: Verifier(x=verdict))
        assert get_verdicts([Judge("odes", "x", "gold")]) == [verdict]
        assert make_verifier("odes") is make_verifier("odes")


def test_a_machine_without_a_sandbox_ends_in_one_line(register):
    def fail():
        raise SandboxUnavailable("no user\nnamespaces")

    register(fail)
    with pytest.raises(RunError, match="cannot be judged on this machine: no user namespaces$"):
        get_verdicts([Judge("odes", "x", "gold")])
    assert "cannot be made" in asyncio.run(find_gold_fault("odes", "x", {}))
