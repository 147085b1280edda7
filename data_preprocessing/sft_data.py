# SPDX-License-Identifier: Apache-2.0
"""SFT data: problems answered by a teacher in the action-centric chain of thought, checked, as chats for verl.

    python -m data_preprocessing.sft_data --input problems.jsonl --output-dir data/sft --name numina BACKEND
    python -m data_preprocessing.sft_data --input data/math/train.parquet --output-dir data/sft BACKEND

The teacher sees a long prompt that explains the seven actions, the conversation that is written has the short one of
RL. A response stays if it keeps to the form and, where there is a gold answer, is graded correct; otherwise the teacher
is asked again, up to --tries times, each with a seed of its own. Input is any file of RL rows or of an instruction set
(columns such as problem, question or instruction; --columns names others); with --ability math the gold answer is that
of the column answer or expected_answer, or the last box of the column solution.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_preprocessing.command import Made, positive
from data_preprocessing.dialogues import Ask, Dialogue, Messages
from data_preprocessing.grading import Judge, ungradable
from data_preprocessing.math_sources import gsm8k_row, solved_row
from data_preprocessing.model_stage import (
    Outcome,
    Row,
    check_row,
    problem_of,
    run_command,
    run_model_stage,
    stage_parser,
)
from data_preprocessing.stages import Removal
from prime_ext.generate.backend import Response, Sampling
from prime_ext.tasks.action_prompt import ACTIONS, NAMED_PROMPTS, SUFFIXES, SYSTEM_PROMPT, read_system_prompt
from prime_ext.tasks.cells import RowError, is_whole
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.rows import BadRow, SourceError, read_source
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.code.extraction import extract_program
from prime_ext.verifiers.math.extraction import extract_answer
from prime_ext.verifiers.sources import UnknownSource, source_of

# The content is that behind Eurus-2-SFT-Data (arXiv 2502.01456, section on imitation); the wording is ours.
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
FORM_RULES = {
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

TEACHER_RULES = {
    "truncated": "no response came to an end within --max-new-tokens",
    "wrong_answer": "no response in the right form has the gold answer",
    "ungraded": "the verifier could not grade the response",
}
_EXTRA = {"split": pa.string(), "index": pa.int64(), "response": pa.int32(), "tries": pa.int32()}
_EXTRA["ground_truth"] = pa.string()
# What verl's SFT trainer reads is ``messages``; the rest says where a conversation comes from.
SCHEMA = pa.schema(
    {
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "data_source": pa.string(),
        "ability": pa.string(),
        "extra_info": pa.struct(_EXTRA),
    }
)
SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_new_tokens=4096)
TRIES = 4
RULES = {"truncated": TEACHER_RULES["truncated"], **FORM_RULES, **TEACHER_RULES}
# The first set of columns that a row has wholly.
KNOWN_COLUMNS = (
    ("premise", "hypothesis"),
    ("statement1", "statement2"),
    ("sentence1", "sentence2"),
    ("question",),
    ("problem",),
    ("prompt",),
    ("instruction",),
    ("text",),
)
# Who judges gold answers of sets without a data source.
MATH = "math"
# Six words in a row are an explanation, which no final answer of a response equals.
_PROSE = re.compile(r"(?:[A-Za-z]{2,}[,.;:]? +){5}[A-Za-z]{2,}")


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
    """The first of :data:`FORM_RULES` that a response breaks and what it saw, or None.

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


def problem_texts(row: Mapping[str, Any], columns: Sequence[str] = ()) -> tuple[str, ...]:
    """What a row of any benchmark asks, without templates and answers, to be compared; BadRow if it has no text.

    Rows of verl's schema may say it in ``extra_info.texts``, or in ``extra_info.question``; otherwise it is what the
    user says in ``prompt``, instructions included.

    Args:
        columns: names of columns, by default the first of :data:`KNOWN_COLUMNS` that the row has.
    """
    extra = row.get("extra_info")
    if not columns and isinstance(extra, Mapping) and (extra.get("texts") or extra.get("question")):
        found = list(extra["texts"]) if extra.get("texts") else [extra["question"]]
    else:
        names = columns or next((known for known in KNOWN_COLUMNS if all(name in row for name in known)), ())
        missing = [name for name in names if name not in row]
        if missing or not names:
            raise BadRow(f"no column {missing[0] if missing else 'with a question'}; it has {', '.join(map(str, row))}")
        found = [_said(row[name]) for name in names]
    if any(not isinstance(part, str) or not part.strip() for part in found):
        raise BadRow("an empty text")
    if not all(is_whole(part) for part in found):
        raise BadRow("half a character (a lone surrogate)")
    return tuple(part.strip() for part in found)


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(message, Mapping) for message in value):
        return "\n".join(str(message.get("content", "")) for message in value if message.get("role") == "user")
    raise BadRow(f"neither a text nor chat messages but {str(value)[:40]!r}")


def problem_row(
    raw: Mapping[str, Any], path: Path, number: int, name: str, ability: str, columns: Sequence[str]
) -> Row:
    """A row as one of RL, with ``judge``, the data source that decides for the verifier; BadRow if it is none.

    The gold answer may be None, and the prompt is one message without the suffix of RL. ``name``, ``ability`` and
    ``columns`` (none: the usual ones) are of instruction sets.
    """
    if isinstance(raw.get("reward_model"), Mapping):
        row = check_row(raw)
        try:
            source_of(row["data_source"])
        except UnknownSource as error:
            raise BadRow(str(error).partition(";")[0]) from error
        return {**row, "judge": row["data_source"]}
    name = name or path.name.split(".")[0]
    prompt = [{"role": "user", "content": "\n\n".join(problem_texts(raw, columns))}]
    gold: Any = gold_of(raw) if ability == "math" else None
    return {**rl_row(name, prompt, ability, gold, {"split": "train", "index": number - 1}), "judge": MATH}


