# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The option ``--input`` of the converters: local files by set and split."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.task import SPLITS


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
