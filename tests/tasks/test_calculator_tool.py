# SPDX-License-Identifier: Apache-2.0
"""The calculator: Python's results, and one counted outcome and line for all other input."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import initialize_tools_from_config

from prime_ext.verl_adapter.tools.calculator_tool import FIELD, Refused, calculate

EXPRESSIONS = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", " + ", " - ", "* "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_the_value_is_pythons(text):
    assert calculate(text) == calculate(f" 00{text}" if text[0].isdigit() else text) == eval(text)


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        ("", "malformed", "a number is missing at the end"),
        *(
            (text, "malformed", "not an expression")
            for text in ("2 3", "*2", "2(3)", "(2", "2)", "2**3", "+2", "()")
        ),
        ("10/2", "malformed", "unexpected '/'"),
        ("٣+1", "malformed", "unexpected '٣'"),
        ("(" * 201, "malformed", "more than 200 characters"),
        ("9" * 31, "error", "a number has more than 30 digits"),
        ("*".join(["99999"] * 30), "error", "a result has more than 30 digits"),
    ],
)
def test_what_is_refused(text, outcome, message):
    with pytest.raises(Refused, match=message) as refused:
        calculate(text)
    assert refused.value.outcome == outcome and "\n" not in str(refused.value)


@given(st.one_of(st.text(max_size=40), st.text("0123456789+-*() ", max_size=40)))
def test_any_text_has_a_number_or_an_outcome(text):
    try:
        assert abs(calculate(text)) < 10**30
    except Refused as refused:
        assert refused.outcome in ("malformed", "error")


def test_verls_loop_counts_every_outcome_of_a_trajectory(tmp_path):
    config = {"type": "native", "rewards": {"result": 0.25, "malformed": -0.5}}
    tool = {
        "class_name": "prime_ext.verl_adapter.tools.calculator_tool.CalculatorTool",
        "config": config,
    }
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [tool]}))
    (tool,) = initialize_tools_from_config(str(tmp_path / "tools.yaml"))
    loop = object.__new__(ToolAgentLoop)
    data = SimpleNamespace(extra_fields={}, _active_tools={tool.name: tool})
    loop.tools = {}
    loop.max_tool_response_length = 100

    def call(arguments):
        answer, reward, _ = asyncio.run(
            loop._call_tool(FunctionCall(name="calculator", arguments=arguments), {}, data)
        )
        return answer.text, reward

    assert call('{"expression": "2*(3+4)"}') == ("14", 0.25)
    for arguments in ({"expression": "2*"}, {"expression": 5}, {}, [], "2"):
        text, reward = call(json.dumps(arguments))
        assert text.startswith("Error: ") and reward == -0.5
    assert call(json.dumps({"expression": "9" * 40}))[1] == 0.0
    assert data.extra_fields[FIELD] == {"result": 1, "malformed": 5, "error": 1, "timeout": 0}
