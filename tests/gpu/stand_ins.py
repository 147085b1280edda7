# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for missing ray and transfer_queue, which verl's engines import but never call."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Anything:
    """An object that can be used as a decorator, a function or a namespace."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A bare decorator gives back what it decorates.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _StandIn(ModuleType):
    __path__: list[str] = []
    __version__ = "2.60.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # A type of its own where the name is that of a class, for isinstance and for base classes.
        return type(name, (), {"__module__": self.__name__}) if name[0].isupper() else _Anything()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def install(*names: str) -> list[str]:
    """Stand in for those of the packages that are not installed. Returns their names."""
    missing = tuple(name for name in names if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(missing))
    return list(missing)
