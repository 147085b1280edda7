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
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from eval.store import RunError
from prime_ext.tasks.action_prompt import SYSTEM_PROMPT
from prime_ext.tasks.task import PLACEHOLDER, Problem, Task

Shown = tuple[Mapping[str, str], ...] | str
_RESPONSE = "{{response}}"


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
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    known = [field.name for field in fields(FewShot)]
    if not isinstance(given, dict) or not set(given) <= set(known):
        raise RunError(f"{where} must have the keys {', '.join(known)} and no others")
    examples = given.get("examples")
    if not isinstance(examples, list) or not examples or not all(map(_is_example, examples)):
        raise RunError(f"{where}: examples must be a list of mappings from fields, one of them response, to texts")
    shape, separator = given.get("format", FewShot.format), given.get("separator", FewShot.separator)
    if not isinstance(shape, str) or PLACEHOLDER.findall(shape) != ["prompt", "response"]:
        raise RunError(f"{where}: format must be a text with {{{{prompt}}}} and then {{{{response}}}}, got {shape!r}")
    if not isinstance(separator, str):
        raise RunError(f"{where}: separator must be a text, got {separator!r}")
    # Line breaks alone are a stop text too.
    stop = given.get("stop", [])
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RunError(f"{where}: stop must be a list of texts that are not empty, got {stop!r}")
    return FewShot(tuple(examples), shape, separator, tuple(stop))


def _is_example(value: object) -> bool:
    texts = isinstance(value, dict) and all(isinstance(part, str) for part in [*value, *value.values()])
    return texts and "response" in value  # type: ignore[operator]


def read_system(value: str) -> str | None:
    """The system message that ``--system-prompt`` asks for; None for the task's own.

    Raises:
        RunError: no such file, or no text in it.
    """
    named = {"default": None, "none": "", "actions": SYSTEM_PROMPT}
    if value in named:
        return named[value]
    try:
        text = Path(value).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"--system-prompt must be {', '.join(named)} or a text file: {error}") from error
    if not text:
        raise RunError(f"--system-prompt {value} is empty; none leaves the system message out")
    return text
