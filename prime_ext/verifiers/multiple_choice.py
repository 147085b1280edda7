# SPDX-License-Identifier: Apache-2.0
r"""Multiple choice and natural-language inference: "option 2", ``#### 2``, letters, label words.

Where a response states its answer: docs/reference/verifier_rules.md.
"""

import re
import time
from collections.abc import Sequence

from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer, wrong

# How an option can be written; the names of the options are added where there are any.
_NUMBER = r"(?:option\s*)?[(\[]?\d{1,2}[)\]]?"
# Letters without brackets are upper case in running text; "a" and "I" are words.
_LETTER = r"(?:option\s*)?(?:\([a-j]\)|\[[a-j]\]|(?-i:[A-HJ])(?!['’]))"
_ONE = re.compile(r"(?:(?:option|choice)\s*)?[(\[]?(?:(\d{1,2})|([a-jA-J]))[)\]]?", re.IGNORECASE)
# Captures are bounded (statements are short), so that a long line of markers costs linear time.
_HASHES = re.compile(r"####(?=([^\n]{0,200}))")
_BOXED = re.compile(r"\\boxed[ \t]*\{((?:[^{}\n]|\{[^{}\n]{0,99}\}){0,200})\}")
_STATED = re.compile(
    r"(?:<answer>|\b(?:answer|(?:correct|right) (?:option|choice))[\"*]*"
    r"(?:[ \t]+(?:is|must be|should be|would be)(?:[ \t]+\w+ly)?[ \t]*(?::\s{0,9})?"
    r"|[ \t]*:\s{0,9}))(?=([^\n]{0,200}))"
    r"|\b(?=((?:option|choice)[ \t]+[(\[]?[a-j1-9][)\]]?)[ \t]+is[ \t]+(?:the["
    r" \t]+)?(?:correct|right))",
    re.IGNORECASE,
)
_FONT = re.compile(r"\\(?:text|math)[a-z]*\s*|\\[ ,;!]|[{}]")
# An option with its text: "(C) 42", "C: 42".
_WITH_TEXT = re.compile(r"(?:\([A-Ja-j]\)|[A-J][):])(?=\s)")
# Where a statement ends: a full stop that is not a decimal point, the next marker, or its reason.
_END = re.compile(r"\.(?!\d)|####|\\boxed|;|<|,?\s(?:because|since|as)\b", re.IGNORECASE)
_WRAPPING = " \t*_`\"'“”‘’$.,:!"


class MultipleChoiceVerifier:
    """Verifier of responses to problems with numbered options.

    ``names`` of the options are in order, e.g. ``("entailment", "neutral")``; ``n_options``, their
    number, may be given alone. Without either, any number up to 99 is an option.
    """

    def __init__(self, names: Sequence[str] = (), n_options: int | None = None):
        self._names = {name.strip().lower(): number for number, name in enumerate(names, start=1)}
        self._n_options = len(names) if names else n_options
        alternatives = [
            *(re.escape(name) for name in sorted(self._names, key=len, reverse=True)),
            _NUMBER,
            _LETTER,
        ]
        self._mention = re.compile(
            rf"(?<![\w.])(?:{'|'.join(alternatives)})(?!\w|[.,]\d)", re.IGNORECASE
        )

    def read_option(self, text: str | int) -> int | None:
        """Return the number of the option that ``text`` is, even out of range; otherwise None."""
        stripped = str(text).strip(_WRAPPING)
        number = self._names.get(stripped.lower())
        if number is not None:
            return number
        match = _ONE.fullmatch(stripped)
        if match is None:
            return None
        return int(match[1]) if match[1] else ord(match[2].lower()) - ord("a") + 1

    def gold_option(self, gold: str | int) -> int:
        """Return a gold answer's option (number, letter, name, sentence). Raises ``ValueError``."""
        number = self.read_option(gold)
        if number is None:
            number, _ = self._find_stated_option(str(gold))
        if number is None or not self._exists(number):
            known = f"the names {list(self._names)} or a number" if self._names else "a number"
            limit = f" up to {self._n_options}" if self._n_options else ""
            raise ValueError(
                f"gold answer {gold!r} names no option; it must be {known} from 1{limit}, or a"
                " letter"
            )
        return number

    def verify(self, response: str, gold: str | int) -> Verdict:
        """Compare the option that ``response`` states with :meth:`gold_option`."""
        start = time.perf_counter()
        expected = self.gold_option(gold)
        number, reason = self._find_stated_option(response)
        seconds = time.perf_counter() - start
        if number is None:
            return no_answer(seconds, reason)
        if not self._exists(number):
            return wrong(str(number), seconds, f"there is no option {number}")
        return (correct if number == expected else wrong)(str(number), seconds, reason)

    def _exists(self, number: int) -> bool:
        return number >= 1 and (self._n_options is None or number <= self._n_options)

    def _find_stated_option(self, text: str) -> tuple[int | None, str]:
        """Return the option that a text states as its answer, or None; and where, or why not."""
        stated: list[tuple[str, int]] = []
        for kind, pattern, every in (
            ("####", _HASHES, True),
            ("boxed", _BOXED, True),
            ("stated", _STATED, False),
        ):
            statements = [match[match.lastindex or 0] for match in pattern.finditer(text)]
            if not statements:
                continue
            options = [
                self._find_only_option(statement)
                for statement in (statements if every else statements[-1:])
            ]
            if None in options or len(set(options)) > 1:
                return None, f"ambiguous or unreadable answer ({kind})"
            number = options[0]
            assert number is not None
            stated.append((kind, number))
        if not stated:
            alone = (
                re.fullmatch(r"\(?([A-J])\)?", text.strip(_WRAPPING + "\n"))
                if len(text) < 20
                else None
            )
            return (
                (self.read_option(alone[1]), "letter alone")
                if alone
                else (None, "no answer stated")
            )
        tail = "\n".join(text.rstrip().splitlines()[-2:])
        last_words = {
            self._find_only_option(match[match.lastindex or 0])
            for pattern in (_HASHES, _BOXED, _STATED)
            for match in list(pattern.finditer(tail))[-1:]
        }
        if len(last_words - {None}) > 1:
            return None, "the last lines state different answers"
        return stated[0][1], stated[0][0]

    def _find_only_option(self, statement: str) -> int | None:
        """Return the option that a statement names, if it names exactly one."""
        statement = _FONT.sub(" ", statement)
        end = _END.search(statement)
        clause = (statement[: end.start()] if end else statement).lstrip(_WRAPPING)
        if with_text := _WITH_TEXT.match(clause):
            rest = self._mention.findall(clause, with_text.end())
            return (
                self.read_option(with_text[0])
                if all(mention.isdigit() for mention in rest)
                else None
            )
        whole = self.read_option(clause)
        if whole is not None:
            return whole
        first = self._mention.match(clause)
        if first is None:
            return None
        mentioned = {self.read_option(match[0]) for match in self._mention.finditer(clause)} - {
            None
        }
        return self.read_option(first[0]) if len(mentioned) == 1 else None


class ChoiceTask:
    """Multiple choice as a task of :mod:`prime_ext.verifiers.sources`; options may vary by row."""

    async def averify(
        self,
        response: str,
        gold: str | int,
        *,
        names: Sequence[str] = (),
        n_options: int | None = None,
    ) -> Verdict:
        """Judge a response; a gold answer that is not an option is a failure of the grader."""
        try:
            return MultipleChoiceVerifier(tuple(names), n_options).verify(response, gold)
        except ValueError as error:
            return grader_failed(Outcome.ERROR, None, 0.0, str(error))
