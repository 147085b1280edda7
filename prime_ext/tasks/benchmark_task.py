# SPDX-License-Identifier: Apache-2.0
"""A benchmark: its rows, its prompts and its gold answers, for evaluation and for RL data.

:mod:`prime_ext.tasks.task_file` reads a task from one declarative file.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Discriminator, Field, Tag

from prime_ext.config.checks import STRICT, Count, CountOrZero, Number, Switch, limit_to
from prime_ext.tasks.cells import Columns, Shown, cell, describe_columns, fill_in, has, read_cell
from prime_ext.tasks.value_types import Paths, Text, Texts
from prime_ext.utils.rows import BadRow, SourceError
from prime_ext.verifiers.math.answer_extraction import STYLES, extract_answer
from prime_ext.verifiers.sources import find_source

# A split of a source; "all" where its authors made none.
SPLITS = ("all", "train", "validation", "test")
Split = Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")]
Limit = Annotated[str, Field(pattern=r"^seconds(_per_problem)?$")]
DEFAULT_PROMPT = "default"
# Metrics of single responses; tasks of other kinds have the first only.
CHOICE_METRICS = ("accuracy", "micro_f1", "macro_f1")
# Names of the options, in order, or how many there are where every row has its own.
Options = Annotated[
    Annotated[int, Field(strict=True, ge=2, le=10), Tag("<number>")]
    | Annotated[Texts, Field(min_length=2), Tag("<names>")],
    Discriminator(lambda value: "<number>" if isinstance(value, int) else "<names>"),
]


@dataclass(frozen=True)
class BenchmarkSource:
    """Origin of the rows."""

    __pydantic_config__ = STRICT
    hub: Text = ""  # id of the data set on the Hugging Face hub
    revision: Text = ""  # commit on the hub; empty for the newest
    files: Mapping[Split, Texts] = field(default_factory=dict)  # on the hub
    local: Mapping[Split, Paths] = field(default_factory=dict)  # below a data folder
    rows: Mapping[Split, Count] = field(default_factory=dict)  # published number of the task's rows
    # Columns that match in rows of the task.
    where: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    origin: Text = ""  # address where the local files are published
    # In place of files: last_digit_chain, or a task of reasoning-gym with its parameters.
    generated: Text = ""

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row belongs to the task. ``BadRow``: it lacks a column of ``where``."""
        return all(
            pattern.search(read_cell(cell(row, name), name)) for name, pattern in self.where.items()
        )

    def places(self, local: bool) -> Mapping[str, tuple[str, ...]]:
        return self.local if local else self.files


Style = Annotated[Text, limit_to(STYLES.keys)]
Answer = Annotated[str, BeforeValidator(str)]
AnyCase = Annotated[Text, AfterValidator(str.casefold)]


@dataclass(frozen=True)
class Gold:
    """Gold answers of a source."""

    __pydantic_config__ = STRICT
    # Several columns of programs make a JSON object of tests.
    columns: Annotated[Texts, Field(validation_alias=AliasChoices("column", "columns"))]
    # Answer by text of the column, if that is a label.
    values: Mapping[AnyCase, Answer] = field(default_factory=dict)
    extract: Style = ""  # for a column with a complete solution
    unit: Text = ""  # column with the unit, which a response may leave out
    # For texts that no response would equal.
    corrections: Mapping[str, Text] = field(default_factory=dict)

    def read(self, row: Mapping[str, Any], as_tests: bool) -> str:
        """Return a row's gold answer, tests of programs as JSON. ``BadRow``: columns lack it."""
        if as_tests:
            return json.dumps(
                {column: cell(row, column) for column in self.columns}, sort_keys=True
            )
        (column,) = self.columns
        value = cell(row, column)
        if isinstance(value, list):
            # All of several answers are needed.
            value = ", ".join(read_cell(item, column) for item in value)
        text = read_cell(value, column)
        if self.extract:
            answer = extract_answer(text, self.extract)
            if answer is None:
                raise BadRow(f"{column} has no answer in style {self.extract}: {text[-60:]!r}")
            text = answer
        if text in self.corrections:
            return self.corrections[text]
        if self.values:
            if text.casefold() not in self.values:
                raise BadRow(f"{column} {text[:60]!r} is none of {', '.join(self.values)}")
            return self.values[text.casefold()]
        unit = cell(row, self.unit) if self.unit else None
        return text if unit is None else _append_unit(text, read_cell(unit, self.unit))


def _append_unit(answer: str, unit: str) -> str:
    r"""Append the unit in LaTeX; ``\%``, ``^{\circ}`` and ``$unit$`` are LaTeX already."""
    answer = answer.strip("$") if answer.count("$") == 2 else answer
    if unit == "%":
        return f"{answer}\\%"
    if unit.startswith(("^", "\\", "$")):
        return f"{answer} {unit.strip('$')}"
    return f"{answer} \\text{{ {unit}}}"


