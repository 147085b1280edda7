# SPDX-License-Identifier: Apache-2.0
"""Duplicates in a stream of texts: which rows go, so that of every group of twins the first one stays.

Two steps. :class:`Sketcher` makes 33 keys of each text, which can be done in any order and process: a digest of its
wording, the bands of its MinHash signature (Broder 1997) and the least of the hashes of its word n-grams. Then
:func:`first_of_each` goes through the rows that share a key with another one, in order, and compares each with the rows
that stay and share a key with it: exactly, so that there are no false hits. A row goes if it is a twin of one that
stays; being a twin is not passed on, so no chain of small differences removes what is different.

Of near twins at the threshold, the keys propose the share that :meth:`Settings.recall` says; of n-gram twins
about ``1 - (1 - J) ** 16``, J being the Jaccard similarity of their n-gram sets. Memory: 264 bytes a row, as much again
while they are sorted, and the texts of the rows that share keys.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_preprocessing.contamination_index import wording
from data_preprocessing.text_similarity import Settings, Signer, jaccard, shingles, word_ngrams
from prime_ext.step_rm.question_split import normal_form

TWIN_LEVELS = ("exact", "near", "ngrams")
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


class Sketcher:
    """Makes the keys of texts under some settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._signer = Signer(settings)

    def keys(self, text: str) -> np.ndarray:
        """The keys of a text, uint64: one of its wording, one per band, 16 of n-grams (0 where there are fewer)."""
        settings = self.settings
        values = self._signer.signature(_shingles(text, settings)).hashvalues
        bands = [
            _key(values[band * settings.rows : (band + 1) * settings.rows].tobytes(), b"band %d" % band)
            for band in range(settings.bands)
        ]
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

    Args:
        keys: of all rows, [rows, keys].
        rows: all rows in the order of ``keys``.
        settings: what near means.
        levels: of :data:`TWIN_LEVELS`.
    """
    shared = shared_keys(keys, settings.bands)
    staying: dict[int, list[int]] = {}
    texts: dict[int, Compared] = {}
    for number, row in enumerate(rows):
        own = [int(key) for key in shared[number] if key]
        if not own:
            continue
        others = sorted({other for key in own for other in staying.get(key, ())})
        found = [(other, level) for other in others if (level := twin_level(row, texts[other], settings, levels))]
        if found:
            other, (level, similarity) = min(found, key=lambda hit: (TWIN_LEVELS.index(hit[1][0]), -hit[1][1], hit[0]))
            yield Twin(number, other, level, similarity)
            continue
        texts[number] = row
        for key in own:
            kept = staying.setdefault(key, [])
            if len(kept) < MOST_COMPARED:
                kept.append(number)
