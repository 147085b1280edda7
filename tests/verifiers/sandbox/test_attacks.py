# SPDX-License-Identifier: Apache-2.0
"""Contained attacks: nothing is read, written, started or left, and the server lives on."""

import asyncio
import os

import attacks
import pytest
from processes import get_processes, get_server, wait_until

from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox.client import Ending, Limits, Sandbox

LIMITS = Limits(seconds=1.5, memory_bytes=512 << 20)


@pytest.fixture(scope="module")
def attacked():
    with Sandbox(LIMITS, workers=1) as sandbox:
        yield sandbox


@pytest.fixture
def surroundings(attacked, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    return {
        "MARKER": tmp_path / "marker",
        "SECRET": secret,
        "PARENT": os.getpid(),
        "SERVER": get_server(attacked).process.pid,
        "BASE": get_server(attacked).base,
    }


@pytest.mark.parametrize("name", attacks.ALL)
def test_an_attack_is_contained(name, attacked, surroundings):
    base = surroundings["BASE"]
    before = get_processes(base)
    program = attacks.filled(attacks.ALL[name], **surroundings)
    execution = attacked.run(program, "1\n")
    assert b"BREACH" not in execution.stdout
    assert execution.ending is not Ending.SANDBOX_FAILURE, (
        "an attack must not pass for a failure of the grader"
    )
    # Some attacks sleep or spin forever; how long it takes to kill them is up to the machine.
    assert execution.seconds < 60
    assert not surroundings["MARKER"].exists()
    assert surroundings["SECRET"].read_text() == "SECRET"
    assert get_server(attacked).process.pid == surroundings["SERVER"], (
        "the server was started again"
    )
    assert wait_until(lambda: set(get_processes(base)) <= set(before))
    assert attacked.run("print(1)").stdout == b"1\n"


@pytest.mark.parametrize("name", attacks.FORGERIES)
def test_a_forgery_earns_nothing(name, attacked):
    verifier = CodeVerifier(attacked, limits=LIMITS)
    cases = {"inputs": ["1\n"], "outputs": ["31415926\n"]}
    verdict = asyncio.run(verifier.averify_program(attacks.FORGERIES[name], cases))
    assert verdict.score == 0.0 and not verdict.grader_failure


SUITES = {
    "HumanEval": {"test": "def check(candidate):\n    assert candidate(1) == 31415926\n",
     "entry_point": "answer"},
    "MBPP": {"test_list": ["assert math.isclose(answer(1), 31415926)"],
     "test_imports": ["import math"]},
    "iterator": {"test": "assert all(map(lambda n: answer(n) == 31415926, [1]))"},
    "call": {"fn_name": "answer", "inputs": ["1"], "outputs": ["31415926"]},
}  # fmt: skip


@pytest.mark.parametrize("name", attacks.CHEATS)
def test_a_cheat_passes_no_suite(name, attacked):
    verifier = CodeVerifier(attacked, limits=Limits(seconds=0.5, memory_bytes=512 << 20))
    for suite, cases in SUITES.items():
        verdict = asyncio.run(verifier.averify_program(attacks.CHEATS[name], cases))
        assert verdict.score == 0.0, (suite, verdict.detail)


def test_two_runs_do_not_see_each_other(attacked):
    attacked.run("open('left', 'w').write('x')")
    assert attacked.run("import os; print(os.listdir('.'))").stdout == b"[]\n"
