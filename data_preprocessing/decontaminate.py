# SPDX-License-Identifier: Apache-2.0
"""The stage that removes training problems which give away a test problem.

Test problems are those of evaluation tasks and of our own splits other than ``train``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.tasks.task_rows import load_problems
from prime_ext.tasks.value_types import LISTED
from prime_ext.utils.rows import SourceError

from .pipeline_report import MAX_SHOWN
from .problem_sources import SourceProblem
from .stages import Removal, Result, Stage, StageRun
from .text_similarity import LEVELS, MEANING, Level, Settings, SimilarityIndex

# A row to compare with: its task, its number there, its texts.
TestRow = tuple[str, Any, Sequence[str]]
RULE = "contaminated"
ALL = "all"


def _check_known(name: str) -> str:
    known = list_task_names()
    if name != ALL and name not in known and not name.endswith(".yaml"):
        raise ValueError(f"must be {ALL} or one of {', '.join(known)}")
    return name


@dataclass(frozen=True)
class Decontaminate(Settings, Stage):
    """The options, which ``settings/gsm8k_math.yaml`` describes; named tasks must have data."""

    tasks: Annotated[tuple[Annotated[str, AfterValidator(_check_known)], ...], LISTED] = (ALL,)
    data: str = ""
    own_splits: bool = True
    levels: Annotated[tuple[Level, ...], LISTED, Field(min_length=1)] = LEVELS[:-1]

    name = "decontaminate"
    title = "training problems that give away a test problem"

    def meanings(self) -> Mapping[str, str]:
        levels = "; ".join(f"{level}, {MEANING[level]}" for level in self.levels)
        return {
            RULE: f"gives away a problem of an evaluation task or of the own test split: {levels}"
        }

    def run(
        self, problems: Iterator[SourceProblem], run: StageRun
    ) -> Iterator[tuple[SourceProblem, Result]]:
        """Read all rows, then compare those of training. SourceError: a named task has no data."""
        tests, missing = self._load_task_rows(Path(self.data) if self.data else run.data_dir)
        rows = list(problems)
        if self.own_splits:
            rest = (row for row in rows if row.split != "train")
            tests += [(f"{row.data_source} {row.split}", row.index, [row.problem]) for row in rest]
        counts = Counter(task for task, _, _ in tests)
        compared = ", ".join(f"{name} ({n:,})" for name, n in counts.items()) or "nothing"
        run.compared.append(f"compared with {compared}")
        run.compared += [f"not compared with {name}: {why}" for name, why in missing.items()]
        run.skipped += missing
        index = SimilarityIndex(self)
        for _, _, texts in tests:
            index.add(*texts)
        for row in rows:
            match = index.match(row.problem, levels=self.levels) if row.split == "train" else None
            yield row, None if match is None else _build_removal(row.problem, match, tests)

    def _load_task_rows(self, data: Path | None) -> tuple[list[TestRow], dict[str, str]]:
        """Return the rows of the tasks, and why tasks have no data here, by their names."""
        rows: list[TestRow] = []
        missing = {}
        for name in list_task_names() if ALL in self.tasks else self.tasks:
            try:
                task = load_task(name)
                problems = load_problems(task, data)
            except SourceError as error:
                if name in self.tasks:
                    raise SourceError(f"decontaminate.tasks: {error}") from error
                # Leave out the name of the task, and the folder of the data on this machine.
                reason = str(error).partition(": ")[2]
                reason = reason if data is None else reason.replace(f"{data}/", "")
                missing[name] = reason
                continue
            rows += [
                (task.name, row, list(task.problem_texts(problem)))
                for row, problem in problems.items()
            ]
        return rows, missing


def _build_removal(text: str, match: tuple[str, float, int], tests: Sequence[TestRow]) -> Removal:
    level, similarity, number = match
    task, row, texts = tests[number]
    shown = "\n".join(texts)[:MAX_SHOWN]
    details = {
        "task": task,
        "task_row": row,
        "level": level,
        "similarity": round(similarity, 4),
        "task_text": shown,
    }
    words = f"{task} {row}, {level} ({similarity:.2f}): {shown}"
    return Removal(RULE, words, details | {"text": text[:MAX_SHOWN]})
