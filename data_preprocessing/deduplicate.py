# SPDX-License-Identifier: Apache-2.0
"""The stage that removes duplicates among training problems: of every group of twins the first one stays.

Two steps. :func:`sketch` makes 33 keys of each text, which can be done in any order and process: a digest of its
wording, the bands of its MinHash signature (Broder 1997) and the least of the hashes of its word n-grams. Then
:func:`first_of_each` goes through the rows that share a key with another one, in order, and compares each with the rows
that stay and share a key with it: exactly, so that there are no false hits. A row goes if it is a twin of one that
stays; being a twin is not passed on, so no chain of small differences removes what is different.

Of near twins at the threshold, the keys propose the share that :meth:`Settings.recall` says; of n-gram twins
about ``1 - (1 - J) ** 16``, J being the Jaccard similarity of their n-gram sets. Memory: 264 bytes a row, as much again
while they are sorted, and the texts of the rows that share keys.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, PositiveInt

from data_preprocessing.code_sources import CodeProblem
from data_preprocessing.contamination_index import wording
from data_preprocessing.math_sources import MathProblem
from data_preprocessing.parts import Parts, run_parts
from data_preprocessing.report import MAX_SHOWN
from data_preprocessing.row_source import Problem
from data_preprocessing.stage import LISTED, Removal, Rows, Stage, StageKind, first_removal, read_items
from data_preprocessing.text_similarity import (
    Settings,
    Share,
    jaccard,
    shingles,
    signature,
    word_ngrams,
)
from prime_ext.step_rm.question_split import normal_form
from prime_ext.utils.files import atomic_path
from prime_ext.verifiers.math.normalize import normalize

TwinLevel = Literal["exact", "near", "ngrams"]
TWIN_LEVELS: tuple[TwinLevel, ...] = get_args(TwinLevel)
TWIN_MEANING = {
    "exact": "the same words, numbers and operators; case, white space, punctuation and LaTeX layout aside",
    "near": "Jaccard similarity of the character n-grams at the threshold or above",
    "ngrams": "most word n-grams of the shorter text are in the other one",
}
N_NGRAM_KEYS = 16
# Phrases of more rows than this name nothing ("print the answer modulo 1000000007").
MOST_ROWS_OF_A_PHRASE = 100
# Rows that stay and share a key are compared up to this number, so that families of near twins cost no square.
MOST_COMPARED = 64


def _key(data: bytes, space: bytes) -> int:
    """64 bits, never 0: that stands for no key."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=space).digest(), "big") or 1


def sketch(text: str, settings: Settings) -> np.ndarray:
    """The keys of a text, uint64: one of its wording, one per band, 16 of n-grams (0 where there are fewer)."""
    values = signature(_shingles(text, settings), settings).hashvalues.reshape(settings.bands, settings.rows)
    bands = [_key(band.tobytes(), b"band %d" % number) for number, band in enumerate(values)]
    ngrams = word_ngrams(normal_form(text, False), settings.ngram)
    least = sorted(_key(ngram.encode(), b"ngram") for ngram in ngrams)[:N_NGRAM_KEYS]
    if len(ngrams) < settings.least_ngrams:
        least = []
    row = [_key(wording(text).encode(), b"exact"), *bands, *least]
    return np.array(row + [0] * (1 + settings.bands + N_NGRAM_KEYS - len(row)), dtype=np.uint64)


@dataclass(frozen=True)
class Twin:
    """A row that goes: its number, that of the row that stays, the most literal level, and the similarity."""

    row: int
    of: int
    level: str
    similarity: float


@dataclass(frozen=True)
class Compared:
    """A row to compare: its text, and its answer if twins must have the same (else empty)."""

    text: str
    answer: str = ""


@lru_cache(maxsize=4096)
def _shingles(text: str, settings: Settings) -> frozenset[int]:
    return shingles(normal_form(text, settings.mask_numbers), settings.shingle)


@lru_cache(maxsize=4096)
def _ngrams(text: str, size: int) -> frozenset[str]:
    return word_ngrams(normal_form(text, False), size)


def twin_level(new: Compared, old: Compared, settings: Settings, levels: Sequence[str]) -> tuple[str, float] | None:
    """The most literal of the levels at which two rows are twins, with the similarity, or None.

    Rows with different answers are twins only if they are the same text but for white space: the wording does not see
    the parentheses of ``8 / (4 / 2)``.
    """
    if new.answer != old.answer:
        same = "exact" in levels and new.text.split() == old.text.split()
        return ("exact", 1.0) if same else None
    if "exact" in levels and wording(new.text) == wording(old.text):
        return "exact", 1.0
    if "near" in levels:
        similarity = jaccard(_shingles(new.text, settings), _shingles(old.text, settings))
        if similarity >= settings.threshold:
            return "near", similarity
    if "ngrams" in levels:
        left, right = _ngrams(new.text, settings.ngram), _ngrams(old.text, settings.ngram)
        shorter = min(len(left), len(right))
        if shorter >= settings.least_ngrams and len(left & right) >= settings.ngram_share * shorter:
            return "ngrams", len(left & right) / shorter
    return None


def shared_keys(keys: np.ndarray, bands: int) -> np.ndarray:
    """The keys with 0 in place of those that no other row has, and of phrases that too many rows have."""
    shared = keys.copy()
    groups: list[tuple[slice, int | None]] = [(slice(column, column + 1), None) for column in range(1 + bands)]
    for columns, most in [*groups, (slice(1 + bands, None), MOST_ROWS_OF_A_PHRASE)]:
        _, place, counts = np.unique(keys[:, columns], return_inverse=True, return_counts=True)
        n_rows = counts[place].reshape(keys[:, columns].shape)
        alone = (n_rows < 2) | (False if most is None else n_rows > most)
        shared[:, columns][alone] = 0
    return shared


