# SPDX-License-Identifier: Apache-2.0
"""How the commands that make rows end: an exit code, and one line for what went wrong or for each source."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.sources import UnknownSource

Report = Mapping[str, Any]


def finish(
    program: str, run: Callable[[], tuple[Report, list[Path]]], then: Callable[[Report, list[Path]], int]
) -> int:
    """Run a command that makes rows, say what became of each source, and end with ``then``.

    Args:
        program: its name, before every error.
        run: makes the rows; returns the report and the files.
        then: what the exit code depends on once the rows are made.

    Returns:
        The code of ``then``; 2 after an error, 130 if the user stopped it.
    """
    try:
        report, paths = run()
    except (SourceError, BackendError, UnknownSource, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept, the same command goes on from here", file=sys.stderr)
        return 130
    for found in report["sources"]:
        removed = ", ".join(f"{name} {n}" for name, n in found["removed"].items()) or "nothing removed"
        print(f"{found['split']} {found['data_source']}: {found['read']} rows, {removed}, {found['written']} written")
    return then(report, paths)
