# SPDX-License-Identifier: Apache-2.0
"""Reasoning chains for the numeric sets, written by a teacher, as chats for verl's SFT trainer.

    python -m data_preprocessing.numeric_expansion --input data/numeric/train.parquet --output-dir data/numeric_sft \\
        --chains 4 BACKEND

Input are rows of ``data_preprocessing.numeric_reasoning``. The teacher sees one worked example and the prompt of the
row; a chain stays if it has the form that the prompt asks for and names the gold option. Otherwise the teacher is asked
again, up to --tries times per chain, each with a seed of its own. The output is what
``recipes/pspo_wrs/run_abel-7b_sft_fsdp.sh`` trains on. The form is that of the responses of PSPO (arXiv 2411.11681):

    [1] There are 14 pears of Mira and 9 of her brother.
    [2] 14 + 9 = 23.
    Thus, the answer is option 1. #### 1
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_preprocessing.command import Made, positive
from data_preprocessing.dialogues import Dialogue
from data_preprocessing.model_stage import (
    Outcome,
    Row,
    check_row,
    read_schema,
    run_command,
    run_model_stage,
    stage_parser,
)
from data_preprocessing.sft_data import SCHEMA, TEACHER_RULES, teach
from data_preprocessing.stages import Removal
from prime_ext.generate.backend import Sampling
from prime_ext.utils.rows import BadRow
from prime_ext.verifiers.sources import UnknownSource, source_of

# The temperature of the published expansion.
SAMPLING = Sampling(temperature=0.8, max_new_tokens=512)
RULES = {
    "truncated": TEACHER_RULES["truncated"],
    "no_answer_line": "the last line is not: Thus, the answer is option N. #### N",
    "no_chain": "a line before the last is no step, or steps do not count 1, 2, 3, ...",
    "too_short": "fewer steps than --min-steps",
    **TEACHER_RULES,
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


SYSTEM = "You reason about quantities with the care of an expert, in short numbered steps."
EXAMPLE = (
    "Compare the quantities of the two statements.\n"
    "Write short steps, each on a line of its own, marked [1], [2], [3] and so on.\n"
    "End with the line: Thus, the answer is option N. #### N\n"
    "Here N is the number of the option you choose.\n"
    "### statement1: A baker sold 3 trays of 12 rolls each and kept 5 rolls.\n"
    "### statement2: The baker had 40 rolls.\n"
    "### option1: entailment\n"
    "### option2: contradiction\n"
    "### Response: Let's think step by step.",
    written(
        [
            "3 trays of 12 rolls are 3 * 12 = 36 rolls.",
            "With the 5 rolls that were kept these are 36 + 5 = 41 rolls.",
            "Statement 2 says 40 rolls, which is not 41, so it is wrong.",
        ],
        2,
    ),
)


def expanding(row: Row, model: str, chains: int, tries: int, min_steps: int) -> Dialogue[Outcome]:
    """The dialogue about a row: the teacher sees one worked example, then what the row shows."""
    example = [("system", SYSTEM), ("user", EXAMPLE[0]), ("assistant", EXAMPLE[1])]
    prompt = [{"role": role, "content": content} for role, content in example]
    prompt += [message for message in row["prompt"] if message["role"] != "system"]
    read = partial(read_chain, min_steps=min_steps)
    return teach(row, prompt, row["prompt"], read, row["data_source"], responses=chains, tries=tries)


def choice_row(raw: Mapping[str, Any], *place: object) -> Row:
    """An RL row that is multiple choice, else BadRow."""
    row = check_row(raw)
    try:
        task = source_of(row["data_source"]).task
    except UnknownSource:
        task = "unknown"
    if task != "choice":
        raise BadRow(f"{row['data_source']} is of {task}, not of the numeric sets")
    return row


def schema_of(path: Path) -> pa.Schema:
    """Looks at the file before a model is loaded."""
    read_schema(path)
    return SCHEMA


def run(options: argparse.Namespace) -> Made:
    """Ask, check and write. Returns the report and the parquet files."""
    positive(options, "chains", "tries", "min_steps")
    settings = {name: getattr(options, name) for name in ("chains", "tries", "min_steps")}
    dialogue = partial(expanding, **settings)
    return run_model_stage(
        options,
        dialogue,
        title="Numeric reasoning chains",
        rules=RULES,
        settings=settings,
        schema=schema_of,
        parse=choice_row,
    )


def main(words: Sequence[str] | None = None) -> int:
    top = stage_parser("numeric_expansion", __doc__, SAMPLING)
    top.add_argument("--chains", type=int, default=1, help="different ones per problem at most (default: 1)")
    top.add_argument("--tries", type=int, default=4, help="answers per chain at most (default: 4)")
    top.add_argument("--min-steps", type=int, default=2, help="of a chain (default: 2)")
    return run_command(top, run, words)


if __name__ == "__main__":
    sys.exit(main())
