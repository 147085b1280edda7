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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prime_ext.tasks.action_prompt import SYSTEM_PROMPT
from prime_ext.tasks.task import PLACEHOLDER, Problem, Prompt, Task
from prime_ext.tasks.task_checks import Wrong, list_of, mapping, text_of

Shown = tuple[Mapping[str, str], ...] | str
_RESPONSE = "{{response}}"


class PromptError(ValueError):
    """A prompt cannot be made as asked; the message is one line."""


@dataclass(frozen=True)
class FewShot:
    """Worked examples; see the head of this file.

    Attributes:
        examples: the fields of a problem, and ``response``.
        format: of plain text.
        separator: between plain texts.
        stop: texts at which a response ends.
    """

    examples: tuple[Mapping[str, str], ...] = ()
    format: str = "{{prompt}}\n" + _RESPONSE
    separator: str = "\n\n"
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Style:
    """How the problems of all tasks of a run are shown.

    Attributes:
        prompt: name of the prompt in the task files.
        system: the system message; None for the task's own, empty for none.
        few_shot: worked examples.
        raw: plain text, without the model's chat template.
    """

    prompt: str = "default"
    system: str | None = None
    few_shot: FewShot | None = None
    raw: bool = False

    def shown(self, task: Task, problem: Problem) -> Shown:
        """The chat or the plain text that shows a problem.

        Raises:
            PromptError: the task has no such prompt, or an example lacks a field of it.
        """
        prompt = self._prompt(task)
        user = _filled(prompt.user, problem.fields)
        # Braces in a system message that was given are its own.
        system = _filled(prompt.system, problem.fields) if self.system is None else self.system
        examples = [
            (_filled(prompt.user, self._example(task, prompt, number)), example["response"])
            for number, example in enumerate(self.few_shot.examples if self.few_shot else (), start=1)
        ]
        if self.raw:
            return self._text(system, examples, user)
        turns = [{"role": "system", "content": system}] if system else []
        for asked, answered in examples:
            turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return (*turns, {"role": "user", "content": user})

    def _prompt(self, task: Task) -> Prompt:
        if self.prompt not in task.prompts:
            raise PromptError(f"{task.name} has no prompt {self.prompt!r}; it has {', '.join(task.prompts)}")
        return task.prompts[self.prompt]

    def _example(self, task: Task, prompt: Prompt, number: int) -> Mapping[str, str]:
        assert self.few_shot is not None
        example = self.few_shot.examples[number - 1]
        for name in PLACEHOLDER.findall(prompt.user):
            if name not in example:
                raise PromptError(f"few-shot example {number} has no {name!r}, which the prompt of {task.name} shows")
        return example

    def _text(self, system: str, examples: Sequence[tuple[str, str]], user: str) -> str:
        if self.few_shot is None:
            return f"{system}\n\n{user}" if system else user
        shot = self.few_shot
        done = [_filled(shot.format, {"prompt": asked, "response": answered}) for asked, answered in examples]
        begun = _filled(shot.format.partition(_RESPONSE)[0], {"prompt": user})
        return shot.separator.join([*([system] if system else []), *done, begun])


def _filled(text: str, values: Mapping[str, str]) -> str:
    # One pass: braces inside a value are the value's.
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def read_few_shot(path: Path) -> FewShot:
    """Read a few-shot file.

    Raises:
        PromptError: see its message.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PromptError(f"--few-shot {path} cannot be read: {' '.join(str(error).split())}") from error
    try:
        return _few_shot(content)
    except Wrong as error:
        raise PromptError(f"--few-shot {path}: {error}") from error


def _few_shot(content: Any) -> FewShot:
    given = mapping(content, "the file", known=("examples", "format", "separator", "stop"), needed=["examples"])
    examples = []
    for number, item in enumerate(list_of(given["examples"], "examples"), start=1):
        key = f"examples.{number}"
        texts = mapping(item, key, needed=["response"])
        examples.append({name: text_of(text, f"{key}.{name}") for name, text in texts.items()})
    shape = given.get("format", FewShot.format)
    found = PLACEHOLDER.findall(shape) if isinstance(shape, str) else []
    if found != ["prompt", "response"]:
        raise Wrong(f"format must be a text with {{{{prompt}}}} and then {{{{response}}}}, once each, got {shape!r}")
    separator = given.get("separator", FewShot.separator)
    if not isinstance(separator, str):
        raise Wrong(f"separator must be a text, got {separator!r}")
    # Line breaks alone are a stop text too.
    stop = given.get("stop", [])
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise Wrong(f"stop must be a list of texts that are not empty, got {stop!r}")
    return FewShot(tuple(examples), shape, separator, tuple(stop))


def read_system(value: str) -> str | None:
    """The system message that ``--system-prompt`` asks for; None for the task's own.

    Raises:
        PromptError: no such file, or no text in it.
    """
    if value == "default":
        return None
    if value == "none":
        return ""
    if value == "actions":
        return SYSTEM_PROMPT
    try:
        text = Path(value).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error
        raise PromptError(
            f"--system-prompt must be default, none, actions or a text file, got {value}: {reason}"
        ) from error
    if not text:
        raise PromptError(f"--system-prompt {value} is empty; none leaves the system message out")
    return text
