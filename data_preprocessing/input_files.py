# SPDX-License-Identifier: Apache-2.0
"""The option ``--input`` of the converters: local files by set and split."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_ext.tasks.task import SPLITS


class InputFiles(argparse.Action):
    """``name=file`` or ``name:split=file``, any number of times; gives ``{name: {split: path}}``.

    The destination must have the default ``{}``. Without a split the file is of the split ``all``.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given = {name: dict(files) for name, files in getattr(namespace, self.dest).items()}
        for value in values or ():
            target, equals, path = value.partition("=")
            name, colon, split = target.partition(":")
            split = split if colon else "all"
            if not equals or not path or split not in SPLITS:
                kind = str(self.metavar).partition("[")[0]
                parser.error(f"--input {value}: must be {kind}=FILE or {kind}:SPLIT=FILE with {', '.join(SPLITS)}")
            if split in given.setdefault(name, {}):
                parser.error(f"--input {value}: {name} already has a file for {split}")
            given[name][split] = Path(path)
        setattr(namespace, self.dest, given)
