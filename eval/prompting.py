# SPDX-License-Identifier: Apache-2.0
"""A task's prompt for a model: with another system message, worked examples, or as plain text.

The few-shot file is described in docs/reference/evaluation.md. In a chat every example is a message
of the user, by the task's prompt, and one of the assistant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field

from prime_ext.config.checks import STRICT, SettingsError, read
from prime_ext.tasks.benchmark_task import BenchmarkProblem, Task
from prime_ext.tasks.cells import PLACEHOLDER, fill_in
from prime_ext.utils.run_store import RunError

Shown = tuple[Mapping[str, str], ...] | str
_RESPONSE = "{{response}}"


def _check_example(fields: Mapping[str, str]) -> Mapping[str, str]:
    if "response" not in fields:
        raise ValueError("must have the key response")
    return fields


def _check_shape(text: str) -> str:
    if PLACEHOLDER.findall(text) != ["prompt", "response"]:
        raise ValueError("must be a text with {{prompt}} and then {{response}}")
    return text


@dataclass(frozen=True)
class FewShot:
    """Worked examples; ``separator`` joins plain texts, and a response ends at one of ``stop``."""

    __pydantic_config__ = STRICT

    examples: Annotated[
        tuple[Annotated[Mapping[str, str], AfterValidator(_check_example)], ...],
        Field(min_length=1),
    ] = ()
    format: Annotated[str, AfterValidator(_check_shape)] = "{{prompt}}\n" + _RESPONSE
    separator: str = "\n\n"
    # Line breaks alone are a stop text too.
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()


def show(
    task: Task,
    problem: BenchmarkProblem,
    prompt_name: str,
    system: str | None,
    shot: FewShot,
    raw: bool,
) -> Shown:
    """Return the chat that shows a problem, or with ``raw`` the plain text.

    ``system`` is None for the task's own message, empty for none. ``RunError``: the task has no
    such prompt, or an example lacks a field of it.
    """
    prompt = task.get_prompt(prompt_name)
    for number, example in enumerate(shot.examples, start=1):
        for name in PLACEHOLDER.findall(prompt.user):
            if name not in example:
                raise RunError(
                    f"few-shot example {number} has no {name!r}, which the prompt of {task.name}"
                    " shows"
                )
    user = fill_in(prompt.user, problem.fields)
    # Braces in a system message that was given are its own.
    system = fill_in(prompt.system, problem.fields) if system is None else system
    examples = [(fill_in(prompt.user, example), example["response"]) for example in shot.examples]
    if not raw:
        turns = [{"role": "system", "content": system}] if system else []
        for question, response in examples:
            turns += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": response},
            ]
        return (*turns, {"role": "user", "content": user})
    if not examples:
        return f"{system}\n\n{user}" if system else user
    done = [
        fill_in(shot.format, {"prompt": question, "response": response})
        for question, response in examples
    ]
    begun = fill_in(shot.format.partition(_RESPONSE)[0], {"prompt": user})
    return shot.separator.join([*([system] if system else []), *done, begun])


def read_few_shot(path: Path) -> FewShot:
    """Read a few-shot file. Raises ``RunError``."""
    where = f"--few-shot {path}"
    try:
        shot = read(FewShot, yaml.safe_load(path.read_text(encoding="utf-8")), "")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    except SettingsError as error:
        raise RunError(f"{where}: {error}") from error
    if not shot.examples:
        raise RunError(f"{where} needs the key 'examples'")
    return shot
