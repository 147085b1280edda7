# SPDX-License-Identifier: Apache-2.0
"""Command lines: one parser, and options with the same name, check and help in all programs."""

import argparse
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from prime_ext.utils.run_store import RunError

Group = argparse.ArgumentParser | argparse._ArgumentGroup
_ABOVE_0 = math.ulp(0.0)
_MOST = 2**31 - 1


class Parser(argparse.ArgumentParser):
    """Parser whose help shows the description as it is.

    Errors are one line, where ``run_store.command`` decorates the program.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ``RunError``."""
        raise RunError(f"{message}; --help lists the options")


def build_parser(program: str, description: str | None) -> Parser:
    """Return the parser of ``prime-ext PROGRAM``."""
    return Parser(prog=f"prime-ext {program}", description=description)


def limit_number(
    kind: Callable[[str], float], low: float, high: float, words: str
) -> Callable[[str], Any]:
    """Return a type of arguments: numbers from ``low`` to ``high``, which ``words`` describe."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= (value := kind(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} must be {words}")

    return read


COUNT = limit_number(int, 1, _MOST, "a whole number from 1")
COUNT_FROM_2 = limit_number(int, 2, _MOST, "a whole number from 2")
WHOLE = limit_number(int, 0, _MOST, "a whole number from 0")
SHARE = limit_number(float, 0, 1, "from 0 to 1")
SHARE_ABOVE_0 = limit_number(float, _ABOVE_0, 1, "above 0 and at most 1")
TEMPERATURE = limit_number(float, 0, 100, "from 0 to 100")
POSITIVE = limit_number(float, _ABOVE_0, 1e300, "above 0")


class _Names(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [name for value in values for name in value.split(",")])


def add_output_argument(parser: Group, about: str, required: bool = True) -> None:
    """Add ``--output-dir``, also called ``--output``: the folder that a program writes."""
    names = ("--output-dir", "--output")
    parser.add_argument(
        *names, dest="output", type=Path, required=required, metavar="FOLDER", help=about
    )


def add_data_argument(parser: Group) -> None:
    """Add ``--data-dir``, also called ``--data``."""
    about = "folder with the local files of the tasks (default: the Hugging Face hub)"
    parser.add_argument("--data-dir", "--data", type=Path, metavar="FOLDER", help=about)


def add_tasks_argument(parser: Group, about: str) -> None:
    """Add ``--tasks``, whose names have commas or white space between them."""
    parser.add_argument("--tasks", nargs="+", action=_Names, metavar="TASK", help=about)


def add_prompt_argument(parser: Group, about: str = "name of a prompt of the tasks") -> None:
    """Add ``--prompt``."""
    parser.add_argument("--prompt", default="default", help=f"{about} (default: default)")


def add_seed_argument(parser: Group, about: str, *names: str) -> None:
    """Add ``--seed``, with further names."""
    parser.add_argument(
        "--seed", *names, type=WHOLE, default=0, help=f"of {about} (default: 0)", metavar="N"
    )


def add_split_arguments(parser: Group, unit: str, validation: float, test: float) -> None:
    """Add ``--validation`` and ``--test``, shares of the units with these defaults; ``--seed``."""
    for name, default in (("validation", validation), ("test", test)):
        about = f"share of the {unit} (default: {default:g})"
        parser.add_argument(f"--{name}", type=SHARE, default=default, help=about)
    add_seed_argument(parser, "the split")


def check_split(validation: float, test: float) -> None:
    """Raise ``RunError`` if these shares leave nothing for training."""
    if validation + test >= 1:
        raise RunError(f"--validation {validation} and --test {test} must add up to less than 1")


def add_sampling_arguments(parser: Group, defaults: Sequence[float | None] = (None,) * 3) -> None:
    """Add ``--temperature``, ``--top-p`` and ``--max-new-tokens``, with defaults in this order."""
    options = (
        ("--temperature", TEMPERATURE, "0 is greedy"),
        ("--top-p", SHARE_ABOVE_0, "share of the probability that is sampled from"),
        ("--max-new-tokens", COUNT, "tokens of a response at most"),
    )
    for (name, kind, about), default in zip(options, defaults, strict=True):
        shown = about if default is None else f"{about} (default: {default})"
        parser.add_argument(name, type=kind, default=default, help=shown, metavar="N")
