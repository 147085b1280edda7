# SPDX-License-Identifier: Apache-2.0
"""Chats of RL problems: the actions' system prompt, and suffixes about the form of the answer.

The suffixes are those of Eurus-2-RL-Data. The system prompt names the same seven actions and form
of a response as the one there, in our words; a policy trained on other words should get them by
``--system-prompt FILE``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from prime_ext.utils.rows import SourceError

T = TypeVar("T")

ACTIONS = ("ASSESS", "ADVANCE", "VERIFY", "SIMPLIFY", "SYNTHESIZE", "PIVOT", "OUTPUT")

SYSTEM_PROMPT = (
    "You solve problems in steps. Every stretch of your reasoning is one of these actions; take"
    " them in any order and as often as the problem needs:\n\n"
    + "\n".join(f"[{action}]" for action in ACTIONS)
    + "\n\nWrite in exactly this form:\n\n"
    "[ACTION NAME]\n\n"
    "# First step of the action\n\n"
    "# Second step of the action\n\n"
    "...\n\n"
    "Next action: [NAME OF THE NEXT ACTION]"
)
MATH_SUFFIX = "\n\nPresent the answer in LaTex format: \\boxed{Your answer}"
CODE_SUFFIX = (
    "\n\nWrite Python code to solve the problem. Present the code in \n"
    "```python\nYour code\n```\n"
    "at the end."
)
SUFFIXES = {"math": MATH_SUFFIX, "code": CODE_SUFFIX}

# System messages that ``--system-prompt`` names.
NAMED_PROMPTS = {"actions": SYSTEM_PROMPT, "none": ""}


def read_system_prompt(value: str, named: Mapping[str, T]) -> T | str:
    """Return the message of ``--system-prompt``: of ``named`` or a file, else ``SourceError``."""
    if value in named:
        return named[value]
    try:
        text = Path(value).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(named)
        raise SourceError(
            f"--system-prompt must be {names} or a text file, got {value}: {error}"
        ) from error
    if not text:
        raise SourceError(f"--system-prompt {value} is empty; none leaves the system message out")
    return text


def messages(
    problem: str, ability: str, system: str = SYSTEM_PROMPT, answer_format: bool = True
) -> list[dict[str, str]]:
    """Return the chat of a problem of ``math`` or ``code``, without an empty system message.

    ``answer_format`` says whether the suffix about the form of the answer follows the problem.
    """
    user = {"role": "user", "content": problem + (SUFFIXES[ability] if answer_format else "")}
    return [{"role": "system", "content": system}, user] if system else [user]