@dataclass(frozen=True)
class Prompt:
    """Chat messages with ``{{field}}`` where a problem's field goes."""

    __pydantic_config__ = STRICT
    user: Text
    system: Text = ""


@dataclass(frozen=True)
class Decoding:
    """Sampling of responses, named as in transformers; greedy without ``do_sample``.

    ``n`` is the number of responses per problem, ``top_k=0`` all tokens.
    """

    __pydantic_config__ = STRICT
    n: Count = 1
    do_sample: Switch = False
    temperature: Annotated[Number, Field(gt=0, le=100)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: CountOrZero = 0
    min_new_tokens: CountOrZero = 0
    max_new_tokens: Count = 512


@dataclass(frozen=True)
class BenchmarkProblem:
    """A row of a task."""

    fields: Mapping[str, str]  # texts for prompts
    gold: str  # reward_model.ground_truth of verl's schema
    id: str = ""  # name in the source; empty if it has none
    # Subject, level and so on, which break results down.
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A benchmark."""

    __pydantic_config__ = STRICT
    name: Text  # of its file too
    title: Text  # name in the literature
    description: Text
    license: Text
    data_source: Text  # selects the verifier, and is the source in metrics
    ability: Text  # column of verl's schema
    source: BenchmarkSource
    fields: Annotated[Mapping[Annotated[str, Field(pattern=r"^\w+$")], Shown], Field(min_length=1)]
    texts: Texts  # fields that are the problem itself, by which duplicates are found
    # The first whose columns a row has counts.
    gold: Annotated[tuple[Gold, ...], Field(min_length=1)]
    prompts: Mapping[str, Prompt]
    metrics: Texts
    decoding: Annotated[Mapping[str, Decoding], Field(min_length=1)]
    options: Options = ()
    extraction: Style = ""  # in which responses state answers; empty for the verifier's default
    # Of programs.
    limits: Mapping[Limit, Annotated[Number, Field(gt=0, le=86400)]] = field(default_factory=dict)
    id: Columns | None = None  # None: the number of the row
    groups: Mapping[str, Columns] = field(default_factory=dict)
    notes: Text = ""  # caveats for comparing numbers
    # Another task with some of these problems: this one is in no group of tasks, so that no problem
    # counts twice.
    overlaps: Text = ""

    @property
    def option_names(self) -> tuple[str, ...]:
        """Return the names of the options, in order; empty where every row has its own."""
        return () if isinstance(self.options, int) else self.options

    @property
    def n_options(self) -> int:
        """Return the number of options, 0 if it is not multiple choice."""
        return self.options if isinstance(self.options, int) else len(self.options)

    @property
    def grader(self) -> str:
        """Return the task of the verifier: math, code or choice."""
        return find_source(self.data_source).task

    def grader_options(self) -> dict[str, Any]:
        if self.option_names:
            return {"names": self.option_names}
        if self.n_options:
            return {"n_options": self.n_options}
        extraction = {"extraction": self.extraction} if self.extraction else {}
        return {**find_source(self.data_source).options, **extraction, **self.limits}

    def problem(self, row: Mapping[str, Any]) -> BenchmarkProblem:
        """Read a row. ``BadRow``: a column is missing or empty, or it has no gold answer."""
        fields = {name: shown.read(row) for name, shown in self.fields.items()}
        way = next(
            (way for way in self.gold if all(has(row, column) for column in way.columns)), None
        )
        if way is None:
            columns = " or ".join("+".join(way.columns) for way in self.gold)
            raise BadRow(f"no column {columns}; {describe_columns(row)}")
        return BenchmarkProblem(
            fields=fields,
            gold=way.read(row, as_tests=self.grader == "code"),
            id=self.id.read(row) if self.id else "",
            groups={name: column.read(row) for name, column in self.groups.items()},
        )

    def get_prompt(self, name: str) -> Prompt:
        """Return a prompt by its name. ``SourceError``: there is none."""
        if name not in self.prompts:
            raise SourceError(
                f"{self.name} has no prompt {name!r}; it has {', '.join(self.prompts)}"
            )
        return self.prompts[name]

    def messages(
        self, problem: BenchmarkProblem, prompt: str = DEFAULT_PROMPT
    ) -> list[dict[str, str]]:
        """Return the chat that shows a problem. ``SourceError``: no prompt of that name."""
        chosen = self.get_prompt(prompt)
        texts = {"system": chosen.system, "user": chosen.user}
        return [
            {"role": role, "content": fill_in(text, problem.fields)}
            for role, text in texts.items()
            if text
        ]

    def problem_texts(self, problem: BenchmarkProblem) -> tuple[str, ...]:
        return tuple(problem.fields[name] for name in self.texts)

    def label(self, gold: str) -> str:
        """Return a gold answer of multiple choice in words."""
        return self.option_names[int(gold) - 1] if self.option_names else f"option {gold}"
