# SPDX-License-Identifier: Apache-2.0
r"""What a model is shown: a task's prompt with another system message, worked examples, or as plain text.

A few-shot file is YAML:

    examples:                    # shown before the problem, in this order
      - problem: What is 1 + 1?  # the fields that the task's prompt shows
        response: 'It is \boxed{2}.'
    format: |-                   # optional: an example as plain text (--raw); the problem ends where the response goes
      Problem: {{prompt}}
      Solution: {{response}}
    separator: "\n\n"            # optional: between plain texts
    stop: ["\n\nProblem:"]       # optional: texts at which a response ends; base models go on with another problem

In a chat every example is a message of the user, by the task's prompt, and one of the assistant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field, TypeAdapter

from eval.store import RunError
from prime_ext.tasks.checked import NO_OTHER_KEYS, Wrong, checked
from prime_ext.tasks.task import PLACEHOLDER, Problem, Task

Shown = tuple[Mapping[str, str], ...] | str
_RESPONSE = "{{response}}"


def _example(fields: Mapping[str, str]) -> Mapping[str, str]:
    if "response" not in fields:
        raise ValueError("must have the key response")
    return fields


def _shape(text: str) -> str:
    if PLACEHOLDER.findall(text) != ["prompt", "response"]:
        raise ValueError("must be a text with {{prompt}} and then {{response}}")
    return text


@dataclass(frozen=True)
class FewShot:
    """Worked examples; see the head of this file."""

    __pydantic_config__ = NO_OTHER_KEYS

    examples: Annotated[tuple[Annotated[Mapping[str, str], AfterValidator(_example)], ...], Field(min_length=1)] = ()
    format: Annotated[str, AfterValidator(_shape)] = "{{prompt}}\n" + _RESPONSE
    separator: str = "\n\n"
    # Line breaks alone are a stop text too.
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()


@dataclass(frozen=True)
class Style:
    """How the problems of all tasks of a run are shown.

    ``system`` is None for the task's own message, empty for none; ``raw`` leaves out the chat template.
    """

    prompt: str = "default"
    system: str | None = None
    few_shot: FewShot = FewShot()
    raw: bool = False

    def shown(self, task: Task, problem: Problem) -> Shown:
        """The chat or the plain text that shows a problem.

        Raises:
            RunError: the task has no such prompt, or an example lacks a field of it.
        """
        if self.prompt not in task.prompts:
            raise RunError(f"{task.name} has no prompt {self.prompt!r}; it has {', '.join(task.prompts)}")
        prompt, shot = task.prompts[self.prompt], self.few_shot
        for number, example in enumerate(shot.examples, start=1):
            for name in PLACEHOLDER.findall(prompt.user):
                if name not in example:
                    raise RunError(f"few-shot example {number} has no {name!r}, which the prompt of {task.name} shows")
        user = _filled(prompt.user, problem.fields)
        # Braces in a system message that was given are its own.
        system = _filled(prompt.system, problem.fields) if self.system is None else self.system
        examples = [(_filled(prompt.user, example), example["response"]) for example in shot.examples]
        if not self.raw:
            turns = [{"role": "system", "content": system}] if system else []
            for asked, answered in examples:
                turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
            return (*turns, {"role": "user", "content": user})
        if not examples:
            return f"{system}\n\n{user}" if system else user
        done = [_filled(shot.format, {"prompt": asked, "response": answered}) for asked, answered in examples]
        begun = _filled(shot.format.partition(_RESPONSE)[0], {"prompt": user})
        return shot.separator.join([*([system] if system else []), *done, begun])


def _filled(text: str, values: Mapping[str, str]) -> str:
    # One pass: braces inside a value are the value's.
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def read_few_shot(path: Path) -> FewShot:
    """Read a few-shot file.

    Raises:
        RunError: see its message.
    """
    where = f"--few-shot {path}"
    try:
        found = checked(TypeAdapter(FewShot), yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    except Wrong as error:
        raise RunError(f"{where}: {error}") from error
    if not found.examples:
        raise RunError(f"{where} needs the key 'examples'")
    return found
