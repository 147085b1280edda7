# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: options, functions timed in turn, processes of their own, and the record beside a script.

Imported before torch and verl: it sets what they read when they are imported, and where helpers of the tests are.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["VERL_PLATFORM"] = "cpu"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from machine import PACKAGES, describe  # noqa: E402

from prime_ext.utils.files import write_text  # noqa: E402

SCRIPT = Path(sys.argv[0]).resolve()


def parser(document: str | None, sets: str = "", **numbers: int) -> argparse.ArgumentParser:
    """Options of every benchmark: ``--output``, ``--data`` where it reads public data ``sets``, and its ``numbers``."""
    found = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--output", type=Path, default=SCRIPT.with_suffix(".json"))
    for name, default in numbers.items():
        found.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    if sets:
        folder = os.environ.get("PRIME_EXT_DATA")
        help_text = f"folder with {sets}; default: PRIME_EXT_DATA"
        found.add_argument("--data", type=Path, default=folder, required=not folder, help=help_text)
    return found


def in_turn(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """Seconds of each function; called in turn, so that load hits all alike. A first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-int(warm_up), repeats):
        for name, function in functions.items():
            start = clock()
            function()
            if number >= 0:
                seconds[name].append(clock() - start)
    return seconds


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    """Result of a call, and its seconds, by default of the processor."""
    start = clock()
    result = function()
    return result, clock() - start


def own_process(*words: object) -> Any:
    """The JSON that this script prints last when called with these words, because the peak of a process never falls."""
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def record(options: argparse.Namespace, results: Mapping[str, object], packages: Sequence[str] = PACKAGES) -> None:
    """Write machine, settings and results to ``options.output``, and print them."""
    settings = {name: value for name, value in vars(options).items() if name not in ("output", "data")}
    found = {"machine": describe(packages=packages), "settings": settings, **results}
    text = json.dumps(found, indent=2, ensure_ascii=False, default=str)
    print(text)
    write_text(options.output, text + "\n")
