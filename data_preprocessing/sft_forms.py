# SPDX-License-Identifier: Apache-2.0
"""The two forms of SFT responses: the prompts that explain them to a teacher, and strict readers.

``actions`` is the action-centric chain of thought of Eurus-2-SFT-Data (arXiv 2502.01456, section on
imitation), in our words. ``chains`` is the form of the responses of PSPO (arXiv 2411.11681):

    [1] There are 14 pears of Mira and 9 of her brother.
    [2] 14 + 9 = 23.
    Thus, the answer is option 1. #### 1
"""

import re
from collections.abc import Sequence

from prime_ext.tasks.action_prompt import ACTIONS
from prime_ext.verifiers.code.program_extraction import extract_program
from prime_ext.verifiers.math.answer_extraction import extract_answer

from .stages import Removal

# ---- actions ----

MEANINGS = {
    "ASSESS": (
        "take stock: what is given, what is wanted, where the reasoning stands and what it lacks"
    ),
    "ADVANCE": "take the reasoning forward: calculate, derive, conclude",
    "VERIFY": "test what was found: recalculate, try an example, look for gaps and mistakes",
    "SIMPLIFY": "split something difficult into parts, or put it into an easier form",
    "SYNTHESIZE": "bring several findings together into one",
    "PIVOT": "leave a way that does not lead on, say why, and choose another",
    "OUTPUT": "the final answer, written for a reader who sees nothing of the rest",
}

TEACHER_PROMPT = (
    "You solve problems slowly and thoroughly, and you write your reasoning as a sequence of"
    " actions. These are the actions:\n\n"
    + "\n".join(f"[{action}] {meaning}." for action, meaning in MEANINGS.items())
    + "\n\nRules of form:\n"
    "- Every action begins with its name in square brackets, on a line of its own, and with"
    " nothing else on it.\n"
    "- Within an action every step begins on a new line with #.\n"
    "- Every action but the last ends with a line that names the next one: Next action: [NAME]\n"
    "- Begin with [ASSESS]. Nothing stands before it.\n"
    "- End with [OUTPUT], once. It needs no # and names no next action. It is the only part that"
    " the reader sees, so it holds the whole answer in the form that the problem asks for.\n"
    "- Between the first and the last action take any of the others, in any order and as often as"
    " the problem needs. Check results before you give them, and change the approach when it"
    " fails.\n"
    "- Use no other actions and no other headings in brackets."
)

