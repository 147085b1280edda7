# SPDX-License-Identifier: Apache-2.0
"""The stage that removes training problems which give away a problem of an evaluation task or of our own test split."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.contamination_index import LEVELS, MEANING, ContaminationIndex, Level, Place
from data_preprocessing.math_sources import MathProblem
from data_preprocessing.report import MAX_SHOWN
from data_preprocessing.row_source import Problem
from data_preprocessing.stage import LISTED, Removal, Rows, Stage, StageKind, first_removal
from data_preprocessing.text_similarity import Settings, Share
from prime_ext.tasks.task_file import TaskError, load_task, task_names
from prime_ext.tasks.task_rows import NoData, load_problems
from prime_ext.utils.rows import SourceError

RULE = "contaminated"
ALL = "all"


def _known(name: str) -> str:
    known = task_names()
    if name != ALL and name not in known and not name.endswith(".yaml"):
        raise ValueError(f"must be {ALL} or one of {', '.join(known)}")
    return name


@dataclass(frozen=True)
class ContaminationOptions:
    """Options of the stage; ``settings/gsm8k_math.yaml`` says what they mean. Tasks that are named must be there."""

    tasks: Annotated[tuple[Annotated[str, AfterValidator(_known)], ...], LISTED] = (ALL,)
    data: str = ""
    own_splits: bool = True
    levels: Annotated[tuple[Level, ...], LISTED, Field(min_length=1)] = LEVELS[:-1]
    threshold: Share = 0.8
    ngram: PositiveInt = 8
    ngram_share: Share = 0.7

    def similarity(self) -> Settings:
        return Settings(threshold=self.threshold, ngram=self.ngram, ngram_share=self.ngram_share)


def survey(options: ContaminationOptions, rows: Rows, plan: Path) -> None:
    """Write the test rows to ``plan``: those of the tasks, then our own; and which tasks have no data here.

    Raises:
        SourceError: a task that was named has no data here.
    """
    data = Path(options.data) if options.data else rows.data_dir
    with plan.open("w", encoding="utf-8") as lines:
        for name in task_names() if ALL in options.tasks else options.tasks:
            try:
                task = load_task(name)
                problems = load_problems(task, data)
            except (NoData, TaskError) as error:
                if name in options.tasks:
                    raise SourceError(f"decontaminate.tasks: {error}") from error
                lines.write(json.dumps({"missing": name, "reason": _unplaced(str(error), data)}) + "\n")
                continue
            for row, problem in problems.items():
                texts = list(task.problem_texts(problem))
                lines.write(json.dumps({"task": task.name, "row": row, "texts": texts}) + "\n")
        if options.own_splits:
            for item in rows:
                if item.problem.split != "train":
                    name = f"{item.problem.data_source} {item.problem.split}"
                    texts = [item.problem.problem]
                    lines.write(json.dumps({"task": name, "row": item.problem.index, "texts": texts}) + "\n")


def _unplaced(text: str, data: Path | None) -> str:
    """Without the name of the task, and without the place of the data, which is the machine's."""
    reason = text.partition(": ")[2]
    return reason if data is None else reason.replace(f"{data}/", "")


def used(plan: Path) -> list[str]:
    """What the training rows were compared with, and what they were not."""
    counts: dict[str, int] = {}
    missing = []
    with plan.open(encoding="utf-8") as lines:
        for found in map(json.loads, lines):
            if "missing" in found:
                missing.append(f"not compared with {found['missing']}: {found['reason']}")
            else:
                counts[found["task"]] = counts.get(found["task"], 0) + 1
    compared = ", ".join(f"{name} ({n:,})" for name, n in counts.items()) or "nothing"
    return [f"compared with {compared}", *missing]


@lru_cache(maxsize=2)
def _index(plan: Path, settings: Settings) -> tuple[ContaminationIndex, list[tuple[str, Any, str]]]:
    index = ContaminationIndex(settings)
    shown = []
    with plan.open(encoding="utf-8") as lines:
        for number, found in enumerate(found for found in map(json.loads, lines) if "missing" not in found):
            index.add(found["texts"], Place(0, number))
            shown.append((found["task"], found["row"], "\n".join(found["texts"])[:MAX_SHOWN]))
    return index, shown


def stage(options: ContaminationOptions, plan: Path | None) -> Stage:
    """The stage that compares training problems with the rows that the survey wrote down."""
    assert plan is not None
    index, shown = _index(plan, options.similarity())

    def removal(problem: Problem) -> Removal | None:
        match = index.match([problem.problem], options.levels) if problem.split == "train" else None
        if match is None:
            return None
        level, similarity, key = match
        task, row, text = shown[key]
        found = {"task": task, "task_row": row, "level": level, "similarity": round(similarity, 4), "task_text": text}
        details = found | {"text": problem.problem[:MAX_SHOWN]}
        return Removal(RULE, f"{task} {row}, {level} ({similarity:.2f}): {text}", details)

    return first_removal(removal)


DECONTAMINATE = StageKind(
    name="decontaminate",
    title="training problems that give away a test problem",
    of=(MathProblem, CodeProblem),
    options=ContaminationOptions,
    rules=lambda options: {
        RULE: "gives away a problem of an evaluation task or of the own test split: "
        + "; ".join(f"{level}, {MEANING[level]}" for level in options.levels)
    },
    make=stage,
    survey=survey,
    used=used,
)
