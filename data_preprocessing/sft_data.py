# SPDX-License-Identifier: Apache-2.0
"""SFT data: problems answered by a teacher in a form that is checked, as chats for verl.

    prime-ext data sft-data --input problems.jsonl --output-dir data/sft \\
        --name numina BACKEND
    prime-ext data sft-data --input data/math/train.parquet \\
        --output-dir data/sft BACKEND
    prime-ext data sft-data --form chains --input data/numeric/train.parquet \\
        --output-dir data/chains --responses 4 --temperature 0.8 --top-p 1 BACKEND

A response stays if it keeps to the form and, where there is a gold answer, is graded correct;
otherwise the teacher is asked again, up to --tries times, each with a seed of its own.

--form actions: the teacher sees a long prompt that explains the seven actions, the student the
short one of RL. Input is RL rows or an instruction set; with --ability math the gold answer is that
of the column answer or expected_answer, or the last box of the column solution.

--form chains: the teacher sees one worked example and the prompt of a row of the six numeric sets.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_ext.generate.backend import Response, Sampling
from prime_ext.tasks.action_prompt import NAMED_PROMPTS, SUFFIXES, SYSTEM_PROMPT, read_system_prompt
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.tasks.value_types import is_whole
from prime_ext.utils.arguments import COUNT
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import UnknownSource, find_source

from .command import program
from .dialogues import Ask, Dialogue, Messages
from .grading import Judge, check_gold
from .math_sources import read_gsm8k_row, read_solved
from .model_stage import (
    Outcome,
    Row,
    build_stage_parser,
    check_row,
    extract_problem,
    run_model_stage,
)
from .problem_sources import parse_rows
from .sft_forms import (
    ACTION_RULES,
    CHAIN_EXAMPLE,
    CHAIN_RULES,
    CHAIN_SYSTEM,
    TEACHER_PROMPT,
    read_actions,
    read_chain,
)
from .stages import Removal

RULES = {
    "truncated": "no response came to an end within --max-new-tokens",
    **ACTION_RULES,
    **CHAIN_RULES,
    "wrong_answer": "no response in the right form has the gold answer",
    "ungraded": "the verifier could not grade the response",
}
_TEXT = pa.string()
_COUNT = pa.int32()
_EXTRA = {
    "split": _TEXT,
    "index": pa.int64(),
    "response": _COUNT,
    "tries": _COUNT,
    "ground_truth": _TEXT,
}
_MESSAGES = pa.list_(pa.struct({"role": _TEXT, "content": _TEXT}))
# verl's SFT trainer reads ``messages``; the rest records where a conversation comes from.
SCHEMA = pa.schema(
    {"messages": _MESSAGES, "data_source": _TEXT, "ability": _TEXT, "extra_info": pa.struct(_EXTRA)}
)
SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_new_tokens=4096)
# The first of these columns that a row has is the problem.
KNOWN_COLUMNS = ("question", "problem", "prompt", "instruction", "text")
# Judges gold answers of sets without a data source.
MATH = "math"
# Six words in a row are an explanation, which no final answer of a response equals.
_PROSE = re.compile(r"(?:[A-Za-z]{2,}[,.;:]? +){5}[A-Za-z]{2,}")


# ---- problems ----


def read_question(row: Mapping[str, Any], columns: Sequence[str] = ()) -> str:
    """Return the texts of the named columns, by default of the first known one.

    Of a chat, the messages of the user count. Raises BadRow: a column is missing or has no text.
    """
    names = columns or [name for name in KNOWN_COLUMNS if name in row][:1]
    missing = [name for name in names if name not in row]
    if missing or not names:
        raise BadRow(
            f"no column {missing[0] if missing else 'with a question'}; it has"
            f" {', '.join(map(str, row))}"
        )
    texts = []
    for value in (row[name] for name in names):
        if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
            value = "\n".join(
                str(message.get("content", ""))
                for message in value
                if message.get("role") == "user"
            )
        if not isinstance(value, str) or not value.strip() or not is_whole(value):
            raise BadRow(f"the question must be a text that is not empty, got {str(value)[:40]!r}")
        texts.append(value.strip())
    return "\n\n".join(texts)


def read_problem_row(
    raw: Mapping[str, Any], path: Path, number: int, name: str, ability: str, columns: Sequence[str]
) -> Row:
    """Return an RL row with ``judge``, the data source that selects the verifier. Raises BadRow.

    Rows of instruction sets get ``name`` and ``ability``, a prompt without the suffix of RL, and a
    gold answer or None.
    """
    if isinstance(raw.get("reward_model"), Mapping):
        row = check_row(raw)
        find_task(row)
        return {**row, "judge": row["data_source"]}
    name = name or path.name.split(".")[0]
    prompt = [{"role": "user", "content": read_question(raw, columns)}]
    gold: Any = read_gold(raw) if ability == "math" else None
    return {
        **rl_row(name, prompt, ability, gold, {"split": "train", "index": number - 1}),
        "judge": MATH,
    }


def read_gold(raw: Mapping[str, Any]) -> str | None:
    """Return the gold answer of a mathematical instruction that the verifier can use, or None."""
    if not any(raw.get(name) for name in ("answer", "expected_answer", "solution")):
        return None
    try:
        if "question" in raw and "####" in str(raw.get("answer")):
            gold = read_gsm8k_row(raw)["answer"]
        else:
            # The column of the problem may have any name.
            gold = read_solved(
                {"problem": "-", **{name: raw[name] for name in raw if name != "question"}}
            )["answer"]
    except BadRow:
        return None
    return gold if gold and not _PROSE.search(gold) and check_gold(gold) is None else None


def find_task(row: Row) -> str:
    """Return the task of the row's data source. Raises BadRow: it has none."""
    try:
        return find_source(row["data_source"]).task
    except UnknownSource as error:
        raise BadRow(str(error).partition(";")[0]) from error


