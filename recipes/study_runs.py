# SPDX-License-Identifier: Apache-2.0
"""Studies of many training runs through verl: one after another, those that have no result yet."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from prime_ext.run.checkpoint import complete_steps
from prime_ext.utils.files import numbered_lines, write_json_lines

ROOT = Path(__file__).resolve().parents[1]
RUNS = "runs.jsonl"


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """What is kept of the runs of a study, by their names; nothing where none was kept yet."""
    path = folder / RUNS
    rows = [json.loads(line) for _, line in numbered_lines(path)] if path.exists() else []
    return {row.pop("run"): row for row in rows}


def keep_run(folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Add a run to ``runs.jsonl``, a line each in the order of their names. Other processes may do the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{RUNS}.lock"):
        runs = {**read_runs(folder), name: result}
        write_json_lines(folder / RUNS, ({"run": name, **runs[name]} for name in sorted(runs)))


def run_missing(
    names: Sequence[str],
    folder: Path,
    results: Path,
    prepare: Callable[[], None],
    training: Callable[[str, Path], tuple[Sequence[str], Mapping[str, str]]],
    result_of: Callable[[str, Path], Mapping[str, Any]],
) -> None:
    """Train and measure what is not among the results; the others go on when one fails.

    Args:
        names: of the runs; each has a folder ``runs/<name>``, whose checkpoints go once it is measured.
        folder: of the study.
        results: folder of ``runs.jsonl``.
        prepare: makes what the runs share; called if there is something to run.
        training: words of a recipe and its knobs, STEPS among them, given name and folder of a run.
        result_of: what is kept of a finished run, given the same.

    Raises:
        SystemExit: some failed; the message has the end of their logs.
    """
    kept = read_runs(results)
    missing = [name for name in names if name not in kept]
    if not missing:
        print(f"{results}: nothing left to run")
        return
    prepare()
    failed = []
    for name in tqdm(missing, desc=results.name, unit="run"):
        run = folder / "runs" / name
        try:
            words, knobs = training(name, run)
            # Else only the measurement was interrupted.
            if int(knobs["STEPS"]) not in complete_steps(run / "checkpoints"):
                run_logged(words, knobs, run)
        except RuntimeError as error:
            failed.append(f"{name}: {error}")
            continue
        keep_run(results, name, result_of(name, run))
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if failed:
        raise SystemExit("\n\n".join([f"{len(failed)} runs failed; started again, they are tried again.", *failed]))


def run_logged(words: Sequence[object], knobs: Mapping[str, str], folder: Path) -> None:
    """Run a recipe, named below ``recipes``; its output goes to ``log.txt`` in the folder.

    Raises:
        RuntimeError: it failed; the end of its log is in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["bash", str(ROOT / "recipes" / str(words[0])), *map(str, words[1:])]
    environment = {**os.environ, **knobs, "PYTHON": sys.executable}
    with (folder / "log.txt").open("a") as log:
        done = subprocess.run(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        tail = (folder / "log.txt").read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("\n".join([f"{folder} failed; the end of its log.txt:", *tail]))


def run_module(*words: object) -> None:
    """``python -m`` with these words, from the root of the repository; its failure is one of the caller."""
    subprocess.run([sys.executable, "-m", *map(str, words)], cwd=ROOT, check=True)
