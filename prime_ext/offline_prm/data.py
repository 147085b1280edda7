# SPDX-License-Identifier: Apache-2.0
"""Labelled responses from parquet and JSON Lines files, checked row by row before any model is loaded."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_ext.offline_prm.settings import LossSettings
from prime_ext.step_rm.convert import listed, text
from prime_ext.step_rm.question_split import split_of
from prime_ext.utils.rows import BadRow, SourceError, whole_rows
from prime_ext.utils.text_tokens import Prompt, join_steps, messages_of


class BadData(ValueError):
    """Data that cannot be trained on; the message is one line with file and row."""


def labels_by_first_error(first: Any, n_steps: int) -> list[int | None]:
    """Labels of steps from the index of the first wrong one, -1 for none: what follows it has none."""
    if not isinstance(first, int) or isinstance(first, bool) or not -1 <= first < n_steps:
        raise BadRow(f"label must be -1 or the index of the first wrong of {n_steps} steps, got {first!r}")
    return [1] * n_steps if first < 0 else [*[1] * first, -1, *[None] * (n_steps - first - 1)]


@dataclass(frozen=True)
class Example:
    """One response.

    Attributes:
        group: number of its prompt.
        text: the response.
        label: outcome in [0, 1]; None where only the steps are labelled.
        char_ends: position after each step; empty without steps.
        step_labels: label of each step in [0, 1], None where there is none.
        where: file and row, for messages.
    """

    group: int
    text: str
    label: float | None
    where: str
    char_ends: tuple[int, ...] = ()
    step_labels: tuple[float | None, ...] = ()


@dataclass
class LabelledData:
    """Responses by prompt. Rows with the same prompt are one group, wherever they stand.

    Attributes:
        prompts: one per group.
        datasets: name of the data set of each group, ``""`` where the column is missing.
        examples: responses of each group.
        prompt_ids: tokens of each prompt, where they are needed.
    """

    prompts: list[Prompt] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    examples: list[list[Example]] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)

    def add(self, prompt: Prompt, dataset: str, examples: Iterable[Example]) -> None:
        """Responses to a prompt, which joins its group if it has been seen."""
        key = prompt_key(prompt)
        if key not in self._number:
            self._number[key] = len(self.prompts)
            self.prompts.append(prompt)
            self.datasets.append(dataset)
            self.examples.append([])
        group = self._number[key]
        self.examples[group] += [replace(example, group=group) for example in examples]

    def keep(self, groups: Sequence[int]) -> "LabelledData":
        """The data of some prompts, in the order given."""
        kept = LabelledData()
        for group in groups:
            kept.add(self.prompts[group], self.datasets[group], self.examples[group])
        return kept

    @property
    def n_examples(self) -> int:
        return sum(map(len, self.examples))

    def digest(self) -> str:
        """Hash of prompts, responses and labels, in order."""
        state = hashlib.sha256()
        for prompt, examples in zip(self.prompts, self.examples, strict=True):
            content = [prompt_key(prompt), [(e.text, e.label, e.char_ends, e.step_labels) for e in examples]]
            state.update(json.dumps(content).encode())
        return state.hexdigest()[:16]


def prompt_key(prompt: Prompt) -> str:
    """What two rows must share to have the same prompt: a string equals the one message of a user that says it."""
    return json.dumps(messages_of(prompt), sort_keys=True, ensure_ascii=False)


def _prompt(row: Mapping[str, Any]) -> Prompt:
    prompt = row.get("prompt", row.get("problem"))
    if prompt is None:
        raise BadRow(f"no column 'prompt'; it has {sorted(row)}")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    messages = isinstance(prompt, list) and prompt
    if messages and all(isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in messages):
        return prompt
    raise BadRow(f"prompt must be a text or a list of messages with role and content, got {str(prompt)[:60]!r}")


def _label(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadRow(f"{name} must be in [0, 1], got {value!r}")
    return float(value)


def _one_conversation(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The published form of ImplicitPRM and EurusPRM, a whole conversation in ``response`` and its ``label``."""
    messages = row["response"]
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise BadRow(f"response must be messages that end with the assistant's, got {str(messages)[:60]!r}")
    return {**row, "prompt": messages[:-1], "completions": [last.get("content")], "correctness": [row.get("label")]}