FIRST = "ASSESS"
LAST = "OUTPUT"
ACTION_RULES = {
    "no_action": "no line with the name of an action in brackets",
    "preamble": "text before the first action",
    "unknown_action": "an action that is none of the seven",
    "wrong_start": f"the first action is not {FIRST}",
    "wrong_end": f"the last action is not {LAST}, or {LAST} comes before the end",
    "no_step": "an action without a line that begins with #, or the output is empty",
    "next_action": (
        "an action does not end with the name of the one that follows, or the output names a"
        " next one"
    ),
    "no_answer": "the output has no final answer: a box, or a block of Python",
}
# An action stands on a line of its own; brackets in mathematics and lists are not names.
_HEADING = re.compile(r"^[ \t]*\[([A-Z][A-Z_ ]*)\][ \t]*$", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*Next action:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAMED = re.compile(r"\[([A-Z][A-Z_ ]*)\]\.?|([A-Z][A-Z_ ]*)\.?")
_STEP = re.compile(r"^[ \t]*#+[ \t]*[^\s#]", re.MULTILINE)


def read_actions(response: str, ability: str) -> str | Removal:
    """Return the response as it is learned, or the first of :data:`ACTION_RULES` that it breaks.

    The output of ``math`` needs a box, that of ``code`` a block of Python, any other only text.
    """
    headings = list(_HEADING.finditer(response))
    if not headings:
        return Removal("no_action", response.strip()[:200])
    preamble = response[: headings[0].start()].strip()
    if preamble:
        return Removal("preamble", preamble[:200])
    names = [heading[1] for heading in headings]
    unknown = [name for name in names if name not in ACTIONS]
    if unknown:
        return Removal("unknown_action", unknown[0])
    if names[0] != FIRST:
        return Removal("wrong_start", names[0])
    if LAST not in names[-1:] or LAST in names[:-1]:
        return Removal("wrong_end", " ".join(names))
    ends = [*(heading.start() for heading in headings[1:]), len(response)]
    output = ""
    for heading, end, following in zip(headings, ends, [*names[1:], None], strict=True):
        output, named = _split_next(response[heading.end() : end].strip())
        if not (output if heading[1] == LAST else _STEP.search(output)):
            return Removal("no_step", f"{heading[1]}: {output[:200]}")
        if named != following:
            return Removal("next_action", f"{heading[1]} names {named}, {following} follows")
    answer: object = output
    if ability in ("math", "code"):
        answer = extract_answer(output) if ability == "math" else extract_program(output)
    return response.strip() if answer else Removal("no_answer", output[-200:])


def _split_next(text: str) -> tuple[str, str | None]:
    """Split the text of an action from the next action that its last line names, or None."""
    lines = list(_NEXT.finditer(text))
    # Only the last line counts: text after it would be lost between two actions.
    if not lines or lines[-1].end() != len(text):
        return text, None
    match = _NAMED.fullmatch(lines[-1][1])
    return text[: lines[-1].start()].strip(), (match[1] or match[2]) if match else lines[-1][1]


# ---- chains ----

CHAIN_RULES = {
    "no_answer_line": "the last line is not: Thus, the answer is option N. #### N",
    "no_chain": "a line before the last is not a step, or steps do not count 1, 2, 3, ...",
    "too_short": "fewer steps than --min-steps",
}
# The released data write "[1] . text".
_CHAIN_STEP = re.compile(r"\[(\d{1,3})\][ \t]*(?:[.:][ \t]+)?(\S.*)")
_ANSWER = re.compile(r"Thus, the answer is option (\d{1,2})\. #### (\d{1,2})")
_LETTER = re.compile(r"\w")


def format_chain(steps: Sequence[str], option: int) -> str:
    """Return a chain in its form."""
    lines = [f"[{number}] {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join([*lines, f"Thus, the answer is option {option}. #### {option}"])


def read_chain(text: str, min_steps: int = 1) -> str | Removal:
    """Return a chain in the form of :func:`format_chain`, or what is wrong with it."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    answer = _ANSWER.fullmatch(lines[-1]) if lines else None
    if answer is None or answer[1] != answer[2]:
        return Removal("no_answer_line", lines[-1] if lines else "")
    steps = []
    for number, line in enumerate(lines[:-1], start=1):
        step = _CHAIN_STEP.fullmatch(line)
        if step is None or int(step[1]) != number or not _LETTER.search(step[2]):
            return Removal("no_chain", line)
        steps.append(step[2].strip())
    if len(steps) < min_steps:
        return Removal("too_short", f"{len(steps)} steps")
    return format_chain(steps, int(answer[1]))


CHAIN_SYSTEM = "You reason about quantities with the care of an expert, in short numbered steps."
CHAIN_EXAMPLE = (
    (
        "Compare the quantities of the two statements.\n"
        "Write short steps, each on a line of its own, marked [1], [2], [3] and so on.\n"
        "End with the line: Thus, the answer is option N. #### N\n"
        "Here N is the number of the option you choose.\n"
        "### statement1: A baker sold 3 trays of 12 rolls each and kept 5 rolls.\n"
        "### statement2: The baker had 40 rolls.\n"
        "### option1: entailment\n"
        "### option2: contradiction\n"
        "### Response: Let's think step by step."
    ),
    format_chain(
        [
            "3 trays of 12 rolls are 3 * 12 = 36 rolls.",
            "With the 5 rolls that were kept these are 36 + 5 = 41 rolls.",
            "Statement 2 says 40 rolls, which is not 41, so it is wrong.",
        ],
        2,
    ),
)