def read_choice_row(raw: Mapping[str, Any], *position: object) -> Row:
    """Return an RL row that is multiple choice. Raises BadRow: it is not."""
    row = check_row(raw)
    task = find_task(row)
    if task != "choice":
        raise BadRow(f"{row['data_source']} is of {task}, not of the numeric sets")
    return row


# ---- teaching ----


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
    """Ask for different responses that have the right form and, if known, the gold answer.

    The teacher sees ``prompt``, the student ``shown``. ``read`` returns the response as it is
    learned, or the fault of its form; ``judge`` is the data source that selects the verifier.
    Returns different rows of :data:`SCHEMA`, or the fault of the last answer.
    """
    gold = row["reward_model"]["ground_truth"]
    extra = row["extra_info"]
    accepted: dict[int, tuple[str, int]] = {}
    removal = Removal("truncated", "")
    for attempt in range(tries):
        missing = [number for number in range(responses) if number not in accepted]
        if not missing:
            break
        answers: Sequence[Response] = yield [
            Ask(prompt, sample=number, attempt=attempt) for number in missing
        ]
        good: dict[int, str] = {}
        for number, answer in zip(missing, answers, strict=True):
            text = (
                Removal("truncated", answer.text[-200:])
                if answer.finish == "length"
                else read(answer.text)
            )
            if isinstance(text, Removal):
                removal = text
            else:
                good[number] = text
        if gold is None:
            accepted |= {number: (text, attempt + 1) for number, text in good.items()}
            continue
        verdicts: Sequence[Verdict] = yield [
            Judge(judge, text, gold, extra) for text in good.values()
        ]
        for (number, text), verdict in zip(good.items(), verdicts, strict=True):
            if verdict.correct:
                accepted[number] = (text, attempt + 1)
            else:
                rule = "ungraded" if verdict.grader_failure else "wrong_answer"
                removal = Removal(rule, f"{verdict.extracted}: {verdict.detail}")
    unique: dict[str, Row] = {}
    for number, (text, n_tries) in sorted(accepted.items()):
        index = extra["index"] if isinstance(extra["index"], int) else None
        source = {
            "split": extra.get("split") or "train",
            "index": index,
            "response": number,
            "tries": n_tries,
        }
        conversation = {
            "messages": [
                *(dict(message) for message in shown),
                {"role": "assistant", "content": text},
            ],
            "data_source": row["data_source"],
            "ability": row["ability"],
            "extra_info": {**source, "ground_truth": gold},
        }
        unique.setdefault(text, conversation)
    return list(unique.values()) or removal