def _responses(row: Mapping[str, Any], prm: LossSettings, where: str) -> Iterator[Example]:
    texts, labels = listed(row, "completions"), listed(row, "correctness")
    if len(texts) != len(labels):
        raise BadRow(f"{len(texts)} completions and {len(labels)} values of correctness")
    for number, (said, label) in enumerate(zip(texts, labels, strict=True), start=1):
        found = _label(label, f"correctness {number}")
        if prm.hard_labels and found not in (0, 1):
            raise BadRow(f"correctness {number} must be 0 or 1 for the loss {prm.loss}, got {label!r}")
        yield Example(0, text(said, f"completion {number}"), found, where)


def step_labels(row: Mapping[str, Any], n_steps: int, after_error: str) -> tuple[float | None, ...]:
    """Labels of steps from ``step_labels`` (or TRL's ``labels``), or from ``label``, the first wrong step (0-based).

    ``after_error`` says what follows the first step that is certainly wrong (a label of 0): ``wrong`` (a prefix that
    contains an error stays wrong), ``ignore`` (no label), ``keep`` (as given; right after ``label`` there is nothing to
    keep, which is the same as ``ignore``).

    Raises:
        BadRow: there are none, or they do not fit the steps.
    """
    name = next((name for name in ("step_labels", "labels", "label") if name in row), None)
    labels: list[float | None]
    if name is None:
        raise BadRow(f"no column 'step_labels' (one per step) or 'label' (first wrong step); has {sorted(row)}")
    if name == "label":
        labels = [None if label is None else float(label > 0) for label in labels_by_first_error(row[name], n_steps)]
    else:
        values = listed(row, name)
        if len(values) != n_steps:
            raise BadRow(f"{n_steps} steps and {len(values)} {name}")
        labels = [
            None if value is None else _label(value, f"label of step {number}")
            for number, value in enumerate(values, start=1)
        ]
    if after_error != "keep" and 0.0 in labels:
        first = labels.index(0.0)
        labels[first + 1 :] = [0.0 if after_error == "wrong" else None] * (n_steps - first - 1)
    return tuple(labels)


def _steps(row: Mapping[str, Any], prm: LossSettings, where: str) -> Iterator[Example]:
    column = listed(row, "steps" if "steps" in row or "completions" not in row else "completions")
    steps = [text(step, f"step {number}") for number, step in enumerate(column, start=1)]
    labels = step_labels(row, len(steps), prm.steps.after_error)
    if all(label is None for label in labels):
        raise BadRow("no step has a label")
    joined, char_ends = join_steps(steps, prm.steps.prefix, prm.steps.separator)
    yield Example(0, joined, None, where, char_ends, labels)


def read_data(paths: Sequence[str | Path], prm: LossSettings) -> LabelledData:
    """Read and check all rows, which are prompts with labelled responses or, for losses of steps, labelled steps.

    Raises:
        BadData: see its message.
    """
    data = LabelledData()
    for path in map(Path, paths):
        where = ""
        try:
            for number, row in enumerate(whole_rows(path), start=1):
                where = f"{path} row {number}"
                if not prm.by_step and "completions" not in row and "response" in row:
                    row = _one_conversation(row)
                prompt = _prompt(row)
                found = (_steps if prm.by_step else _responses)(row, prm, where)
                data.add(prompt, str(row.get("dataset") or ""), found)
        except BadRow as error:
            raise BadData(f"{where}: {error}") from error
        except SourceError as error:
            raise BadData(str(error)) from error
        if not where:
            raise BadData(f"{path} has no rows")
    return data


def is_mixed(examples: Sequence[Example]) -> bool:
    """Whether a prompt has both correct and wrong responses."""
    labels = {example.label for example in examples}
    return 0.0 in labels and 1.0 in labels


def is_held_out(prompt: Prompt, fraction: float, seed: int) -> bool:
    """Whether a prompt belongs to the validation split: by hash, so it does not move when other rows come or go."""
    return split_of(prompt_key(prompt), fraction, 0.0, seed) == "validation"