def gold_of(raw: Mapping[str, Any]) -> str | None:
    """The gold answer of a mathematical instruction that the verifier can use, or None."""
    if not any(raw.get(name) for name in ("answer", "expected_answer", "solution")):
        return None
    try:
        if "question" in raw and "####" in str(raw.get("answer")):
            gold = gsm8k_row(raw)["answer"]
        else:
            # Whatever the column of the problem is called.
            gold = solved_row({"problem": "-", **{name: raw[name] for name in raw if name != "question"}})["answer"]
    except (BadRow, RowError):
        return None
    return gold if gold and not _PROSE.search(gold) and ungradable(gold) is None else None


def check_form(text: str, ability: str) -> str | Removal:
    """The response as it is learnt, or what is wrong with its form."""
    fault = format_fault(text, ability)
    return text.strip() if fault is None else Removal(*fault)


def teach(
    row: Row,
    prompt: Messages,
    shown: Messages,
    read: Callable[[str], str | Removal],
    judge: str,
    *,
    responses: int,
    tries: int,
) -> Dialogue[list[Row] | Removal]:
    """Different responses that have the right form and, where there is a gold answer, the right answer.

    The teacher is shown ``prompt``, the student ``shown``; ``read`` gives the response as it is learnt, or what is
    wrong with its form; ``judge`` is the data source that decides for the verifier. A gold answer may be None. Returns
    rows of :data:`SCHEMA`, without repetitions; if there is none, what was wrong with the last answer.
    """
    gold, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    found: dict[int, tuple[str, int]] = {}
    removal = Removal("truncated", "")
    for attempt in range(tries):
        missing = [number for number in range(responses) if number not in found]
        if not missing:
            break
        said: Sequence[Response] = yield [Ask(prompt, sample=number, attempt=attempt) for number in missing]
        good: dict[int, str] = {}
        for number, answer in zip(missing, said, strict=True):
            text = Removal("truncated", answer.text[-200:]) if answer.finish == "length" else read(answer.text)
            if isinstance(text, Removal):
                removal = text
            else:
                good[number] = text
        if gold is None:
            found |= {number: (text, attempt + 1) for number, text in good.items()}
            continue
        verdicts: Sequence[Verdict] = yield [Judge(judge, text, gold, extra) for text in good.values()]
        for (number, text), verdict in zip(good.items(), verdicts, strict=True):
            if verdict.correct:
                found[number] = (text, attempt + 1)
            else:
                rule = "ungraded" if verdict.grader_failure else "wrong_answer"
                removal = Removal(rule, f"{verdict.extracted}: {verdict.detail}")
    unique: dict[str, Row] = {}
    for number, (text, n_tries) in sorted(found.items()):
        source = {"split": extra["split"], "index": extra["index"], "response": number, "tries": n_tries}
        conversation = {
            "messages": [*(dict(message) for message in shown), {"role": "assistant", "content": text}],
            "data_source": row["data_source"],
            "ability": row["ability"],
            "extra_info": {**source, "ground_truth": gold},
        }
        unique.setdefault(text, conversation)
    return list(unique.values()) or removal


def answering(row: Row, model: str, responses: int, tries: int, system: str) -> Dialogue[Outcome]:
    """The dialogue about a problem; the suffix says how the answer is written, to the teacher and to the student."""
    user = {"role": "user", "content": problem_of(row) + SUFFIXES.get(row["ability"], "")}
    shown = [{"role": "system", "content": system}, user] if system else [user]
    prompt, read = [{"role": "system", "content": TEACHER_PROMPT}, user], partial(check_form, ability=row["ability"])
    return teach(row, prompt, shown, read, row["judge"], responses=responses, tries=tries)


def run(options: argparse.Namespace) -> Made:
    """Ask, check and write. Returns the report and the parquet files."""
    positive(options, "tries", "responses")
    system = read_system_prompt(options.system_prompt, NAMED_PROMPTS)

    def schema_of(path: Path) -> pa.Schema:
        """Looks at the file before a model is loaded."""
        for _ in read_source(path):
            return SCHEMA
        raise SourceError(f"{path} has no rows")

    parse = partial(problem_row, name=options.name, ability=options.ability, columns=options.columns)
    settings = {"tries": options.tries, "responses": options.responses}
    dialogue, described = (
        partial(answering, system=system, **settings),
        {**settings, "own_prompt": system == SYSTEM_PROMPT},
    )
    return run_model_stage(
        options, dialogue, title="SFT data", rules=RULES, settings=described, schema=schema_of, parse=parse
    )


def main(words: Sequence[str] | None = None) -> int:
    top = stage_parser("sft_data", __doc__, SAMPLING)
    top.add_argument("--name", default="", help="data_source of rows that have none (default: the name of the file)")
    about = "of rows that have none: math, code, or any other word (default: math)"
    top.add_argument("--ability", default="math", help=about)
    top.add_argument("--columns", nargs="+", default=(), help="that hold the problem (default: the usual names)")
    top.add_argument("--responses", type=int, default=1, help="different ones per problem at most (default: 1)")
    top.add_argument("--tries", type=int, default=TRIES, help=f"answers per response at most (default: {TRIES})")
    about = "of the conversations: actions: the short prompt of RL (default); none; or a text file"
    top.add_argument("--system-prompt", default="actions", help=about)
    return run_command(top, run, words)


if __name__ == "__main__":
    sys.exit(main())
