# SPDX-License-Identifier: Apache-2.0
"""The program in a response."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.verifiers.code import extract_program


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("Text.\n```py\nx = 1\n\nprint(x)\n```\nMore text.", "x = 1\n\nprint(x)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("  ```python\n  print(1)\n  ```", "print(1)\n"),
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("```{.python}\nprint(1)\n```", "print(1)\n"),
        ("```python:main.py\nprint(1)\n```", "print(1)\n"),
        ('```py title="main.py"\nprint(1)\n```', "print(1)\n"),
        ("Solution: ```python\nprint(1)\n``` It prints 1.", "print(1)\n"),
        ("```python\nprint(1)\n```<|im_end|>", "print(1)\n"),
        ("```python\ns = '\x1c \x0c \u2028'\n```", "s = '\x1c \x0c \u2028'\n"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\n"),
        # A fence that was left open.
        ("<think>\n```python\nprint(0)\n</think>\n```python\nprint(1)\n```", "print(1)\n"),
        ("```bash\nls\n```python\nprint(1)\n```", "print(1)\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        # The last complete one, and one with a name before one without.
        ("```python\nfirst\n```\ntext\n```python\nsecond\n```\n```python\ncut off", "second\n"),
        ("```python\nprogram\n```\nOutput:\n```\n42\n```", "program\n"),
        ("", None),
        ("print(1)", None),
        ("```python\nprint(1)\n", None),
        ("```python\n   \n```", None),
        ("```bash\nls\n```", None),
        ("```python print(1)```", None),
        ("```python\n" + "x = 1\n" * 50_000 + "```", None),
    ],
)
def test_the_last_complete_fence_is_the_program(response, program):
    assert extract_program(response) == program


PROGRAMS = st.text(alphabet=st.characters(exclude_characters="`~\r", exclude_categories=("Cs",)))


@given(st.lists(PROGRAMS, min_size=1, max_size=4))
def test_what_was_fenced_comes_back(programs):
    extracted = extract_program("\n".join(f"```python\n{program}\n```" for program in programs))
    assert extracted == (f"{programs[-1]}\n" if programs[-1].strip() else None)


def test_time_is_linear():
    started = time.process_time()
    for unit in ("```python\n", "`"):
        extract_program(unit * (1_000_000 // len(unit)))
    assert time.process_time() - started < 60
