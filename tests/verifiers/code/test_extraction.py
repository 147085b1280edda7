# SPDX-License-Identifier: Apache-2.0
"""The program in a response."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.code import extract_program

FENCE = "```"


@pytest.mark.parametrize(
    "response, program",
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("Text.\n```py\nx = 1\n\nprint(x)\n```\nMore text.", "x = 1\n\nprint(x)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("  ```python\n  print(1)\n  ```", "  print(1)\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
    ],
)
def test_a_complete_fence_is_found(response, program):
    assert extract_program(response) == program


@pytest.mark.parametrize(
    "response",
    [
        "",
        "print(1)",
        "```python\nprint(1)\n",
        "```python\n```",
        "```python\n   \n```",
        "```bash\nls\n```",
        "`print(1)`",
        "```python print(1)```",
    ],
)
def test_no_complete_fence_is_no_answer(response):
    assert extract_program(response) is None


def test_the_last_complete_fence_counts():
    response = "```python\nfirst\n```\ntext\n```python\nsecond\n```\n```python\ncut off"
    assert extract_program(response) == "second\n"


def test_a_named_fence_goes_before_an_unnamed_one():
    assert extract_program("```python\nprogram\n```\nOutput:\n```\n42\n```") == "program\n"


def test_without_the_rule_a_response_with_no_fence_is_the_program():
    assert extract_program("print(1)", require_fence=False) == "print(1)"
    assert extract_program("```python\ncut off", require_fence=False) is None


def test_a_program_of_absurd_length_is_no_answer():
    assert extract_program("```python\n" + "x = 1\n" * 50_000 + "```") is None


@given(st.text(alphabet="`pyt\n x", max_size=300))
def test_any_text_has_an_answer_or_none(response):
    program = extract_program(response)
    assert program is None or program.strip()


@given(
    st.lists(
        st.text(
            alphabet=st.characters(
                exclude_characters="`\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", exclude_categories=("Cs",)
            )
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_was_fenced_comes_back(programs):
    response = "\n".join(f"```python\n{program}\n```" for program in programs)
    expected = next((p for p in reversed(programs[-1:])), "")
    found = extract_program(response)
    assert found == (f"{expected}\n" if expected.strip() else None)


@pytest.mark.parametrize("unit", ["```python\n", "```", "`", "```\n", "\n", "a ```python\n"])
def test_time_is_linear(unit):
    started = time.process_time()
    extract_program(unit * (1_000_000 // len(unit)))
    assert time.process_time() - started < 60
