# SPDX-License-Identifier: Apache-2.0
"""Studies of many training runs: one after another, those that have no result yet, each with a log of its own."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]


def run_missing(names: Sequence[str], results: Path, prepare: Callable[[], None], run: Callable[[str], None]) -> None:
    """Run what has no ``<name>.json`` among the results; the others go on when one fails.

    Raises:
        SystemExit: some failed; the message has the end of their logs.
    """
    missing = [name for name in names if not (results / f"{name}.json").exists()]
    if not missing:
        print(f"{results}: nothing left to run")
        return
    prepare()
    failed = []
    for name in tqdm(missing, desc=results.name, unit="run"):
        try:
            run(name)
        except RuntimeError as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise SystemExit("\n\n".join([f"{len(failed)} runs failed; started again, they are tried again.", *failed]))


def run_logged(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    """Run a command whose output goes to ``log.txt`` in the folder.

    Raises:
        RuntimeError: it failed; the end of its log is in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        done = subprocess.run(
            command, env=dict(environment), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        tail = (folder / "log.txt").read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("\n".join([f"{folder} failed; the end of its log.txt:", *tail]))
