# SPDX-License-Identifier: Apache-2.0
"""Texts that give others away, and how literally: the same, nearly the same, or one inside the
other.

Near-duplicates are found by word n-grams, and by MinHash over the character n-grams of normal
forms. MinHash (Broder 1997) with locality-sensitive hashing only proposes pairs; the Jaccard
similarity of a proposed pair is computed exactly, so that no hit is false. A pair at the threshold
is proposed with the probability ``1 - (1 - threshold**BAND_VALUES) ** BANDS`` (0.998). The same
input gives the same hits.
"""

import re
import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, get_args

import numpy as np
from datasketch import MinHash, MinHashLSH
from pydantic import Field, PositiveInt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from prime_ext.step_rm.question_split import LETTERS_OF_A_TEXT, name_group, normalize_question

# From the most literal to the least; a row counts at the first that applies.
Level = Literal["exact", "normalised", "numbers", "near", "ngrams", "part"]
LEVELS: tuple[Level, ...] = get_args(Level)
MEANING = {
    "exact": "the same text",
    "normalised": (
        "the same words, numbers and operators; case, white space, punctuation and LaTeX layout"
        " aside"
    ),
    "numbers": "the same words with other numbers or operators",
    "near": "Jaccard similarity of the character n-grams at the threshold or above, numbers aside",
    "ngrams": "the training row has most of the test row's word n-grams",
    "part": (
        "one part of the row (a premise, a hypothesis) is the same, numbers aside; the whole is not"
    ),
}
# A level, and what it sees of a text; of near twins and n-grams the first row that has them.
Entry = tuple[str, Hashable]
_OPERATOR = re.compile(r"[-+*/^=<>%\u2212\u00d7\u00f7]")
# Characters of a character n-gram; bands of the locality-sensitive hashing, and MinHash values of
# each.
SHINGLE = 5
BANDS = 16
BAND_VALUES = 5
# Texts with fewer word n-grams are left to the other tests.
LEAST_NGRAMS = 5
# The checksums have 32 bits, as this scheme needs them.
_BLANK = MinHash(BANDS * BAND_VALUES, seed=1, hashfunc=int, scheme="affine32")
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Settings:
    """The definition of a near-duplicate; the keys of the stages that look for some.

    Attributes:
        threshold: Jaccard similarity of the character n-grams of two normal forms from which they
            are one text.
        ngram: words of a word n-gram.
        ngram_share: share of a text's word n-grams that another one must have.
    """

    threshold: Share = 0.8
    ngram: PositiveInt = 8
    ngram_share: Share = 0.7


@lru_cache(maxsize=1024)
def shingles(text: str, mask_numbers: bool) -> frozenset[int]:
    """Return checksums of all character n-grams of a text's normal form; of the form itself if it
    is shorter."""
    data = normalize_question(text, mask_numbers).encode()
    if len(data) <= SHINGLE:
        return frozenset([zlib.crc32(data)])
    return frozenset(
        zlib.crc32(data[start : start + SHINGLE]) for start in range(len(data) - SHINGLE + 1)
    )


