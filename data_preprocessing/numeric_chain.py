# SPDX-License-Identifier: Apache-2.0
"""Reasoning chains of the numeric sets: numbered steps, a line each, and the line with the answer. Pure functions.

    [1] There are 14 pears of Mira and 9 of her brother.
    [2] 14 + 9 = 23.
    Thus, the answer is option 1. #### 1

The form is that of the responses of PSPO (arXiv 2411.11681), which the prompts of ``prime_ext/tasks/benchmarks`` ask
for.
"""

import re
from collections.abc import Sequence

from data_preprocessing.stage import Removal

RULES = {
    "no_answer_line": "the last line is not: Thus, the answer is option N. #### N",
    "no_chain": "a line before the last is no step, or steps do not count 1, 2, 3, ...",
    "too_short": "fewer steps than --min-steps",
}
# The released data write "[1] . text".
_STEP = re.compile(r"\[(\d{1,3})\][ \t]*(?:[.:][ \t]+)?(\S.*)")
_ANSWER = re.compile(r"Thus, the answer is option (\d{1,2})\. #### (\d{1,2})")
_LETTER = re.compile(r"\w")


def written(steps: Sequence[str], option: int) -> str:
    """A chain."""
    lines = [f"[{number}] {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join([*lines, f"Thus, the answer is option {option}. #### {option}"])


def read_chain(text: str, min_steps: int = 1) -> str | Removal:
    """A chain in the form of :func:`written`, or what is wrong with it."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    answer = _ANSWER.fullmatch(lines[-1]) if lines else None
    if answer is None or answer[1] != answer[2]:
        return Removal("no_answer_line", lines[-1] if lines else "")
    steps = []
    for number, line in enumerate(lines[:-1], start=1):
        step = _STEP.fullmatch(line)
        if step is None or int(step[1]) != number or not _LETTER.search(step[2]):
            return Removal("no_chain", line)
        steps.append(step[2].strip())
    if len(steps) < min_steps:
        return Removal("too_short", f"{len(steps)} steps")
    return written(steps, int(answer[1]))
