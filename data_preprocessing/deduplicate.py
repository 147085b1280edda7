# SPDX-License-Identifier: Apache-2.0
"""The stage that keeps only the first of duplicates among training problems.

It reads the rows twice. First :func:`sketch` makes 33 keys of each text: a digest of its wording,
the bands of its MinHash signature (Broder 1997) and the least of the hashes of its word n-grams.
Then :func:`find_twins` compares each row, in order, with the rows that stay and share a key with
it: exactly, so without false hits. A row goes if it is a twin of one that stays. Twins of removed
rows may stay, so a chain of small differences does not remove a different text.

The keys propose the share ``1 - (1 - threshold**5) ** 16`` of near twins at the threshold, and
about ``1 - (1 - J) ** 16`` of n-gram twins, J being the Jaccard similarity of their n-gram sets.
Memory: 264 bytes a row, twice that while they are sorted, and the texts of the rows that share
keys.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field

from prime_ext.tasks.value_types import LISTED
from prime_ext.verifiers.math.notation import normalize

from .math_sources import MathProblem
from .pipeline_report import MAX_SHOWN
from .problem_sources import SourceProblem
from .stages import Removal, Result, Stage, StageRun
from .text_similarity import (
    BANDS,
    LEAST_NGRAMS,
    MEANING,
    Settings,
    compute_jaccard,
    compute_signature,
    make_shingles,
    make_word_ngrams,
    normalize_wording,
)

TwinLevel = Literal["exact", "near", "ngrams"]
TWIN_LEVELS: tuple[TwinLevel, ...] = get_args(TwinLevel)
TWIN_MEANING = {
    "exact": MEANING["normalized"],
    "near": "Jaccard similarity of the character n-grams at the threshold or above",
    "ngrams": "most word n-grams of the shorter text are in the other one",
}
N_NGRAM_KEYS = 16
N_KEYS = 1 + BANDS + N_NGRAM_KEYS
# Phrases of more rows than this are boilerplate ("print the answer modulo 1000000007").
MOST_ROWS_OF_A_PHRASE = 100
# Rows that are compared per key at most, so that families of near twins have no quadratic cost.
MOST_COMPARED = 64


def _key(data: bytes, space: bytes) -> int:
    """Return 64 bits, never 0, which stands for a missing key."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=space).digest(), "big") or 1


def sketch(text: str, settings: Settings) -> np.ndarray:
    """Return the uint64 keys of a text: 1 of its wording, 1 per band, 16 of n-grams or else 0."""
    values = compute_signature(make_shingles(text, mask_numbers=False)).hashvalues.reshape(
        BANDS, -1
    )
    bands = [_key(band.tobytes(), b"band %d" % number) for number, band in enumerate(values)]
    ngrams = make_word_ngrams(text, settings.ngram)
    least = sorted(_key(ngram.encode(), b"ngram") for ngram in ngrams)[:N_NGRAM_KEYS]
    if len(ngrams) < LEAST_NGRAMS:
        least = []
    row = [_key(normalize_wording(text).encode(), b"exact"), *bands, *least]
    return np.array(row + [0] * (N_KEYS - len(row)), dtype=np.uint64)


@dataclass(frozen=True)
class Compared:
    """A row to compare: text, name, and its answer if twins must have the same (else empty)."""

    text: str
    answer: str = ""
    name: Any = None


def find_twin_level(
    new: Compared, old: Compared, settings: Settings, levels: Sequence[str]
) -> tuple[str, float] | None:
    """Return the most literal level at which two rows are twins, and the similarity, or None.

    Rows with different answers are twins only if they are the same text but for white space: the
    wording ignores the parentheses of ``8 / (4 / 2)``.
    """
    if new.answer != old.answer:
        same = "exact" in levels and new.text.split() == old.text.split()
        return ("exact", 1.0) if same else None
    if "exact" in levels and normalize_wording(new.text) == normalize_wording(old.text):
        return "exact", 1.0
    if "near" in levels:
        similarity = compute_jaccard(
            *(make_shingles(row.text, mask_numbers=False) for row in (new, old))
        )
        if similarity >= settings.threshold:
            return "near", similarity
    if "ngrams" in levels:
        left = make_word_ngrams(new.text, settings.ngram)
        right = make_word_ngrams(old.text, settings.ngram)
        shorter = min(len(left), len(right))
        if shorter >= LEAST_NGRAMS and len(left & right) >= settings.ngram_share * shorter:
            return "ngrams", len(left & right) / shorter
    return None


