# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates among texts: word n-grams, and MinHash over the character n-grams of their normal forms.

MinHash (Broder 1997) with locality-sensitive hashing only proposes pairs; the Jaccard similarity of a proposed pair is
computed exactly, so there are no false hits. A pair at the threshold is proposed with the probability
:meth:`Settings.recall` says. The hashes are keyed by nothing but the settings: the same input gives the same hits.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

try:
    from datasketch import MinHash, MinHashLSH
except ImportError as error:
    raise ImportError('near-duplicates need datasketch: pip install "prime-ext[data]"') from error

from prime_ext.step_rm.question_split import normal_form

_MINHASH_SEED = 1
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Settings:
    """What counts as a near-duplicate.

    Attributes:
        threshold: Jaccard similarity of the character n-grams of two normal forms from which they are one text.
        shingle: characters of such an n-gram.
        bands: bands of the locality-sensitive hashing.
        rows: MinHash values per band.
        ngram: words of a word n-gram.
        ngram_share: share of a text's word n-grams that another one must have; texts with fewer than
            ``least_ngrams`` of them are left to the other tests.
        least_ngrams: see ``ngram_share``.
        mask_numbers: whether numbers count in a normal form (:func:`~prime_ext.step_rm.question_split.normal_form`).
    """

    threshold: float = 0.8
    shingle: int = 5
    bands: int = 16
    rows: int = 5
    ngram: int = 8
    ngram_share: float = 0.7
    least_ngrams: int = 5
    mask_numbers: bool = True

    def recall(self, similarity: float) -> float:
        """The probability that a pair of this similarity is looked at."""
        return 1 - (1 - similarity**self.rows) ** self.bands


def shingles(form: str, size: int) -> frozenset[int]:
    """Checksums of all character n-grams of a normal form; of the form itself if it is shorter."""
    data = form.encode()
    if len(data) <= size:
        return frozenset([zlib.crc32(data)])
    return frozenset(zlib.crc32(data[start : start + size]) for start in range(len(data) - size + 1))


def word_ngrams(form: str, size: int) -> frozenset[str]:
    """All runs of ``size`` words; empty if there are fewer words."""
    words = form.split()
    return frozenset(" ".join(words[start : start + size]) for start in range(len(words) - size + 1))


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """|A and B| / |A or B|; both are non-empty."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


@lru_cache(maxsize=8)
def _blank(n_values: int) -> MinHash:
    # The checksums have 32 bits, as this scheme wants them.
    return MinHash(n_values, seed=_MINHASH_SEED, hashfunc=int, scheme="affine32")


def signature(form: frozenset[int], settings: Settings) -> MinHash:
    """The MinHash signature of character n-grams."""
    found = _blank(settings.bands * settings.rows).copy()
    found.update_batch(np.fromiter(form, dtype=np.uint64, count=len(form)))
    return found


@dataclass
class SimilarityIndex:
    """Texts by number, to be asked for those near another text.

    Texts that a test cannot tell apart are one entry, named by the first of them; otherwise a set with many twins would
    cost the square of their number.

    Attributes:
        same_shingles: for every text, the first one with the same character n-grams.
        same_ngrams: likewise with the same word n-grams; None for a text with too few of them.
    """

    settings: Settings = field(default_factory=Settings)
    same_shingles: list[int] = field(default_factory=list)
    same_ngrams: list[int | None] = field(default_factory=list)
    _shingles: dict[int, frozenset[int]] = field(default_factory=dict)
    _first_shingles: dict[frozenset[int], int] = field(default_factory=dict)
    _first_ngrams: dict[frozenset[str], int] = field(default_factory=dict)
    _ngram_keys: dict[str, list[int]] = field(default_factory=dict)
    _ngram_counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.settings
        self._lsh = MinHashLSH(num_perm=settings.bands * settings.rows, params=(settings.bands, settings.rows))

    def add(self, text: str) -> None:
        """Keep a text under the next number, from 0."""
        key = len(self.same_shingles)
        form = shingles(normal_form(text, self.settings.mask_numbers), self.settings.shingle)
        self.same_shingles.append(self._first_shingles.setdefault(form, key))
        if self.same_shingles[key] == key:
            self._shingles[key] = form
            self._lsh.insert(key, signature(form, self.settings))
        ngrams = word_ngrams(normal_form(text, False), self.settings.ngram)
        if len(ngrams) < self.settings.least_ngrams:
            self.same_ngrams.append(None)
            return
        self.same_ngrams.append(self._first_ngrams.setdefault(ngrams, key))
        if self.same_ngrams[key] == key:
            self._ngram_counts[key] = len(ngrams)
            for ngram in ngrams:
                self._ngram_keys.setdefault(ngram, []).append(key)

    def near(self, text: str) -> Iterator[tuple[int, float]]:
        """Entries at the threshold or above, with their Jaccard similarities."""
        form = shingles(normal_form(text, self.settings.mask_numbers), self.settings.shingle)
        for key in sorted(self._lsh.query(signature(form, self.settings))):
            similarity = jaccard(form, self._shingles[key])
            if similarity >= self.settings.threshold:
                yield key, similarity

    def contained(self, text: str) -> Iterator[tuple[int, float]]:
        """Entries of which ``text`` has enough word n-grams, with the share that it has."""
        shared: Counter[int] = Counter()
        for ngram in word_ngrams(normal_form(text, False), self.settings.ngram):
            shared.update(self._ngram_keys.get(ngram, ()))
        for key, count in sorted(shared.items()):
            if count >= self.settings.ngram_share * self._ngram_counts[key]:
                yield key, count / self._ngram_counts[key]
