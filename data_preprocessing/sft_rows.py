# SPDX-License-Identifier: Apache-2.0
"""Problems of the SFT data: RL rows, or rows of any instruction set, with a gold answer where there is one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_preprocessing.math_problem import gsm8k_row, solved_row
from data_preprocessing.problem_texts import problem_texts
from data_preprocessing.rl_input import Row, checked_row, problem_of
from data_preprocessing.self_grading import ungradable
from data_preprocessing.tally import MAX_SHOWN
from prime_ext.tasks.cells import RowError
from prime_ext.utils.rows import BadRow, SourceError, read_source
from prime_ext.verifiers.sources import UnknownSource, source_of

# Who judges gold answers of sets without a data source.
MATH = "math"

# Six words in a row are an explanation, which no final answer of a response equals.
_PROSE = re.compile(r"(?:[A-Za-z]{2,}[,.;:]? +){5}[A-Za-z]{2,}")


def problem_row(raw: Mapping[str, Any] | BadRow, number: int, name: str, ability: str, columns: Sequence[str]) -> Row:
    """A row as a problem.

    It has ``data_source``, ``ability``, ``problem``, ``gold`` (or None), ``judge`` (the data source that decides for
    the verifier) and ``extra_info``.

    Args:
        raw: an RL row, or one of an instruction set.
        number: of the row in its file, from 1.
        name: of the instruction set.
        ability: of the instruction set.
        columns: that hold the problem of an instruction set; empty to look for the usual names.

    Raises:
        BadRow: it is neither.
    """
    if isinstance(raw, BadRow):
        raise raw
    if isinstance(raw.get("reward_model"), Mapping):
        row = checked_row(raw)
        try:
            source_of(row["data_source"])
        except UnknownSource as error:
            raise BadRow(str(error).partition(";")[0]) from error
        place = {name: row[name] for name in ("data_source", "ability", "extra_info")}
        judged = {"gold": row["reward_model"]["ground_truth"], "judge": row["data_source"]}
        return {**place, "problem": problem_of(row), **judged}
    texts = problem_texts(raw, columns)
    gold = gold_of(raw) if ability == "math" else None
    return {
        "data_source": name,
        "ability": ability,
        "extra_info": {"split": "train", "index": number - 1},
        "problem": "\n\n".join(texts),
        "gold": gold,
        "judge": MATH,
    }


def gold_of(raw: Mapping[str, Any]) -> str | None:
    """The gold answer of a mathematical instruction that the verifier can use, or None."""
    if not any(raw.get(name) for name in ("answer", "expected_answer", "solution")):
        return None
    try:
        if "question" in raw and "####" in str(raw.get("answer")):
            gold = gsm8k_row(raw)[2]
        else:
            # Whatever the column of the problem is called.
            gold = solved_row({"problem": "-", **{name: raw[name] for name in raw if name != "question"}})[2]
    except (BadRow, RowError):
        return None
    return gold if gold and not _PROSE.search(gold) and ungradable(gold) is None else None


def problem_rows(path: Path, *, name: str, ability: str, columns: Sequence[str]) -> Iterator[tuple[int, Row | BadRow]]:
    """The rows of a file with their numbers.

    Raises:
        SourceError: the file cannot be read.
    """
    for number, raw in read_source(path):
        try:
            yield number, problem_row(raw, number, name or path.name.split(".")[0], ability, columns)
        except BadRow as error:
            yield number, error


def named(row: Row) -> tuple[str, str]:
    """Split and data source."""
    return str(row["extra_info"]["split"]), str(row["data_source"])


def shown(row: Row) -> dict[str, str]:
    """What reports show of a problem."""
    return {"problem": row["problem"][:MAX_SHOWN], "answer": (row["gold"] or "")[:MAX_SHOWN]}


def readable(path: Path) -> None:
    """Look at a file before a model is loaded.

    Raises:
        SourceError: it cannot be read, or has no rows.
    """
    for _ in read_source(path):
        return
    raise SourceError(f"{path} has no rows")
