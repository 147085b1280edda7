# SPDX-License-Identifier: Apache-2.0
"""What is right in a row: answers in text, options, programs' tests, with units and tolerances."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from prime_ext.tasks.cells import RowError, cell, has, held, text_of_cell
from prime_ext.tasks.checked import NO_OTHER_KEYS, Text, Texts
from prime_ext.verifiers.math.extraction import STYLES, extract_answer
from prime_ext.verifiers.math.verifier import read_tolerance


def _style(name: str) -> str:
    if name not in STYLES:
        raise ValueError(f"must be one of {', '.join(sorted(STYLES))}")
    return name


# How an answer is found in a text.
Style = Annotated[Text, AfterValidator(_style)]
Answer = Annotated[str, BeforeValidator(str)]
AnyCase = Annotated[Text, AfterValidator(str.casefold)]


@dataclass(frozen=True)
class Gold:
    """One way in which a source says what is right.

    Attributes:
        columns: one column that holds the gold answer, or several. Those of programs make a JSON object of tests.
        values: what each value of the column stands for, in any case; empty if it is the answer itself.
        extract: how the answer is found in the column (a style of :mod:`prime_ext.verifiers.math.extraction`), where it
            holds a whole solution; empty if it holds the answer.
        unit: column with the unit of the answer; empty for none. A response may leave it out, but not state another.
        tolerance: column that says how far a number may be from the answer; empty for none.
        corrections: gold answers in full by what the source says, for answers that nothing a model writes would equal.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    columns: Annotated[Texts, Field(validation_alias=AliasChoices("column", "columns"))]
    values: Mapping[AnyCase, Answer] = field(default_factory=dict)
    extract: Style = ""
    unit: Text = ""
    tolerance: Text = ""
    corrections: Mapping[str, Text] = field(default_factory=dict)

    def read(self, row: Mapping[str, Any], as_tests: bool) -> tuple[str, dict[str, str]]:
        """The gold answer of a row that has the columns, and what the verifier is told besides.

        Args:
            row: of the source.
            as_tests: the columns are the tests of programs.

        Raises:
            RowError: there is no answer in the columns, or the tolerance is none.
        """
        if as_tests:
            return json.dumps({column: cell(row, column) for column in self.columns}, sort_keys=True), {}
        (column,) = self.columns
        options = {}
        if self.tolerance and cell(row, self.tolerance) is not None:
            options["tolerance"] = text_of_cell(cell(row, self.tolerance), self.tolerance)
            try:
                read_tolerance(options["tolerance"])
            except ValueError as error:
                raise RowError(f"{self.tolerance}: {error}") from error
        return self._answer(row, column), options

    def _answer(self, row: Mapping[str, Any], column: str) -> str:
        value = cell(row, column)
        if isinstance(value, list):
            # Several answers: all of them are wanted.
            value = ", ".join(text_of_cell(item, column) for item in value)
        text = text_of_cell(value, column)
        if self.extract:
            found = extract_answer(text, self.extract)
            if found is None:
                raise RowError(f"{column} has no answer in style {self.extract}: {text[-60:]!r}")
            text = found
        if text in self.corrections:
            return self.corrections[text]
        if self.values:
            if text.casefold() not in self.values:
                raise RowError(f"{column} {text[:60]!r} is none of {', '.join(self.values)}")
            return self.values[text.casefold()]
        unit = cell(row, self.unit) if self.unit else None
        return text if unit is None else _with_unit(text, text_of_cell(unit, self.unit))


def _with_unit(answer: str, unit: str) -> str:
    r"""The answer followed by its unit, in LaTeX; ``\%``, ``^{\circ}`` and units in dollar signs are LaTeX already."""
    answer = answer.strip("$") if answer.count("$") == 2 else answer
    if unit == "%":
        return f"{answer}\\%"
    if unit.startswith(("^", "\\", "$")):
        return f"{answer} {unit.strip('$')}"
    return f"{answer} \\text{{ {unit}}}"


def read_gold(ways: Sequence[Gold], row: Mapping[str, Any], as_tests: bool) -> tuple[str, dict[str, str]]:
    """The gold answer by the first way whose columns the row has; see :meth:`Gold.read`.

    Raises:
        RowError: the row has the columns of none, or no answer in them.
    """
    for gold in ways:
        if all(has(row, column) for column in gold.columns):
            return gold.read(row, as_tests)
    wanted = " or ".join("+".join(gold.columns) for gold in ways)
    raise RowError(f"no column {wanted}; {held(row)}")
