# SPDX-License-Identifier: Apache-2.0
"""A benchmark as the evaluation and the RL data see it: where its rows are, what a model is shown, what is right.

A task is read from one declarative file by :mod:`prime_ext.tasks.task_file`. The same definition makes the rows
of RL and the prompts of the evaluation, so that the two cannot differ.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Discriminator, Field, Tag

from prime_ext.tasks.cells import Columns, RowError, Shown, cell, filled, has, held, text_of_cell
from prime_ext.tasks.checked import NO_OTHER_KEYS, Count, Number, Paths, Pattern, Text, Texts
from prime_ext.verifiers.math.extraction import STYLES, extract_answer
from prime_ext.verifiers.math.verifier import read_tolerance
from prime_ext.verifiers.sources import source_of

# A split of a source; "all" where its authors made none.
SPLITS = ("all", "train", "validation", "test")
Split = Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")]
# Of programs; see :class:`Task`.
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
class Source:
    """Where the rows are.

    Attributes:
        hub: id of the data set on the Hugging Face hub; empty if there is none.
        revision: commit on the hub; empty for the newest.
        files: files on the hub by split.
        local: files below a data folder by split.
        rows: rows of the local files by split, as published; of those, the ones that belong to the task.
        where: regular expression by column; only rows in which each is found belong to the task.
        origin: where the local files are published, for whoever does not have them.
        generated: instead of all that, a name of ``GENERATED`` in ``last_digit_chain``, which makes the rows;
            ``rows`` says how many.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    hub: Text = ""
    revision: Text = ""
    files: Mapping[Split, Texts] = field(default_factory=dict)
    local: Mapping[Split, Paths] = field(default_factory=dict)
    rows: Mapping[Split, Count] = field(default_factory=dict)
    where: Mapping[str, Pattern] = field(default_factory=dict)
    origin: Text = ""
    generated: Text = ""

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the files belongs to the task. ``RowError``: it lacks a column by which that is decided."""
        return all(re.search(pattern, text_of_cell(cell(row, name), name)) for name, pattern in self.where.items())

    def places(self, local: bool) -> Mapping[str, tuple[str, ...]]:
        """Files by split: those of a data folder, or those on the hub."""
        return self.local if local else self.files


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

        With ``as_tests`` the columns are the tests of programs. ``RowError``: there is no answer in the columns, or the
        tolerance is none.
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


@dataclass(frozen=True)
class Prompt:
    """Chat messages with ``{{field}}`` where a problem's field goes.

    Attributes:
        user: the message of the user.
        system: the system message; empty for none.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    user: Text
    system: Text = ""