def answer_in_actions(
    row: Row, model: str, system: str, responses: int, tries: int
) -> Dialogue[Outcome]:
    """Hold the dialogue about a problem; teacher and student see the suffix on its answer."""
    user = {"role": "user", "content": extract_problem(row) + SUFFIXES.get(row["ability"], "")}
    shown = [{"role": "system", "content": system}, user] if system else [user]
    prompt = [{"role": "system", "content": TEACHER_PROMPT}, user]
    read = partial(read_actions, ability=row["ability"])
    return teach(row, prompt, shown, read, row["judge"], responses=responses, tries=tries)


def answer_in_chains(
    row: Row, model: str, min_steps: int, responses: int, tries: int
) -> Dialogue[Outcome]:
    """Hold the dialogue about a row, in which the teacher also sees a worked example."""
    example = [
        ("system", CHAIN_SYSTEM),
        ("user", CHAIN_EXAMPLE[0]),
        ("assistant", CHAIN_EXAMPLE[1]),
    ]
    prompt = [{"role": role, "content": content} for role, content in example]
    prompt += [message for message in row["prompt"] if message["role"] != "system"]
    read = partial(read_chain, min_steps=min_steps)
    return teach(
        row, prompt, row["prompt"], read, row["data_source"], responses=responses, tries=tries
    )


@program("sft_data")
def main(words: Sequence[str] | None = None) -> int:
    top = build_stage_parser("sft_data", __doc__, SAMPLING)
    top.add_argument(
        "--form", choices=("actions", "chains"), default="actions", help="default: actions"
    )
    top.add_argument(
        "--name",
        default="",
        help="data_source of rows that have none (default: the name of the file)",
    )
    about = "of rows that have none: math, code, or any other word (default: math)"
    top.add_argument("--ability", default="math", help=about)
    top.add_argument(
        "--columns", nargs="+", default=(), help="that hold the problem (default: the usual names)"
    )
    top.add_argument(
        "--responses", type=COUNT, default=1, help="different ones per problem at most (default: 1)"
    )
    top.add_argument(
        "--tries", type=COUNT, default=4, help="answers per response at most (default: 4)"
    )
    top.add_argument("--min-steps", type=COUNT, default=2, help="of a chain (default: 2)")
    about = "of actions: the short prompt of RL (actions, default), none, or a text file"
    top.add_argument("--system-prompt", default="actions", help=about)
    options = top.parse_args(words)
    settings: dict[str, Any] = {"tries": options.tries, "responses": options.responses}
    if options.form == "chains":
        dialogue: Any = partial(answer_in_chains, min_steps=options.min_steps, **settings)
        parse: Any = read_choice_row
        form = {"min_steps": options.min_steps}
    else:
        system = read_system_prompt(options.system_prompt, NAMED_PROMPTS)
        dialogue = partial(answer_in_actions, system=system, **settings)
        parse = partial(
            read_problem_row, name=options.name, ability=options.ability, columns=options.columns
        )
        form = {"own_prompt": system == SYSTEM_PROMPT}
    settings |= {"form": options.form, **form}
    return run_model_stage(
        options,
        dialogue,
        title="SFT data",
        rules=RULES,
        settings=settings,
        schema=lambda path: SCHEMA,
        read=partial(parse_rows, parse=parse),
    )


if __name__ == "__main__":
    sys.exit(main())
