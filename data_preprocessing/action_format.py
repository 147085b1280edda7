# SPDX-License-Identifier: Apache-2.0
r"""The action-centric chain of thought: how a teacher is asked for it, and whether a response keeps to its form.

[ASSESS]

# What is given
...

Next action: [ADVANCE]

[ADVANCE]
...

[OUTPUT]

The answer is \boxed{7}.

The content of the prompt is that behind Eurus-2-SFT-Data (arXiv 2502.01456, section on imitation); the wording is ours.
The student sees the short prompt of RL (``action_prompt.py``), never this one.
"""

import re
from dataclasses import dataclass

from prime_ext.tasks.action_prompt import ACTIONS
from prime_ext.verifiers.code.extraction import extract_program
from prime_ext.verifiers.math.extraction import extract_answer

MEANINGS = {
    "ASSESS": "take stock: what is given, what is wanted, where the reasoning stands and what it lacks",
    "ADVANCE": "take the reasoning forward: calculate, derive, conclude",
    "VERIFY": "test what was found: recalculate, try an example, look for gaps and mistakes",
    "SIMPLIFY": "split something difficult into parts, or put it into an easier form",
    "SYNTHESIZE": "bring several findings together into one",
    "PIVOT": "leave a way that does not lead on, say why, and choose another",
    "OUTPUT": "the final answer, written for a reader who sees nothing of the rest",
}

TEACHER_PROMPT = (
    "You solve problems slowly and thoroughly, and you write your reasoning as a sequence of actions. These are the "
    "actions:\n\n"
    + "\n".join(f"[{action}] {meaning}." for action, meaning in MEANINGS.items())
    + "\n\nRules of form:\n"
    "- Every action begins with its name in square brackets, on a line of its own, and with nothing else on it.\n"
    "- Within an action every step begins on a new line with #.\n"
    "- Every action but the last ends with a line that names the next one: Next action: [NAME]\n"
    "- Begin with [ASSESS]. Nothing stands before it.\n"
    "- End with [OUTPUT], once. It needs no # and names no next action. It is the only part that the reader sees, so "
    "it holds the whole answer in the form that the problem asks for.\n"
    "- Between the first and the last action take any of the others, in any order and as often as the problem needs. "
    "Check results before you give them, and change the approach when it fails.\n"
    "- Use no other actions and no other headings in brackets."
)

FIRST, LAST = "ASSESS", "OUTPUT"
RULES = {
    "no_action": "no line with the name of an action in brackets",
    "preamble": "text before the first action",
    "unknown_action": "an action that is none of the seven",
    "wrong_start": f"the first action is not {FIRST}",
    "wrong_end": f"the last action is not {LAST}, or {LAST} comes before the end",
    "no_step": "an action without a line that begins with #, or the output is empty",
    "next_action": "an action does not end with the name of the one that follows, or the output names a next one",
    "no_answer": "the output has no final answer: a box, or a block of Python",
}
# An action stands on a line of its own; brackets in mathematics and lists are not names.
_HEADING = re.compile(r"^[ \t]*\[([A-Z][A-Z_ ]*)\][ \t]*$", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*Next action:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAMED = re.compile(r"\[([A-Z][A-Z_ ]*)\]\.?|([A-Z][A-Z_ ]*)\.?")
_STEP = re.compile(r"^[ \t]*#+[ \t]*[^\s#]", re.MULTILINE)


@dataclass(frozen=True)
class Action:
    """A stretch of a response.

    Attributes:
        name: as written.
        text: what follows it, without the line on the next action.
        next: what the last line names; None without such a line.
    """

    name: str
    text: str
    next: str | None


def actions_of(response: str) -> tuple[str, list[Action]]:
    """What stands before the first action, and the actions."""
    headings = list(_HEADING.finditer(response))
    if not headings:
        return response.strip(), []
    ends = [*(heading.start() for heading in headings[1:]), len(response)]
    found = []
    for heading, end in zip(headings, ends, strict=True):
        text = response[heading.end() : end].strip()
        lines = list(_NEXT.finditer(text))
        named = None
        # Only the last line counts: what follows it would be lost between two actions.
        if lines and lines[-1].end() == len(text):
            match = _NAMED.fullmatch(lines[-1][1])
            named = (match[1] or match[2]) if match else lines[-1][1]
            text = text[: lines[-1].start()].strip()
        found.append(Action(heading[1], text, named))
    return response[: headings[0].start()].strip(), found


def format_fault(response: str, ability: str) -> tuple[str, str] | None:
    """The first of :data:`RULES` that a response breaks and what it saw, or None.

    Args:
        response: of the teacher.
        ability: ``math`` wants a box in the output, ``code`` a block of Python, anything else only an output.
    """
    before, actions = actions_of(response)
    if not actions:
        return "no_action", response[:200]
    if before:
        return "preamble", before[:200]
    names = [action.name for action in actions]
    unknown = [name for name in names if name not in ACTIONS]
    if unknown:
        return "unknown_action", unknown[0]
    if names[0] != FIRST:
        return "wrong_start", names[0]
    if names.index(LAST) != len(names) - 1 if LAST in names else True:
        return "wrong_end", " ".join(names)
    for action, following in zip(actions, [*names[1:], None], strict=True):
        if not (action.text if action.name == LAST else _STEP.search(action.text)):
            return "no_step", f"{action.name}: {action.text[:200]}"
        if action.next != following:
            return "next_action", f"{action.name} names {action.next}, {following} follows"
    return _answer_fault(actions[-1].text, ability)


def _answer_fault(output: str, ability: str) -> tuple[str, str] | None:
    answer: object = output
    if ability in ("math", "code"):
        answer = extract_answer(output) if ability == "math" else extract_program(output)
    return None if answer else ("no_answer", output[-200:])
