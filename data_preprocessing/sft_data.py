# SPDX-License-Identifier: Apache-2.0
"""SFT data: problems answered by a teacher in the action-centric chain of thought, checked, as chats for verl.

    python -m data_preprocessing.sft_data --input problems.jsonl --output-dir data/sft --name numina BACKEND
    python -m data_preprocessing.sft_data --input data/math/train.parquet --output-dir data/sft BACKEND

The teacher sees a long prompt that explains the seven actions, the conversation that is written has the short one of
RL. A response stays if it keeps to the form and, where there is a gold answer, is graded correct; otherwise the teacher
is asked again, up to --tries times, each with a seed of its own. Input is any file of RL rows or of an instruction set
(columns such as problem, question or instruction; --columns names others); with --ability math the gold answer is that
of the column answer or expected_answer, or the last box of the column solution. Interrupted or killed, the same command
goes on and asks nothing twice.

Exits with 1 if nothing is left, with 2 and one line when nothing can be written. See docs/data.md.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_preprocessing import action_format, teacher
from data_preprocessing.dialogues import Dialogue, Judge
from data_preprocessing.model_stage import add_model_arguments, finished, positive, run_model_stage, stage_parser
from data_preprocessing.rl_data import system_prompt
from data_preprocessing.rl_input import Row
from data_preprocessing.row_stage import Outcome, RowStage
from data_preprocessing.sft_prompt import student_messages, teacher_messages
from data_preprocessing.sft_rows import named, problem_rows, readable, shown
from data_preprocessing.stage import Removal
from data_preprocessing.teacher import SCHEMA, Wanted, conversation, taught
from prime_ext.generate.backend import Sampling
from prime_ext.tasks.action_prompt import SYSTEM_PROMPT

SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_new_tokens=4096)
TRIES = 4
RULES = {"truncated": teacher.RULES["truncated"], **action_format.RULES, **teacher.RULES}


def checked(text: str, ability: str) -> str | Removal:
    """The response as it is learnt, or what is wrong with its form."""
    fault = action_format.format_fault(text, ability)
    return text.strip() if fault is None else Removal(*fault)


def answering(row: Row, responses: int, tries: int, system: str) -> Dialogue[Outcome]:
    """The dialogue about a problem."""
    problem, ability, gold = row["problem"], row["ability"], row["gold"]
    wanted = Wanted(
        prompt=teacher_messages(problem, ability),
        responses=responses,
        tries=tries,
        read=partial(checked, ability=ability),
        judge=None if gold is None else lambda text: Judge(row["judge"], text, gold, row["extra_info"]),
    )
    found = yield from taught(wanted)
    if isinstance(found, Removal):
        return found
    return [
        conversation(
            student_messages(problem, ability, response.text, system),
            row["data_source"],
            ability,
            row["extra_info"],
            response,
            gold,
        )
        for response in found
    ]


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[Path]]:
    """Ask, check and write. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
        BackendError: the model cannot be opened.
    """
    positive(options, "tries", "responses")
    system = system_prompt(options.system_prompt)

    def read_schema(path: Path) -> pa.Schema:
        readable(path)
        return SCHEMA

    stage = RowStage(
        "SFT data",
        RULES,
        read=partial(problem_rows, name=options.name, ability=options.ability, columns=options.columns),
        read_schema=read_schema,
        name=named,
        shown=shown,
    )
    return run_model_stage(
        options,
        stage,
        lambda model: partial(answering, responses=options.responses, tries=options.tries, system=system),
        settings={"tries": options.tries, "responses": options.responses, "own_prompt": system == SYSTEM_PROMPT},
    )


def parser() -> argparse.ArgumentParser:
    top = stage_parser("sft_data", __doc__)
    top.add_argument("--name", default="", help="data_source of rows that have none (default: the name of the file)")
    top.add_argument(
        "--ability", default="math", help="of rows that have none: math, code, or any other word (default: math)"
    )
    top.add_argument("--columns", nargs="+", default=(), help="that hold the problem (default: the usual names)")
    top.add_argument("--responses", type=int, default=1, help="different ones per problem at most (default: 1)")
    top.add_argument("--tries", type=int, default=TRIES, help=f"answers per response at most (default: {TRIES})")
    top.add_argument(
        "--system-prompt",
        default="actions",
        help="of the conversations: actions: the short prompt of RL (default); none; or a text file",
    )
    add_model_arguments(top, SAMPLING)
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    return finished("sft_data", lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
