# SPDX-License-Identifier: Apache-2.0
"""The Python tool: programs run in the sandbox; every ending is one counted outcome and line."""

import asyncio
from types import SimpleNamespace

import pytest

from prime_ext.verl_adapter.tools.python_tool import OUTCOMES, PythonTool

TOOL = {"seconds": 1.0, "rewards": {"finished": 0.1, "failed": -0.2}}


@pytest.fixture(scope="module")
def tool():
    return PythonTool(TOOL)


def call(tool, parameters, data=None):
    answer, reward, info = asyncio.run(tool.execute("id", parameters, agent_data=data))
    return answer.text, reward, info["outcome"]


@pytest.mark.parametrize(
    ("code", "told", "outcome"),
    [
        ("print(6 * 7)", "42", "finished"),
        ("x = 1", "(nothing was printed)", "finished"),
        ("print(1)\n1 / 0", "1\nZeroDivisionError: division by zero", "failed"),
        ("import sys; sys.exit(3)", "exit code 3", "failed"),
        ("while True: pass", "Error: stopped after 1 seconds", "timeout"),
        ("import os; print(os.listdir('/'))", "PermissionError", "failed"),
    ],
)
def test_every_ending_is_told(tool, code, told, outcome):
    text, reward, actual = call(tool, {"code": code})
    assert actual == outcome and reward == TOOL["rewards"].get(outcome, 0.0)
    assert text == told if "Permission" not in told else told in text


def test_calls_are_counted_in_the_trajectory(tool):
    data = SimpleNamespace(extra_fields={})
    for parameters in ({"code": "print(1)"}, {"code": 5}, {}, [], "2", {"code": "raise OSError"}):
        call(tool, parameters, data)
    counts = data.extra_fields["python"]
    assert set(counts) == set(OUTCOMES)
    assert {name: value for name, value in counts.items() if value} == {
        "finished": 1,
        "malformed": 4,
        "failed": 1,
    }


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(
        ValueError, match="rewards.ok of the tool python is not one of malformed, finished"
    ):
        PythonTool({"rewards": {"ok": 1}})
