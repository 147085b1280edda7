# SPDX-License-Identifier: Apache-2.0
r"""The split of a step, by nothing but a hash of its question's normal form.

docs/reference/step_rm.md describes it. Numbers do not count in a question with at least
:data:`LETTERS_OF_A_TEXT` letters: the same story with other numbers is a near duplicate. In shorter
ones ("3*7+2", "Compute $\sin 60^\circ$") the numbers are the question.
"""

import hashlib
import re
import unicodedata

SPLITS = ("train", "validation", "test")
LETTERS_OF_A_TEXT = 24
NEAR_DUPLICATES = ("numbers", "text")

_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|text|textbf|mathrm|mathbf|mbox|hbox)\b"
)
_FRACTION = re.compile(r"\\[dt]frac\b")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_WORD = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?")


def normalize_question(text: str, mask_numbers: bool = True) -> str:
    """Return the words and numbers of a question or a step; the text itself where there are none.

    Case, white space, punctuation, symbols, compatible characters (NFKC), layout commands of LaTeX
    and thousands separators do not count, and, with ``mask_numbers``, neither do the numbers of a
    long text.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = _THOUSANDS.sub("", _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", plain)))
    words = _WORD.findall(plain)
    letters = sum(len(word) for word in words if not word[0].isdigit())
    if mask_numbers and letters >= LETTERS_OF_A_TEXT:
        words = ["0" if word[0].isdigit() else word for word in words]
    return " ".join(words) or " ".join(plain.split())


def name_group(question: str, near_duplicates: str = "numbers") -> str:
    """Name the group of questions that stay together; with ``text``, numbers always count."""
    form = normalize_question(question, near_duplicates == "numbers")
    return hashlib.sha256(form.encode()).hexdigest()[:16]


def pick_split(group: str, validation: float, test: float, seed: int) -> str:
    """Choose the split of a group; each fraction is a share of the groups, not of the rows."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if position < test else "validation" if position < test + validation else "train"
