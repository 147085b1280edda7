# SPDX-License-Identifier: Apache-2.0
"""Whole runs, which print to a log."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Ray gives its processes 30 seconds to start, always; a busy machine may need another attempt.
RAY_STARTS = 3
# Long enough for a machine that is busy with other work; an idle one takes a minute or two.
TIMEOUT = 1800


def run_logged(log: Path, args: Sequence[Any], env: Mapping[str, str], **options: Any) -> None:
    """Run a program to its end, again if Ray did not start; a failure shows the end of its log."""
    for _ in range(RAY_STARTS):
        with log.open("w") as stream:
            done = subprocess.run(
                args, env=env, stdout=stream, stderr=stream, timeout=TIMEOUT, check=False, **options
            )
        text = log.read_text(errors="replace")
        if done.returncode == 0 or not ray_was_too_slow(text):
            break
    assert done.returncode == 0, "\n".join(text.splitlines()[-60:])


def ray_was_too_slow(text: str) -> bool:
    """Return whether a log says that Ray's own processes did not start within its 30 seconds."""
    return "The current node timed out during startup" in text