@lru_cache(maxsize=1024)
def word_ngrams(text: str, size: int) -> frozenset[str]:
    """Return all runs of ``size`` words of a text's normal form, numbers included; none if there
    are fewer words."""
    words = normalize_question(text, False).split()
    return frozenset(
        " ".join(words[start : start + size]) for start in range(len(words) - size + 1)
    )


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """Return |A and B| / |A or B| of two sets that are not empty."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


def signature(form: frozenset[int]) -> MinHash:
    """Return the MinHash signature of character n-grams."""
    minhash = _BLANK.copy()
    minhash.update_batch(np.fromiter(form, dtype=np.uint64, count=len(form)))
    return minhash


def normalize_wording(text: str) -> str:
    """Return the words, numbers and operators of a text: case, white space, punctuation and layout
    do not count."""
    # Normal forms have no operators, and x - 1 is not x + 1.
    return f"{normalize_question(text, False)} {''.join(_OPERATOR.findall(text))}"


class SimilarityIndex:
    """Rows by number, each one text or several, to find which of them another row gives away, and
    how literally.

    What a level cannot tell apart has one :data:`Entry`, so that many twins do not cost the square
    of their number; ``rows`` are the numbers of its rows.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.rows: dict[Entry, list[int]] = {}
        self._n_rows = 0
        self._first_shingles: dict[frozenset[int], int] = {}
        self._first_ngrams: dict[frozenset[str], int] = {}
        self._shingles: dict[int, frozenset[int]] = {}
        self._ngram_keys: dict[str, list[int]] = {}
        self._ngram_counts: dict[int, int] = {}
        self._lsh = MinHashLSH(num_perm=BANDS * BAND_VALUES, params=(BANDS, BAND_VALUES))

    def add(self, *texts: str) -> None:
        """Keep a row under the next number, from 0."""
        row = self._n_rows
        entries = self._forms(texts)
        form, ngrams = self._sets(texts)
        first = self._first_shingles.setdefault(form, row)
        entries.append(("near", first))
        if first == row:
            self._shingles[row] = form
            self._lsh.insert(row, signature(form))
        if len(ngrams) >= LEAST_NGRAMS:
            first = self._first_ngrams.setdefault(ngrams, row)
            entries.append(("ngrams", first))
            if first == row:
                self._ngram_counts[row] = len(ngrams)
                for ngram in ngrams:
                    self._ngram_keys.setdefault(ngram, []).append(row)
        self._n_rows += 1
        for entry in entries:
            self.rows.setdefault(entry, []).append(row)

    def hits(self, *texts: str) -> list[tuple[Entry, float]]:
        """Return the entries that a row hits, with the similarity: Jaccard (near), share of
        n-grams, or 1."""
        found: list[tuple[Entry, float]] = [
            (entry, 1.0) for entry in self._forms(texts) if entry in self.rows
        ]
        form, ngrams = self._sets(texts)
        for row in sorted(self._lsh.query(signature(form))):
            similarity = jaccard(form, self._shingles[row])
            if similarity >= self.settings.threshold:
                found.append((("near", row), similarity))
        shared: Counter[int] = Counter()
        for ngram in ngrams:
            shared.update(self._ngram_keys.get(ngram, ()))
        for row, count in sorted(shared.items()):
            if count >= self.settings.ngram_share * self._ngram_counts[row]:
                found.append((("ngrams", row), count / self._ngram_counts[row]))
        return found

    def match(self, *texts: str, levels: Sequence[str] = LEVELS) -> tuple[str, float, int] | None:
        """Return the most literal of these levels at which a row hits another, the similarity, and
        the other's number.

        Of several at one level it is the most similar, of equally similar ones the first. None
        without a hit.
        """
        found = [
            (entry[0], value, self.rows[entry][0])
            for entry, value in self.hits(*texts)
            if entry[0] in levels
        ]
        return min(found, key=lambda hit: (LEVELS.index(hit[0]), -hit[1], hit[2]), default=None)  # type: ignore[arg-type]

    def _forms(self, texts: Sequence[str]) -> list[Entry]:
        joined = "\n".join(texts)
        parts = [normalize_question(text, True) for text in texts]
        # Short ones ("4 in all") name nothing.
        long = [part for part in parts if sum(map(str.isalpha, part)) >= LETTERS_OF_A_TEXT]
        named = {
            "exact": joined,
            "normalised": normalize_wording(joined),
            "numbers": normalize_question(joined, True),
        }
        return [*named.items(), *(("part", part) for part in dict.fromkeys(long))]

    def _sets(self, texts: Sequence[str]) -> tuple[frozenset[int], frozenset[str]]:
        joined = "\n".join(texts)
        return shingles(joined, mask_numbers=True), word_ngrams(joined, self.settings.ngram)


def find_near_groups(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the name of the group of each row, 16 hexadecimal digits.

    A group is whatever hits in a :class:`SimilarityIndex` connect. Its name is the least of those
    that its members would have alone, so it depends neither on the order of the rows nor on other
    groups.
    """
    index = SimilarityIndex()
    for texts in rows:
        index.add(*texts)
    # All rows, not those before: whether one text contains another depends on the direction.
    links = [
        (row, index.rows[entry][0])
        for row, texts in enumerate(rows)
        for entry, _ in index.hits(*texts)
    ]
    graph = coo_array(
        (np.ones(len(links)), tuple(zip(*links, strict=True))), shape=(len(rows), len(rows))
    )
    roots = connected_components(graph, directed=False)[1]
    alone = [name_group("\n".join(texts), "numbers") for texts in rows]
    names: dict[int, str] = {}
    for root, name in zip(roots, alone, strict=True):
        names[root] = min(name, names.get(root, name))
    return [names[root] for root in roots]
