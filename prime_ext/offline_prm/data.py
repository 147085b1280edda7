# SPDX-License-Identifier: Apache-2.0
"""Labelled responses from parquet and JSON Lines files, checked row by row before any model is loaded."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_ext.offline_prm.text import STEP_PREFIX, STEP_SEPARATOR, Prompt, join_steps, messages_of
from prime_ext.step_rm.question_split import split_of
from prime_ext.utils.rows import SourceError, whole_rows


class BadData(ValueError):
    """Data that cannot be trained on; the message is one line with file and row."""


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
    """

    prompts: list[Prompt] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    examples: list[list[Example]] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)

    def group(self, prompt: Prompt, dataset: str) -> int:
        """The number of a prompt, a new one if it has not been seen."""
        key = prompt_key(prompt)
        if key not in self._number:
            self._number[key] = len(self.prompts)
            self.prompts.append(prompt)
            self.datasets.append(dataset)
            self.examples.append([])
        return self._number[key]

    def keep(self, groups: Sequence[int]) -> "LabelledData":
        """The data of some prompts, in the order given."""
        kept = LabelledData()
        for old in groups:
            new = kept.group(self.prompts[old], self.datasets[old])
            kept.examples[new] = [
                Example(new, e.text, e.label, e.where, e.char_ends, e.step_labels) for e in self.examples[old]
            ]
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


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a file, see :mod:`prime_ext.utils.rows`.

    Raises:
        BadData: it cannot be read, or a row is no object.
    """
    try:
        yield from whole_rows(path)
    except SourceError as error:
        raise BadData(str(error)) from error


def _checked_prompt(row: Mapping[str, Any], where: str) -> Prompt:
    prompt = row.get("prompt", row.get("problem"))
    if prompt is None:
        raise BadData(f"{where}: no column 'prompt'; it has {sorted(row)}")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    messages = isinstance(prompt, list) and prompt
    if messages and all(isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in messages):
        return prompt
    raise BadData(
        f"{where}: prompt must be a text or a list of messages with role and content, got {str(prompt)[:60]!r}"
    )


def _checked_label(value: Any, where: str, hard: str | None) -> float:
    number = isinstance(value, int | float) and not (isinstance(value, float) and math.isnan(value))
    if not number or not 0 <= value <= 1:
        raise BadData(f"{where} must be in [0, 1], got {value!r}")
    if hard and value not in (0, 1):
        raise BadData(f"{where} must be 0 or 1 for the loss {hard}, got {value!r}")
    return float(value)


def _column(row: Mapping[str, Any], name: str, where: str) -> list[Any]:
    if name not in row:
        raise BadData(f"{where}: no column {name!r}; it has {sorted(row)}")
    value = row[name]
    if not isinstance(value, list) or not value:
        raise BadData(f"{where}: {name} must be a list that is not empty, got {str(value)[:60]!r}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadData(f"{where} is empty" if isinstance(value, str) else f"{where} must be a text, got {value!r}")
    return value


def _add_responses(data: LabelledData, row: Mapping[str, Any], where: str, hard: str | None) -> None:
    group = data.group(_checked_prompt(row, where), str(row.get("dataset") or ""))
    texts, labels = _column(row, "completions", where), _column(row, "correctness", where)
    if len(texts) != len(labels):
        raise BadData(f"{where}: {len(texts)} completions and {len(labels)} values of correctness")
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), start=1):
        text = _text(text, f"{where}: completion {number}")
        label = _checked_label(label, f"{where}: correctness {number}", hard)
        data.examples[group].append(Example(group, text, label, where))


def _one_conversation(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The published form of ImplicitPRM and EurusPRM, a whole conversation in ``response`` and its ``label``."""
    messages = row["response"]
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise BadData(f"{where}: response must be messages that end with the assistant's, got {str(messages)[:60]!r}")
    return {**row, "prompt": messages[:-1], "completions": [last.get("content")], "correctness": [row.get("label")]}


