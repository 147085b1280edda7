# SPDX-License-Identifier: Apache-2.0
"""Search for texts that give others away: equal, nearly equal, or one inside the other.

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
Level = Literal["exact", "normalized", "numbers", "near", "ngrams", "part"]
LEVELS: tuple[Level, ...] = get_args(Level)
MEANING = {
    "exact": "the same text",
    "normalized": (
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
# A level and a text's form at it; for near and ngrams, the first row with that form.
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
    """The definition of near-duplicates, as keys of the stages that look for them.

    Attributes:
        threshold: least Jaccard similarity of the character n-grams of near-duplicates.
        ngram: words of a word n-gram.
        ngram_share: share of a text's word n-grams that another one must have.
    """

    threshold: Share = 0.8
    ngram: PositiveInt = 8
    ngram_share: Share = 0.7


@lru_cache(maxsize=1024)
def make_shingles(text: str, mask_numbers: bool) -> frozenset[int]:
    """Return checksums of the character n-grams of a text's normal form, or of a shorter form."""
    data = normalize_question(text, mask_numbers).encode()
    if len(data) <= SHINGLE:
        return frozenset([zlib.crc32(data)])
    return frozenset(
        zlib.crc32(data[start : start + SHINGLE]) for start in range(len(data) - SHINGLE + 1)
    )


@lru_cache(maxsize=1024)
def make_word_ngrams(text: str, size: int) -> frozenset[str]:
    """Return all runs of ``size`` words of a text's normal form, numbers included."""
    words = normalize_question(text, False).split()
    return frozenset(
        " ".join(words[start : start + size]) for start in range(len(words) - size + 1)
    )


def compute_jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """Return |A and B| / |A or B| of two sets that are not empty."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


def compute_signature(form: frozenset[int]) -> MinHash:
    """Return the MinHash signature of character n-grams."""
    minhash = _BLANK.copy()
    minhash.update_batch(np.fromiter(form, dtype=np.uint64, count=len(form)))
    return minhash


def normalize_wording(text: str) -> str:
    """Return words, numbers and operators, without case, white space, punctuation and layout."""
    # Normal forms have no operators, and x - 1 is not x + 1.
    return f"{normalize_question(text, False)} {''.join(_OPERATOR.findall(text))}"


class SimilarityIndex:
    """An index of rows that finds those which another row gives away, and how literally.

    Rows have numbers and one or more texts. Rows that a level cannot distinguish share an
    :data:`Entry`, so that the cost of twins is not quadratic; ``rows`` has the row numbers of each
    entry.
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
        entries = self._build_forms(texts)
        form, ngrams = self._build_sets(texts)
        first = self._first_shingles.setdefault(form, row)
        entries.append(("near", first))
        if first == row:
            self._shingles[row] = form
            self._lsh.insert(row, compute_signature(form))
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
        """Return the entries that a row hits, with Jaccard similarity (near), n-gram share or 1."""
        entries: list[tuple[Entry, float]] = [
            (entry, 1.0) for entry in self._build_forms(texts) if entry in self.rows
        ]
        form, ngrams = self._build_sets(texts)
        for row in sorted(self._lsh.query(compute_signature(form))):
            similarity = compute_jaccard(form, self._shingles[row])
            if similarity >= self.settings.threshold:
                entries.append((("near", row), similarity))
        shared: Counter[int] = Counter()
        for ngram in ngrams:
            shared.update(self._ngram_keys.get(ngram, ()))
        for row, count in sorted(shared.items()):
            if count >= self.settings.ngram_share * self._ngram_counts[row]:
                entries.append((("ngrams", row), count / self._ngram_counts[row]))
        return entries

    def match(self, *texts: str, levels: Sequence[str] = LEVELS) -> tuple[str, float, int] | None:
        """Return level, similarity and number of the most literal hit of a row, or None.

        Only ``levels`` count. Within a level the most similar row wins, and of equal ones the
        first.
        """
        hits = [
            (entry[0], value, self.rows[entry][0])
            for entry, value in self.hits(*texts)
            if entry[0] in levels
        ]
        return min(hits, key=lambda hit: (LEVELS.index(hit[0]), -hit[1], hit[2]), default=None)  # type: ignore[arg-type]

    def _build_forms(self, texts: Sequence[str]) -> list[Entry]:
        joined = "\n".join(texts)
        forms = [normalize_question(text, True) for text in texts]
        # Short ones ("4 in all") identify nothing.
        long = [form for form in forms if sum(map(str.isalpha, form)) >= LETTERS_OF_A_TEXT]
        named = {
            "exact": joined,
            "normalized": normalize_wording(joined),
            "numbers": normalize_question(joined, True),
        }
        return [*named.items(), *(("part", form) for form in dict.fromkeys(long))]

    def _build_sets(self, texts: Sequence[str]) -> tuple[frozenset[int], frozenset[str]]:
        joined = "\n".join(texts)
        return make_shingles(joined, mask_numbers=True), make_word_ngrams(
            joined, self.settings.ngram
        )


def find_near_groups(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the name of the group of each row, 16 hexadecimal digits.

    Rows that hit each other in a :class:`SimilarityIndex` are one group. Its name is the least of
    those that its members would have alone, so it depends neither on the order of the rows nor on
    other groups.
    """
    index = SimilarityIndex()
    for texts in rows:
        index.add(*texts)
    # Query all rows, not only those before: one text may contain another, but not the reverse.
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
