# SPDX-License-Identifier: Apache-2.0
"""Labeled responses from parquet and JSON Lines files, all checked before a model is loaded."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prime_ext.names import PRM_LOSSES
from prime_ext.utils.fields import Row, get_list, get_prompt, get_texts, parse_rows, show_value
from prime_ext.utils.rows import BadRow
from prime_ext.utils.text_tokens import Prompt, join_steps, wrap_prompt
from prime_ext.verl_adapter.offline_prm.offline_settings import LossSettings


@dataclass(frozen=True)
class Example:
    """One response with its outcome in [0, 1], or with the labels of its steps.

    ``char_ends`` are the positions after the steps, ``step_labels`` their labels, None for none.
    ``where`` is file and row, for messages.
    """

    text: str
    label: float | None
    char_ends: tuple[int, ...] = ()
    step_labels: tuple[float | None, ...] = ()
    where: str = ""


@dataclass
class PromptGroup:
    """A prompt with the responses of all rows that have it; its tokens where they are needed."""

    prompt: Prompt
    examples: list[Example] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)

    @property
    def is_mixed(self) -> bool:
        """Return whether there are both correct and wrong responses."""
        return {0.0, 1.0} <= {example.label for example in self.examples}


def count_examples(groups: Sequence[PromptGroup]) -> int:
    return sum(len(group.examples) for group in groups)


def prompt_key(prompt: Prompt) -> str:
    """Return a key that equal prompts share; a string equals one user message with this text."""
    return json.dumps(wrap_prompt(prompt), sort_keys=True, ensure_ascii=False)


def _label(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadRow(f"{name} must be in [0, 1], got {show_value(value)}")
    return float(value)


def _read_conversation(row: Row) -> Row:
    """Read ImplicitPRM's and EurusPRM's data: a conversation in ``response``, and ``label``."""
    messages = row["response"]
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise BadRow(
            f"response must be messages that end with the assistant's, got {str(messages)[:60]!r}"
        )
    return {
        "prompt": messages[:-1],
        "completions": [last.get("content")],
        "correctness": [row.get("label")],
    }


def _responses(row: Row, prm: LossSettings) -> Iterator[Example]:
    texts = get_texts(row, "completions")
    labels = get_list(row, "correctness", length=len(texts))
    for number, (text, value) in enumerate(zip(texts, labels, strict=True), start=1):
        label = _label(value, f"correctness {number}")
        if not PRM_LOSSES[prm.loss].allows_soft_labels and label not in (0, 1):
            raise BadRow(
                f"correctness {number} must be 0 or 1 for the loss {prm.loss}, got {value!r}"
            )
        yield Example(text, label)


def _steps(row: Row, prm: LossSettings) -> Iterator[Example]:
    """Read a response in labeled steps; all are 0 after the first 0: an error stays wrong."""
    steps = get_texts(row, "completions")
    values = get_list(row, "labels", length=len(steps))
    labels = [
        None if value is None else _label(value, f"label of step {number}")
        for number, value in enumerate(values, start=1)
    ]
    if all(label is None for label in labels):
        raise BadRow("no step has a label")
    if 0.0 in labels:
        first = labels.index(0.0)
        labels[first:] = [0.0] * (len(labels) - first)
    joined, char_ends = join_steps(steps, prm.steps.prefix, prm.steps.separator)
    yield Example(joined, None, char_ends, tuple(labels))


def _read_row(row: Row, prm: LossSettings) -> tuple[Prompt, list[Example]]:
    if not prm.by_step and "completions" not in row and "response" in row:
        row = _read_conversation(row)
    return get_prompt(row, "prompt"), list((_steps if prm.by_step else _responses)(row, prm))


def read_data(paths: Sequence[str | Path], prm: LossSettings) -> list[PromptGroup]:
    """Read and check all rows: prompts with labeled responses, or labeled steps.

    Raises SourceError.
    """
    groups: dict[str, PromptGroup] = {}
    for path in map(Path, paths):
        for where, (prompt, examples) in parse_rows(path, partial(_read_row, prm=prm)):
            group = groups.setdefault(prompt_key(prompt), PromptGroup(prompt))
            group.examples += [replace(example, where=where) for example in examples]
    return list(groups.values())
