# SPDX-License-Identifier: Apache-2.0
"""The user's ``modules``, which verl imports in every process. This imports no verl or torch."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from prime_ext.config.checks import SettingsError

# verl's variable; it travels to the workers of a cluster with the rest of the environment.
VARIABLE = "VERL_USE_EXTERNAL_MODULES"
PLUGIN = "prime_ext.plugin"
_INSTALLED = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix)


def user_modules() -> list[str]:
    """Return the modules that verl imports in addition to the plug-in of prime_ext."""
    named = os.environ.get(VARIABLE, "").split(",")
    return [module for module in dict.fromkeys(named) if module not in ("", PLUGIN)]


def extend_variable(modules: Iterable[str]) -> str:
    """Return the variable's value: the plug-in, the modules that it names now, and these."""
    return ",".join(dict.fromkeys([PLUGIN, *user_modules(), *modules]))


def import_for_verl(modules: Iterable[str]) -> None:
    """Import these modules and those that the environment names, and name all of them there.

    verl then imports them in every process. Raises SettingsError: one cannot be imported.
    """
    os.environ[VARIABLE] = extend_variable(modules)
    import_modules(user_modules())


def import_modules(modules: Iterable[str]) -> None:
    """Import modules in this process only. Raises SettingsError: one cannot be imported."""
    for module in modules:
        if "/" in module or module.endswith(".py"):
            path = Path(module)
            raise SettingsError(
                f"modules: {module} is a path, and a module's name is needed: {path.stem}, with"
                f" {path.parent.absolute()} in PYTHONPATH"
            )
        try:
            importlib.import_module(module)
        except Exception as error:
            user_frames = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if "/" in frame.filename and not frame.filename.startswith(_INSTALLED)
            ]
            position = ""
            if user_frames:
                last = user_frames[-1]
                position = f" at {Path(last.filename).name}:{last.lineno}"
            not_found = isinstance(error, ModuleNotFoundError)
            remedy = "; PYTHONPATH must name its folder" if not_found else ""
            line = (
                f"modules: {module} cannot be imported{position} ({type(error).__name__}:"
                f" {error}){remedy}"
            )
            raise SettingsError(line) from error


def add_modules_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--modules`` to a program that judges responses, for :func:`import_modules`."""
    description = "modules with verifiers of your own, as in training"
    parser.add_argument("--modules", nargs="+", default=[], metavar="MODULE", help=description)
