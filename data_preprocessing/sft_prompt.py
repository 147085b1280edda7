# SPDX-License-Identifier: Apache-2.0
"""What the teacher of the SFT data is asked: the seven actions, what each is for, and the form of a response.

The content is that of the prompt behind Eurus-2-SFT-Data (arXiv 2502.01456, section on imitation); the wording is ours.
The student sees the short prompt of RL (``action_prompt.py``), never this one.
"""

from prime_ext.tasks.action_prompt import SUFFIXES, SYSTEM_PROMPT

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


def teacher_messages(problem: str, ability: str) -> list[dict[str, str]]:
    """What the teacher is shown; the suffix says how the answer is written, as for the student."""
    return [
        {"role": "system", "content": TEACHER_PROMPT},
        {"role": "user", "content": problem + SUFFIXES.get(ability, "")},
    ]


def student_messages(problem: str, ability: str, response: str, system: str = SYSTEM_PROMPT) -> list[dict[str, str]]:
    """The conversation that is learnt."""
    shown = [{"role": "system", "content": system}] if system else []
    return [
        *shown,
        {"role": "user", "content": problem + SUFFIXES.get(ability, "")},
        {"role": "assistant", "content": response},
    ]
