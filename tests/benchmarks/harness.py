# SPDX-License-Identifier: Apache-2.0
"""Options of the benchmarks, and the record next to each script.

Import it before torch and verl: it sets variables that they read on import, and the path to
helpers of the tests.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["VERL_PLATFORM"] = "cpu"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from machine import PACKAGES, describe  # noqa: E402

from prime_ext.utils.files import write_text  # noqa: E402


def parser(document: str | None, sets: str = "", **numbers: int) -> argparse.ArgumentParser:
    """Build a parser of ``--output``, ``--data`` (for the public ``sets``) and the ``numbers``."""
    options = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, default=Path(sys.argv[0]).with_suffix(".json"))
    for name, default in numbers.items():
        options.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    if sets:
        folder = os.environ.get("PRIME_EXT_DATA")
        help_text = f"folder with {sets}; default: PRIME_EXT_DATA"
        options.add_argument(
            "--data", type=Path, default=folder, required=not folder, help=help_text
        )
    return options


def record(
    options: argparse.Namespace, results: Mapping[str, object], packages: Sequence[str] = PACKAGES
) -> None:
    """Write machine, settings and results to ``options.output``, and print them."""
    settings = {
        name: value for name, value in vars(options).items() if name not in ("output", "data")
    }
    content = {"machine": describe(packages=packages), "settings": settings, **results}
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    print(text)
    write_text(options.output, text + "\n")
