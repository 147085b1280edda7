# SPDX-License-Identifier: Apache-2.0
"""The stage that removes duplicates among training problems: of every group of twins the first one stays."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_preprocessing.code_problem import CodeProblem
from data_preprocessing.duplicates import TWIN_LEVELS, TWIN_MEANING, Compared, Sketcher, first_of_each
from data_preprocessing.math_problem import MathProblem
from data_preprocessing.stage import Problem, Removal, Stage, first_removal
from data_preprocessing.stage_kind import Rows, StageKind
from data_preprocessing.stage_rows import read_items
from data_preprocessing.stage_runner import Parts, run_parts
from data_preprocessing.tally import MAX_SHOWN
from data_preprocessing.text_similarity import Settings
from prime_ext.utils.files import atomic_path
from prime_ext.verifiers.math.normalize import normalize

RULE = "duplicate_{}"


@dataclass(frozen=True)
class DuplicateOptions:
    """Options of the stage.

    Attributes:
        levels: which twins go, of :data:`TWIN_LEVELS`.
        threshold: Jaccard similarity of near twins.
        ngram: words of a word n-gram.
        ngram_share: share of the shorter text's n-grams that n-gram twins have in common.
        same_answer: twins of math problems must have the same answer, since another number or sign makes another
            problem; the same text but for white space goes whatever its answer is.
        mask_numbers: problems that differ in numbers only are near twins.
    """

    levels: tuple[str, ...] = TWIN_LEVELS
    threshold: float = 0.8
    ngram: int = 8
    ngram_share: float = 0.7
    same_answer: bool = True
    mask_numbers: bool = False

    def __post_init__(self) -> None:
        check_similarity(self, TWIN_LEVELS)

    def similarity(self) -> Settings:
        return Settings(
            threshold=self.threshold,
            ngram=self.ngram,
            ngram_share=self.ngram_share,
            mask_numbers=self.mask_numbers,
        )


def check_similarity(options: Any, levels: Sequence[str]) -> None:
    """Check the options that both stages of this kind have.

    Raises:
        ValueError: one of them makes no sense.
    """
    for name in options.levels:
        if name not in levels:
            raise ValueError(f"levels has {name!r}, which is none of {', '.join(levels)}")
    if not options.levels:
        raise ValueError(f"levels is empty; it needs some of {', '.join(levels)}")
    for name in ("threshold", "ngram_share"):
        if not 0 < getattr(options, name) <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(options, name)}")
    if options.ngram < 1:
        raise ValueError(f"ngram must be at least 1, got {options.ngram}")


def _compared(problem: Problem, same_answer: bool) -> Compared:
    answer = normalize(problem.answer) if same_answer and isinstance(problem, MathProblem) else ""
    return Compared(problem.problem, answer)


@dataclass(frozen=True)
class _Sketches:
    """Work for :func:`run_parts`: the keys of the training problems of a file, as ``<part>.npy``."""

    options: DuplicateOptions

    def __call__(self, rows: Path, part: Path) -> dict[str, Any]:
        sketcher = Sketcher(self.options.similarity())
        keys = [sketcher.keys(item.problem.problem) for item in read_items(rows) if item.problem.split == "train"]
        with atomic_path(part.with_suffix(".npy")) as path:
            np.save(path, np.array(keys, dtype=np.uint64))
        return {"rows": len(keys)}


def name_of(problem: Problem) -> list[Any]:
    """What tells a problem from all others, as JSON."""
    return [problem.data_source, problem.split, problem.index]


def survey(options: DuplicateOptions, rows: Rows, plan: Path) -> None:
    """Find the twins; ``plan`` gets a line for each row that goes."""
    parts = Parts(rows.folder, {"options": asdict(options), "rows": rows.identity})
    found = [
        parts.path(number, ".npy")
        for number, summary in run_parts(
            iter(rows.parts), _Sketches(options), parts, min(rows.workers, len(rows.parts))
        )
        if summary["rows"]
    ]
    keys = np.concatenate([np.load(path) for path in found]) if found else np.zeros((0, 1), dtype=np.uint64)
    # Numbers of rows are turned into names on the way: first those that stay, then those that go.
    twins = list(first_of_each(keys, _training(rows, options), options.similarity(), options.levels))
    wanted = {twin.of for twin in twins}
    staying: dict[int, Problem] = {}
    going = {twin.row: twin for twin in twins}
    with atomic_path(plan) as path, path.open("w", encoding="utf-8") as lines:
        for number, item in enumerate(item for item in rows if item.problem.split == "train"):
            if number in wanted:
                staying[number] = item.problem
            elif number in going:
                twin = going[number]
                of = staying[twin.of]
                record = {"name": name_of(item.problem), "of": name_of(of), "of_text": of.problem[:MAX_SHOWN]}
                lines.write(json.dumps(record | {"level": twin.level, "similarity": round(twin.similarity, 4)}) + "\n")


def _training(rows: Rows, options: DuplicateOptions) -> Iterator[Compared]:
    for item in rows:
        if item.problem.split == "train":
            yield _compared(item.problem, options.same_answer)


@lru_cache(maxsize=2)
def _plan(path: Path) -> Mapping[tuple[Any, ...], Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return {tuple(found["name"]): found for found in map(json.loads, lines)}


def stage(options: DuplicateOptions, plan: Path | None) -> Stage:
    """The stage that removes what the survey wrote down."""
    assert plan is not None
    return first_removal(_remover(_plan(plan)))


def _remover(plan: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> Callable[[Problem], Removal | None]:
    def remove(problem: Problem) -> Removal | None:
        found = plan.get(tuple(name_of(problem)))
        if found is None:
            return None
        source, _, index = found["of"]
        details = {key: found[key] for key in ("level", "similarity", "of", "of_text")}
        words = f"{source} {index} ({found['similarity']:.2f}): {found['of_text']}"
        return Removal(RULE.format(found["level"]), words, details | {"text": problem.problem[:MAX_SHOWN]})

    return remove


DEDUPLICATE = StageKind(
    name="deduplicate",
    title="duplicates among training problems; the first one stays",
    of=(MathProblem, CodeProblem),
    options=DuplicateOptions,
    rules=lambda options: {
        RULE.format(level): f"twin of a training problem before it: {TWIN_MEANING[level]}"
        for level in TWIN_LEVELS
        if level in options.levels
    },
    make=stage,
    survey=survey,
)
