# SPDX-License-Identifier: Apache-2.0
"""Names of environments, such as ``textarena:Wordle-v0`` or ``my_games:Guess:most=20``.

``KIND:TASK[:PARAMETER=VALUE]...`` names a task of a library in ``KINDS``;
``MODULE:CLASS[:PARAMETER=VALUE]...`` any class with the methods of
:class:`prime_ext.environments.TextEnvironment`. Parameters are arguments of the class, written in
YAML. A class method ``prepare`` with the same arguments, if there is one, is called once for all
episodes, to import libraries and to refuse arguments by SourceError.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from prime_ext.config.checks import guess
from prime_ext.environments import TextEnvironment
from prime_ext.utils.rows import SourceError

# Libraries of environments, each with the class that plays its tasks.
KINDS = {
    "reasoning_gym": "prime_ext.environments.reasoning_gym:ProblemEnvironment",
    "textarena": "prime_ext.environments.textarena:TextArenaGame",
}
# Environments of this package.
BUILT_IN = {"number_path": "prime_ext.environments.number_path:NumberPath"}
# Data source of the rows of an environment: environment/NAME.
DATA_SOURCE = "environment/"
_METHODS = ("reset", "step", "close")


@dataclass(frozen=True)
class EnvironmentName:
    """A name, read: the class, and the arguments that make an environment."""

    path: str
    arguments: tuple[Any, ...]
    parameters: dict[str, Any]


def read_name(name: str) -> EnvironmentName:
    """Read a name. Raises SourceError: it has no class, or a parameter without a value."""
    kind, _, rest = name.partition(":")
    words = rest.split(":") if rest else []
    arguments: tuple[Any, ...] = ()
    if kind in BUILT_IN:
        path = BUILT_IN[kind]
    elif kind in KINDS:
        if not words or "=" in words[0]:
            raise SourceError(f"{name}: name a task, as in {kind}:TASK")
        path = KINDS[kind]
        arguments = (words.pop(0),)
    elif words and "=" not in words[0]:
        path = f"{kind}:{words.pop(0)}"
    else:
        known = [*BUILT_IN, *KINDS]
        raise SourceError(
            f"there is no environment {name!r}{guess(kind, known)}; known are"
            f" {', '.join([*BUILT_IN, *(f'{kind}:TASK' for kind in KINDS)])}, and MODULE:CLASS"
        )
    parameters = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise SourceError(f"{name}: {word!r} must be PARAMETER=VALUE")
        try:
            parameters[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise SourceError(f"{name}: {word!r} is not YAML: {error}") from error
    return EnvironmentName(path, arguments, parameters)


def load_environment(name: str) -> Callable[[], TextEnvironment]:
    """Import an environment's class; return the function that makes one. Raises SourceError."""
    read = read_name(name)
    module_name, _, class_name = read.path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if f"{module_name}.".startswith(f"{error.name}."):
            remedy = guess(module_name, [*BUILT_IN, *KINDS]) or "; PYTHONPATH must name its folder"
            raise SourceError(f"{name}: there is no module {error.name}{remedy}") from error
        raise SourceError(f"{name}: {module_name} needs the module {error.name}") from error
    except Exception as error:
        raise SourceError(
            f"{name}: {module_name} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        raise SourceError(
            f"{name}: {module_name} has no {class_name}{guess(class_name, vars(module))}"
        )
    missing = [method for method in _METHODS if not callable(getattr(kind, method, None))]
    if missing:
        raise SourceError(f"{name}: {class_name} has no method {', '.join(missing)}")
    if hasattr(kind, "prepare"):
        kind.prepare(*read.arguments, **read.parameters)

    def make() -> TextEnvironment:
        return kind(*read.arguments, **read.parameters)

    return make