def step_labels(row: Mapping[str, Any], n_steps: int, where: str, after_error: str) -> tuple[float | None, ...]:
    """Labels of steps from ``step_labels`` (or TRL's ``labels``), or from ``label``, the first wrong step (0-based).

    ``after_error`` says what follows the first step that is certainly wrong (a label of 0): ``wrong`` (a prefix that
    contains an error stays wrong), ``ignore`` (no label), ``keep`` (as given; right after ``label`` there is nothing to
    keep, which is the same as ``ignore``).
    """
    listed = next((name for name in ("step_labels", "labels") if name in row), None)
    labels: list[float | None]
    if listed is not None:
        values = _column(row, listed, where)
        if len(values) != n_steps:
            raise BadData(f"{where}: {n_steps} steps and {len(values)} {listed}")
        labels = [
            None if value is None else _checked_label(value, f"{where}: label of step {number}", None)
            for number, value in enumerate(values, start=1)
        ]
    elif "label" in row:
        first = row["label"]
        if not isinstance(first, int) or isinstance(first, bool) or not -1 <= first < n_steps:
            raise BadData(
                f"{where}: label must be -1 or the index of the first wrong of {n_steps} steps, got {first!r}"
            )
        labels = [1.0] * n_steps if first < 0 else [*[1.0] * first, 0.0, *[None] * (n_steps - first - 1)]
    else:
        raise BadData(
            f"{where}: no column 'step_labels' (one per step) or 'label' (first wrong step); has {sorted(row)}"
        )
    if after_error != "keep" and 0.0 in labels:
        first = labels.index(0.0)
        labels[first + 1 :] = [0.0 if after_error == "wrong" else None] * (n_steps - first - 1)
    return tuple(labels)


def _add_steps(
    data: LabelledData, row: Mapping[str, Any], where: str, prefix: str, separator: str, after_error: str
) -> None:
    group = data.group(_checked_prompt(row, where), str(row.get("dataset") or ""))
    steps = _column(row, "steps" if "steps" in row or "completions" not in row else "completions", where)
    steps = [_text(step, f"{where}: step {number}") for number, step in enumerate(steps, start=1)]
    labels = step_labels(row, len(steps), where, after_error)
    if all(label is None for label in labels):
        raise BadData(f"{where}: no step has a label")
    text, char_ends = join_steps(steps, prefix, separator)
    data.examples[group].append(Example(group, text, None, where, char_ends, labels))


def read_data(
    paths: Sequence[str | Path],
    loss: str,
    hard_labels: bool,
    by_step: bool = False,
    prefix: str = STEP_PREFIX,
    separator: str = STEP_SEPARATOR,
    after_error: str = "wrong",
) -> LabelledData:
    """Read and check all rows.

    Args:
        paths: files.
        loss: name of the loss, for messages.
        hard_labels: whether it takes 0 and 1 only.
        by_step: rows are responses cut into labelled steps, not prompts with labelled responses.
        prefix, separator: how steps are joined, see :func:`prime_ext.offline_prm.text.join_steps`.
        after_error: see :func:`step_labels`.

    Raises:
        BadData: see its message.
    """
    data = LabelledData()
    for path in map(Path, paths):
        number = 0
        for number, row in enumerate(read_rows(path), start=1):
            where = f"{path} row {number}"
            if by_step:
                _add_steps(data, row, where, prefix, separator, after_error)
                continue
            if "completions" not in row and "response" in row:
                row = _one_conversation(row, where)
            _add_responses(data, row, where, loss if hard_labels else None)
        if number == 0:
            raise BadData(f"{path} has no rows")
    return data


def is_mixed(examples: Sequence[Example]) -> bool:
    """Whether a prompt has both correct and wrong responses."""
    labels = {example.label for example in examples}
    return 0.0 in labels and 1.0 in labels


def is_held_out(prompt: Prompt, fraction: float, seed: int) -> bool:
    """Whether a prompt belongs to the validation split: by hash, so it does not move when other rows come or go."""
    return split_of(prompt_key(prompt), fraction, 0.0, seed) == "validation"