def keep_shared_keys(keys: np.ndarray) -> np.ndarray:
    """Return a copy in which keys of a single row, and phrases of too many rows, are 0."""
    shared = keys.copy()
    groups: list[tuple[slice, int | None]] = [
        (slice(column, column + 1), None) for column in range(1 + BANDS)
    ]
    for columns, most in [*groups, (slice(1 + BANDS, None), MOST_ROWS_OF_A_PHRASE)]:
        _, inverse, counts = np.unique(keys[:, columns], return_inverse=True, return_counts=True)
        n_rows = counts[inverse].reshape(keys[:, columns].shape)
        alone = (n_rows < 2) | (False if most is None else n_rows > most)
        shared[:, columns][alone] = 0
    return shared


def find_twins(
    rows: Iterable[Compared],
    keys: np.ndarray,
    settings: Settings,
    levels: Sequence[str] = TWIN_LEVELS,
) -> Iterator[tuple[Compared, str, float] | None]:
    """Yield each row's twin among the earlier rows that stay, or None without one.

    A twin comes with the most literal level and the similarity. ``keys`` are those of
    :func:`sketch` for all rows, [rows, keys].
    """
    staying: dict[int, list[int]] = {}
    kept: dict[int, Compared] = {}
    for number, (row, shared) in enumerate(zip(rows, keep_shared_keys(keys), strict=True)):
        row_keys = [int(key) for key in shared if key]
        twins = []
        for other in sorted({other for key in row_keys for other in staying.get(key, ())}):
            twin = find_twin_level(row, kept[other], settings, levels)
            if twin is not None:
                twins.append((other, *twin))
        if twins:
            other, level, similarity = min(
                twins, key=lambda hit: (TWIN_LEVELS.index(hit[1]), -hit[2], hit[0])
            )  # type: ignore[arg-type]
            yield kept[other], level, similarity
            continue
        if row_keys:
            kept[number] = row
        for key in row_keys:
            if len(staying.setdefault(key, [])) < MOST_COMPARED:
                staying[key].append(number)
        yield None


@dataclass(frozen=True)
class Deduplicate(Settings, Stage):
    """The options, which ``settings/gsm8k_math.yaml`` describes.

    With ``same_answer``, twins of math problems must have the same answer, since another number or
    sign makes another problem. Texts that differ only in white space are twins with any answers.
    """

    levels: Annotated[tuple[TwinLevel, ...], LISTED, Field(min_length=1)] = TWIN_LEVELS
    same_answer: bool = True

    name = "deduplicate"
    title = "duplicates among training problems; the first one stays"

    def meanings(self) -> Mapping[str, str]:
        return {
            f"duplicate_{level}": f"twin of a training problem before it: {TWIN_MEANING[level]}"
            for level in TWIN_LEVELS
            if level in self.levels
        }

    def run(
        self, problems: Iterator[SourceProblem], run: StageRun
    ) -> Iterator[tuple[SourceProblem, Result]]:
        # All keys come before the first comparison.
        rows = list(problems)
        training = [row for row in rows if row.split == "train"]
        keys = np.empty((len(training), N_KEYS), dtype=np.uint64)
        for number, row in enumerate(training):
            keys[number] = sketch(row.problem, self)
        twins = find_twins(map(self._build_compared, training), keys, self, self.levels)
        for problem in rows:
            twin = next(twins) if problem.split == "train" else None
            yield problem, None if twin is None else self._build_removal(problem, *twin)

    def _build_compared(self, problem: SourceProblem) -> Compared:
        compares_answers = self.same_answer and isinstance(problem, MathProblem)
        answer = normalize(problem.answer) if compares_answers else ""
        # A list, for JSON; it identifies the problem.
        name = [problem.data_source, problem.split, problem.index]
        return Compared(problem.problem, answer, name)

    def _build_removal(
        self, problem: SourceProblem, twin: Compared, level: str, similarity: float
    ) -> Removal:
        shown = {
            "level": level,
            "similarity": round(similarity, 4),
            "of": twin.name,
            "of_text": twin.text[:MAX_SHOWN],
        }
        source, _, index = twin.name
        words = f"{source} {index} ({shown['similarity']:.2f}): {shown['of_text']}"
        return Removal(f"duplicate_{level}", words, shown | {"text": problem.problem[:MAX_SHOWN]})