def first_of_each(
    keys: np.ndarray, rows: Iterator[Compared], settings: Settings, levels: Sequence[str] = TWIN_LEVELS
) -> Iterator[Twin]:
    """The rows that go, in order.

    ``keys`` has those of all rows, [rows, keys], in the order of ``rows``.
    """
    shared = shared_keys(keys, settings.bands)
    staying: dict[int, list[int]] = {}
    texts: dict[int, Compared] = {}
    for number, row in enumerate(rows):
        own = [int(key) for key in shared[number] if key]
        if not own:
            continue
        others = sorted({other for key in own for other in staying.get(key, ())})
        found = [(other, twin) for other in others if (twin := twin_level(row, texts[other], settings, levels))]
        if found:
            other, (level, similarity) = min(found, key=lambda hit: (TWIN_LEVELS.index(hit[1][0]), -hit[1][1], hit[0]))
            yield Twin(number, other, level, similarity)
            continue
        texts[number] = row
        for key in own:
            kept = staying.setdefault(key, [])
            if len(kept) < MOST_COMPARED:
                kept.append(number)


RULE = "duplicate_{}"


@dataclass(frozen=True)
class DuplicateOptions:
    """Options of the stage; ``settings/gsm8k_math.yaml`` says what they mean.

    With ``same_answer``, twins of math problems must have the same answer, since another number or sign makes another
    problem; the same text but for white space goes whatever its answer is.
    """

    levels: Annotated[tuple[TwinLevel, ...], LISTED, Field(min_length=1)] = TWIN_LEVELS
    threshold: Share = 0.8
    ngram: PositiveInt = 8
    ngram_share: Share = 0.7
    same_answer: bool = True
    mask_numbers: bool = False

    def similarity(self) -> Settings:
        near = {"threshold": self.threshold, "mask_numbers": self.mask_numbers}
        return Settings(**near, ngram=self.ngram, ngram_share=self.ngram_share)  # type: ignore[arg-type]


def _compared(problem: Problem, same_answer: bool) -> Compared:
    answer = normalize(problem.answer) if same_answer and isinstance(problem, MathProblem) else ""
    return Compared(problem.problem, answer)


@dataclass(frozen=True)
class _Sketches:
    """Work for :func:`run_parts`: the keys of the training problems of a file, as ``<part>.npy``."""

    options: DuplicateOptions

    def __call__(self, rows: Path, part: Path) -> dict[str, Any]:
        settings = self.options.similarity()
        keys = [sketch(item.problem.problem, settings) for item in read_items(rows) if item.problem.split == "train"]
        with atomic_path(part.with_suffix(".npy")) as path:
            np.save(path, np.array(keys, dtype=np.uint64))
        return {"rows": len(keys)}


def name_of(problem: Problem) -> list[Any]:
    """What tells a problem from all others, as JSON."""
    return [problem.data_source, problem.split, problem.index]


def survey(options: DuplicateOptions, rows: Rows, plan: Path) -> None:
    """Find the twins; ``plan`` gets a line for each row that goes."""
    parts = Parts(rows.folder, {"options": asdict(options), "rows": rows.identity})
    made = run_parts(iter(rows.parts), _Sketches(options), parts, min(rows.workers, len(rows.parts)))
    found = [np.load(parts.path(number, ".npy")) for number, summary in made if summary["rows"]]
    keys = np.concatenate(found) if found else np.zeros((0, 1), dtype=np.uint64)

    def training() -> Iterator[Problem]:
        return (item.problem for item in rows if item.problem.split == "train")

    compared = (_compared(problem, options.same_answer) for problem in training())
    going = {twin.row: twin for twin in first_of_each(keys, compared, options.similarity(), options.levels)}
    wanted = {twin.of for twin in going.values()}
    # Numbers of rows are turned into names: those that stay come before those that go.
    staying: dict[int, Problem] = {}
    with plan.open("w", encoding="utf-8") as lines:
        for number, problem in enumerate(training()):
            if number in wanted:
                staying[number] = problem
            elif number in going:
                twin = going[number]
                of = staying[twin.of]
                record = {"name": name_of(problem), "of": name_of(of), "of_text": of.problem[:MAX_SHOWN]}
                lines.write(json.dumps(record | {"level": twin.level, "similarity": round(twin.similarity, 4)}) + "\n")


@lru_cache(maxsize=2)
def _plan(path: Path) -> Mapping[tuple[Any, ...], Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return {tuple(found["name"]): found for found in map(json.loads, lines)}


def stage(options: DuplicateOptions, plan: Path | None) -> Stage:
    """The stage that removes what the survey wrote down."""
    assert plan is not None
    twins = _plan(plan)

    def removal(problem: Problem) -> Removal | None:
        found = twins.get(tuple(name_of(problem)))
        if found is None:
            return None
        source, _, index = found["of"]
        details = {key: found[key] for key in ("level", "similarity", "of", "of_text")}
        words = f"{source} {index} ({found['similarity']:.2f}): {found['of_text']}"
        return Removal(RULE.format(found["level"]), words, details | {"text": problem.problem[:MAX_SHOWN]})

    return first_removal(removal)


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
