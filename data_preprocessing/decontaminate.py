# SPDX-License-Identifier: Apache-2.0
"""The stage that removes training problems which give away a problem of an evaluation task or of our own test split."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.math_sources import MathProblem
from data_preprocessing.report import MAX_SHOWN
from data_preprocessing.row_source import Problem
from data_preprocessing.stage import LISTED, Removal, Result, Rows, Stage
from data_preprocessing.text_similarity import LEVELS, MEANING, Level, Settings, Share, SimilarityIndex
from prime_ext.tasks.task_file import TaskError, load_task, task_names
from prime_ext.tasks.task_rows import NoData, load_problems
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.rows import SourceError

RULE = "contaminated"
ALL = "all"


def _known(name: str) -> str:
    known = task_names()
    if name != ALL and name not in known and not name.endswith(".yaml"):
        raise ValueError(f"must be {ALL} or one of {', '.join(known)}")
    return name


@dataclass(frozen=True)
class Decontaminate(Stage):
    """The options; ``settings/gsm8k_math.yaml`` says what they mean. Tasks that are named must be there."""

    tasks: Annotated[tuple[Annotated[str, AfterValidator(_known)], ...], LISTED] = (ALL,)
    data: str = ""
    own_splits: bool = True
    levels: Annotated[tuple[Level, ...], LISTED, Field(min_length=1)] = LEVELS[:-1]
    threshold: Share = 0.8
    ngram: PositiveInt = 8
    ngram_share: Share = 0.7

    name, title = "decontaminate", "training problems that give away a test problem"
    of = (MathProblem, CodeProblem)
    surveys = True

    def meanings(self) -> Mapping[str, str]:
        levels = "; ".join(f"{level}, {MEANING[level]}" for level in self.levels)
        return {RULE: f"gives away a problem of an evaluation task or of the own test split: {levels}"}

    def survey(self, rows: Rows, plan: Path) -> None:
        """Write the test rows to ``plan``: those of the tasks, then our own; and which tasks have no data here.

        Raises:
            SourceError: a task that was named has no data here.
        """
        write_json_lines(plan, self._test_rows(rows))

    def _test_rows(self, rows: Rows) -> Iterator[dict[str, Any]]:
        data = Path(self.data) if self.data else rows.data_dir
        for name in task_names() if ALL in self.tasks else self.tasks:
            try:
                task = load_task(name)
                problems = load_problems(task, data)
            except (NoData, TaskError) as error:
                if name in self.tasks:
                    raise SourceError(f"decontaminate.tasks: {error}") from error
                # Neither the name of the task nor the place of the data, which is the machine's.
                reason = str(error).partition(": ")[2]
                yield {"missing": name, "reason": reason if data is None else reason.replace(f"{data}/", "")}
                continue
            for row, problem in problems.items():
                yield {"task": task.name, "row": row, "texts": list(task.problem_texts(problem))}
        if self.own_splits:
            for own in (problem for problem in rows if problem.split != "train"):
                yield {"task": f"{own.data_source} {own.split}", "row": own.index, "texts": [own.problem]}

    def used(self, plan: Path) -> list[str]:
        """What the training rows were compared with, and what they were not."""
        found = _lines(plan)
        counts = Counter(row["task"] for row in found if "task" in row)
        compared = ", ".join(f"{name} ({n:,})" for name, n in counts.items()) or "nothing"
        missing = [f"not compared with {row['missing']}: {row['reason']}" for row in found if "missing" in row]
        return [f"compared with {compared}", *missing]

    def result(self, problem: Problem, plan: Path | None) -> Result:
        assert plan is not None
        index, shown = _index(plan, Settings(self.threshold, ngram=self.ngram, ngram_share=self.ngram_share))
        match = index.match(problem.problem, levels=self.levels) if problem.split == "train" else None
        if match is None:
            return problem
        level, similarity, number = match
        task, row, text = shown[number]
        found = {"task": task, "task_row": row, "level": level, "similarity": round(similarity, 4), "task_text": text}
        details = found | {"text": problem.problem[:MAX_SHOWN]}
        return Removal(RULE, f"{task} {row}, {level} ({similarity:.2f}): {text}", details)


def _lines(plan: Path) -> list[dict[str, Any]]:
    with plan.open(encoding="utf-8") as lines:
        return list(map(json.loads, lines))


@lru_cache(maxsize=2)
def _index(plan: Path, settings: Settings) -> tuple[SimilarityIndex, list[tuple[str, Any, str]]]:
    index = SimilarityIndex(settings)
    rows = [found for found in _lines(plan) if "task" in found]
    for found in rows:
        index.add(*found["texts"])
    return index, [(found["task"], found["row"], "\n".join(found["texts"])[:MAX_SHOWN]) for found in rows]
