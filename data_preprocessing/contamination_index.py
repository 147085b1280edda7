# SPDX-License-Identifier: Apache-2.0
"""Which test rows a stream of training rows gives away, and how literally.

The test rows are kept, the training rows only pass by: memory grows with the test side alone.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from data_preprocessing.text_similarity import Settings, SimilarityIndex
from prime_ext.step_rm.question_split import LETTERS_OF_A_TEXT, normal_form

# From the most literal to the least; a row counts at the first that applies.
Level = Literal["exact", "normalised", "numbers", "near", "ngrams", "part"]
LEVELS: tuple[Level, ...] = get_args(Level)
MEANING = {
    "exact": "the same text",
    "normalised": "the same words, numbers and operators; case, white space, punctuation and LaTeX layout aside",
    "numbers": "the same words with other numbers or operators",
    "near": "Jaccard similarity of the character n-grams at the threshold or above, numbers aside",
    "ngrams": "the training row has most of the test row's word n-grams",
    "part": "one part of the row (a premise, a hypothesis) is the same, numbers aside; the whole is not",
}
_OPERATOR = re.compile(r"[-+*/^=<>%\u2212\u00d7\u00f7]")


@dataclass(frozen=True)
class Place:
    """A row: the number of its file on the command line, and of the row in the file, from 1."""

    file: int
    row: int


@dataclass(frozen=True)
class Hit:
    """The training row nearest to a test row.

    Attributes:
        level: one of :data:`LEVELS`.
        similarity: Jaccard similarity (``near``), share of n-grams (``ngrams``), else 1.
        place: where the training row stands.
        text: what it says.
    """

    level: str
    similarity: float
    place: Place
    text: str


def wording(text: str) -> str:
    """The words, numbers and operators of a text: case, white space, punctuation and layout do not count."""
    # Normal forms have no operators, and x - 1 is not x + 1.
    return f"{normal_form(text, False)} {''.join(_OPERATOR.findall(text))}"


def named_parts(texts: Sequence[str], mask_numbers: bool) -> list[str]:
    """Normal forms of the texts that are long enough to name a problem: short ones ("4 in all") name nothing."""
    forms = [normal_form(text, mask_numbers) for text in texts]
    return [form for form in forms if sum(map(str.isalpha, form)) >= LETTERS_OF_A_TEXT]


@dataclass
class ContaminationIndex:
    """Test rows.

    ``places`` says where each stands, ``caught`` counts the training rows that hit, by level.
    """

    settings: Settings = field(default_factory=Settings)
    places: list[Place] = field(default_factory=list)
    caught: Counter[str] = field(default_factory=Counter)
    _entries: list[list[tuple[str, Hashable]]] = field(default_factory=list)
    _known: dict[tuple[str, Hashable], int] = field(default_factory=dict)
    _first: dict[tuple[str, Hashable], int] = field(default_factory=dict)
    _number: dict[Place, int] = field(default_factory=dict)
    # The two best training rows of an entry: one of them may be the test row itself.
    _best: dict[tuple[str, Hashable], list[Hit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = SimilarityIndex(self.settings)

    def _forms(self, texts: Sequence[str]) -> list[tuple[str, Hashable]]:
        whole = "\n".join(texts)
        parts = dict.fromkeys(named_parts(texts, self.settings.mask_numbers))
        return [
            ("exact", whole),
            ("normalised", wording(whole)),
            ("numbers", normal_form(whole, True)),
            *(("part", form) for form in parts),
        ]

    def add(self, texts: Sequence[str], place: Place) -> None:
        """Keep a test row."""
        key = len(self.places)
        self.places.append(place)
        self._number[place] = key
        self._index.add("\n".join(texts))
        entries = self._forms(texts)
        entries.append(("near", self._index.same_shingles[key]))
        if self._index.same_ngrams[key] is not None:
            entries.append(("ngrams", self._index.same_ngrams[key]))
        self._entries.append(entries)
        for entry in entries:
            self._known[entry] = self._known.get(entry, 0) + 1
            self._first.setdefault(entry, key)

    def pass_by(self, texts: Sequence[str], place: Place, itself: Place | None = None) -> str | None:
        """Compare a training row with all test rows.

        Args:
            texts: what the row asks.
            place: where it stands.
            itself: where it stands among the test rows, if it is one of them.

        Returns:
            The most literal level at which it hits another row, or None.
        """
        whole = "\n".join(texts)
        hits = self._hits(texts)
        own = set(self._entries[self._number[itself]]) if itself in self._number else set()
        others = [hit for hit in hits if self._known[hit[:2]] > (hit[:2] in own)]
        for level, form, value in hits:
            best = self._best.setdefault((level, form), [])
            best.append(Hit(level, value, place, whole))
            best.sort(key=lambda hit: -hit.similarity)
            del best[2:]
        strongest = min((LEVELS.index(level) for level, _, _ in others), default=None)
        if strongest is None:
            return None
        self.caught[LEVELS[strongest]] += 1
        return LEVELS[strongest]

    def match(self, texts: Sequence[str], levels: Sequence[str] = LEVELS) -> tuple[str, float, int] | None:
        """The most literal of these levels at which a text hits a test row, the similarity as in :class:`Hit`, and the
        number of that row; None without a hit. Remembers nothing.

        Of several at one level it is the most similar, of equally similar ones the first.
        """
        hits = [hit for hit in self._hits(texts) if hit[0] in levels]
        if not hits:
            return None
        level, form, similarity = min(
            hits, key=lambda hit: (LEVELS.index(hit[0]), -hit[2], self._first[hit[0], hit[1]])
        )
        return level, similarity, self._first[level, form]

    def _hits(self, texts: Sequence[str]) -> list[tuple[str, Hashable, float]]:
        """Level, form and similarity of everything that a text hits."""
        whole = "\n".join(texts)
        found = [(level, form, 1.0) for level, form in self._forms(texts)]
        found += [("near", key, similarity) for key, similarity in self._index.near(whole)]
        found += [("ngrams", key, share) for key, share in self._index.contained(whole)]
        return [(level, form, value) for level, form, value in found if (level, form) in self._known]

    def hit(self, key: int, itself: Place | None = None) -> Hit | None:
        """The most literal hit of a test row, other than the training row at ``itself``."""
        for level in LEVELS:
            hits = [
                hit
                for entry in self._entries[key]
                if entry[0] == level
                for hit in self._best.get(entry, ())
                if hit.place != itself
            ]
            if hits:
                return max(hits, key=lambda hit: hit.similarity)
        return None