@dataclass(frozen=True)
class Decoding:
    """How responses are made.

    Attributes:
        n: responses per problem.
        do_sample: sampling; otherwise greedy, or the best beam.
        temperature: of sampling.
        top_p: of sampling.
        top_k: of sampling; 0 for all tokens.
        num_beams: beams; with ``do_sample`` they are sampled, as transformers does it.
        min_new_tokens: shortest response.
        max_new_tokens: longest response.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    n: Count = 1
    do_sample: Annotated[bool, Field(strict=True)] = False
    temperature: Annotated[Number, Field(gt=0, le=100)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(strict=True, ge=0)] = 0
    num_beams: Count = 1
    min_new_tokens: Annotated[int, Field(strict=True, ge=0)] = 0
    max_new_tokens: Count = 512


@dataclass(frozen=True)
class Problem:
    """A row of a task.

    Attributes:
        fields: what prompts may show.
        gold: ``reward_model.ground_truth`` of verl's schema.
        id: what the source calls it; empty if it does not.
        groups: subject, level and so on, by which results are broken down.
        options: what the verifier is told of this problem alone.
    """

    fields: Mapping[str, str]
    gold: str
    id: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A benchmark.

    Attributes:
        name: of the task and of its file.
        title: as the literature writes it.
        description: what is asked, and what the classes mean.
        licence: of the data.
        data_source: which verifier judges (:mod:`prime_ext.verifiers.sources`), and the source in metrics.
        ability: the column of verl's schema.
        source: where the rows are.
        fields: columns by field, of which the first that a row has counts; or a text composed of cells.
        texts: fields that are the problem itself; duplicates are found by them.
        gold: ways to say what is right; the first whose columns a row has counts.
        options: names of the options, in order, or their number; empty if it is not multiple choice.
        extraction: how the answer is found in a response; empty for the verifier's own way.
        limits: ``seconds`` of a test and ``seconds_per_problem`` of programs; empty for the verifier's own.
        prompts: by name; ``default`` is the one of RL.
        metrics: names.
        decoding: by name.
        id: columns that hold the name of a row, of which the first that it has counts; empty for its number.
        groups: where subject, level and so on are, by name.
        notes: what to know before comparing numbers.
        overlaps: another task that has some of these problems; empty if there is none. Such a task is in no group of
            tasks, so that no problem counts twice.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    name: Text
    title: Text
    description: Text
    licence: Text
    data_source: Text
    ability: Text
    source: Source
    fields: Annotated[Mapping[Annotated[str, Field(pattern=r"^\w+$")], Shown], Field(min_length=1)]
    texts: Texts
    gold: Annotated[tuple[Gold, ...], Field(min_length=1)]
    prompts: Mapping[str, Prompt]
    metrics: Texts
    decoding: Annotated[Mapping[str, Decoding], Field(min_length=1)]
    options: Options = ()
    extraction: Style = ""
    limits: Mapping[Limit, Annotated[Number, Field(gt=0, le=86400)]] = field(default_factory=dict)
    id: Columns | None = None
    groups: Mapping[str, Columns] = field(default_factory=dict)
    notes: Text = ""
    overlaps: Text = ""

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the options, in order; empty where every row has its own."""
        return () if isinstance(self.options, int) else self.options

    @property
    def n_options(self) -> int:
        """Number of options; 0 if it is not multiple choice."""
        return self.options if isinstance(self.options, int) else len(self.options)

    @property
    def grader(self) -> str:
        """The task of the verifier: math, code or choice."""
        return source_of(self.data_source).task

    def grader_options(self, problem: Problem | None = None) -> dict[str, Any]:
        """What the verifier is told besides response and gold answer."""
        own = dict(problem.options) if problem else {}
        if self.option_names:
            return {"names": self.option_names, **own}
        if self.n_options:
            return {"n_options": self.n_options, **own}
        extraction = {"extraction": self.extraction} if self.extraction else {}
        return {**source_of(self.data_source).options, **extraction, **self.limits, **own}

    def problem(self, row: Mapping[str, Any]) -> Problem:
        """A row of the source as a problem. ``RowError``: a column is missing or empty, or the gold answer is none."""
        fields = {name: shown.read(row) for name, shown in self.fields.items()}
        way = next((way for way in self.gold if all(has(row, column) for column in way.columns)), None)
        if way is None:
            wanted = " or ".join("+".join(way.columns) for way in self.gold)
            raise RowError(f"no column {wanted}; {held(row)}")
        gold, options = way.read(row, as_tests=self.grader == "code")
        return Problem(
            fields=fields,
            gold=gold,
            id=self.id.read(row) if self.id else "",
            groups={name: column.read(row) for name, column in self.groups.items()},
            options=options,
        )

    def messages(self, problem: Problem, prompt: str = DEFAULT_PROMPT) -> list[dict[str, str]]:
        """The chat that a model is shown. ``KeyError``: no prompt of that name."""
        chosen = self.prompts[prompt]
        texts = {"system": chosen.system, "user": chosen.user}
        return [{"role": role, "content": filled(text, problem.fields)} for role, text in texts.items() if text]

    def problem_texts(self, problem: Problem) -> tuple[str, ...]:
        """The problem without prompt and options."""
        return tuple(problem.fields[name] for name in self.texts)

    def label(self, gold: str) -> str:
        """A gold answer of multiple choice in words."""
        return self.option_names[int(gold) - 1] if self.option_names else f"option {gold}"
