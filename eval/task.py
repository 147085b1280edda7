# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A benchmark as the evaluation and the RL data see it: where its rows are, what a model is shown, what is right.

A task is read from one declarative file by :mod:`eval.task_file`. The same definition makes the rows of RL and the
prompts of the evaluation, so that the two cannot differ.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prime_ext.verifiers.sources import source_of

# A split of a source; "all" where its authors made none.
SPLITS = ("all", "train", "validation", "test")
DEFAULT_PROMPT = "default"
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class RowError(ValueError):
    """A row that does not fit the task; the message says why."""


@dataclass(frozen=True)
class Source:
    """Where the rows are.

    Attributes:
        hub: id of the data set on the Hugging Face hub; empty if there is none.
        revision: commit on the hub; empty for the newest.
        files: file on the hub by split.
        local: file below a data folder by split.
        rows: rows of the local files by split, as published.
    """

    hub: str = ""
    revision: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Gold:
    """One way in which a source says what is right.

    Attributes:
        columns: one column whose text is the gold answer, or several that make a JSON object (tests of programs).
        values: what each value of the column stands for, in any case; empty if it is the answer itself.
    """

    columns: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """Chat messages with ``{{field}}`` where a problem's field goes.

    Attributes:
        user: the message of the user.
        system: the system message; empty for none.
    """

    user: str
    system: str = ""


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
        batch_size: prompts at a time; None leaves it to the backend.
    """

    n: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    num_beams: int = 1
    min_new_tokens: int = 0
    max_new_tokens: int = 512
    batch_size: int | None = None


@dataclass(frozen=True)
class Reference:
    """Published numbers.

    Attributes:
        metric: which one.
        source: where they were published.
        values: percent by model.
        rows: test rows they were measured on, as far as is known.
    """

    metric: str
    source: str
    values: Mapping[str, float]
    rows: int | None = None


@dataclass(frozen=True)
class Problem:
    """A row of a task.

    Attributes:
        fields: what prompts may show.
        gold: ``reward_model.ground_truth`` of verl's schema.
    """

    fields: Mapping[str, str]
    gold: str


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
        fields: columns by field; the first column that a row has counts.
        texts: fields that are the problem itself; duplicates are found by them.
        gold: ways to say what is right; the first whose columns a row has counts.
        option_names: names of the options, in order; empty where every row has its own.
        n_options: number of options; 0 if it is not multiple choice.
        extraction: how the answer is found in a response; empty for the verifier's own way.
        prompts: by name; ``default`` is the one of RL.
        metrics: names.
        decoding: by name.
        references: published numbers.
        notes: what to know before comparing numbers.
    """

    name: str
    title: str
    description: str
    licence: str
    data_source: str
    ability: str
    source: Source
    fields: Mapping[str, tuple[str, ...]]
    texts: tuple[str, ...]
    gold: tuple[Gold, ...]
    prompts: Mapping[str, Prompt]
    metrics: tuple[str, ...]
    decoding: Mapping[str, Decoding]
    option_names: tuple[str, ...] = ()
    n_options: int = 0
    extraction: str = ""
    references: tuple[Reference, ...] = ()
    notes: str = ""

    @property
    def grader(self) -> str:
        """The task of the verifier: math, code or choice."""
        return source_of(self.data_source).task

    def grader_options(self) -> dict[str, Any]:
        """What the verifier is told besides response and gold answer."""
        if self.option_names:
            return {"names": self.option_names}
        if self.n_options:
            return {"n_options": self.n_options}
        return {"extraction": self.extraction} if self.extraction else {}

    def problem(self, row: Mapping[str, Any]) -> Problem:
        """A row of the source as a problem.

        Raises:
            RowError: a column is missing or empty, or the gold answer is not one.
        """
        fields = {}
        for name, columns in self.fields.items():
            column = next((column for column in columns if column in row), None)
            if column is None:
                raise RowError(f"no column {' or '.join(columns)}; it has {', '.join(map(str, row)) or 'none'}")
            fields[name] = _text(row[column], column)
        return Problem(fields, self._gold(row))

    def _gold(self, row: Mapping[str, Any]) -> str:
        for gold in self.gold:
            if all(column in row for column in gold.columns):
                break
        else:
            wanted = " or ".join("+".join(gold.columns) for gold in self.gold)
            raise RowError(f"no column {wanted}; it has {', '.join(map(str, row)) or 'none'}")
        if len(gold.columns) > 1:
            return json.dumps({column: row[column] for column in gold.columns}, sort_keys=True)
        column = gold.columns[0]
        value = _text(row[column], column)
        if not gold.values:
            return value
        answer = gold.values.get(value.casefold())
        if answer is None:
            raise RowError(f"{column} {value[:60]!r} is none of {', '.join(gold.values)}")
        return answer

    def messages(self, problem: Problem, prompt: str = DEFAULT_PROMPT) -> list[dict[str, str]]:
        """The chat that a model is shown.

        Raises:
            KeyError: no prompt of that name.
        """
        chosen = self.prompts[prompt]
        # One pass: braces inside a problem are the problem's.
        texts = {
            role: PLACEHOLDER.sub(lambda match: problem.fields[match[1]], text)
            for role, text in (("system", chosen.system), ("user", chosen.user))
        }
        return [{"role": role, "content": text} for role, text in texts.items() if text]

    def problem_texts(self, problem: Problem) -> tuple[str, ...]:
        """The problem without prompt and options."""
        return tuple(problem.fields[name] for name in self.texts)

    def label(self, gold: str) -> str:
        """A gold answer of multiple choice in words."""
        return self.option_names[int(gold) - 1] if self.option_names else f"option {gold}"


def _text(value: Any, column: str) -> str:
    """A cell as text; numbers are written as Python writes them."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise RowError(f"{column} must be a text, got {str(value)[:40]!r}")
    text = str(value).strip()
    if not text:
        raise RowError(f"{column} is empty")
    if not is_whole(text):
        raise RowError(f"{column} has half a character (a lone surrogate)")
    return text


def is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8; what JSON escapes need not be."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_placeholders(prompt: Prompt, fields: Sequence[str]) -> list[str]:
    """Placeholders of a prompt that are no fields."""
    return [name for name in PLACEHOLDER.findall(prompt.system + prompt.user) if name not in fields]
