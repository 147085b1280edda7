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
"""Command line of the drills."""

import argparse
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.files import read_json, write_json
from recipes.drills import faults, kills
from recipes.drills.inputs import STEPS
from recipes.drills.runs import HANG_SECONDS, DrillError

DRILLS = {
    **{name: kills.killing(title) for name, title in kills.TITLES.items()},
    "full_disk": faults.full_disk,
    "corrupt_checkpoint": faults.corrupt_checkpoint,
    "too_easy_data": faults.too_easy_data,
    "nan_prm": faults.nan_prm,
    "nan_policy": faults.nan_policy,
    "nan_learning_rate": faults.nan_learning_rate,
    "no_reward_server": faults.no_reward_server,
    "two_runs": faults.two_runs,
}
PACKAGES = ("verl", "ray", "torch", "transformers", "TransferQueue")


def settings() -> dict[str, Any]:
    """What the results depend on."""
    return {
        "steps": STEPS,
        "save_freq": 1,
        "hang_seconds": HANG_SECONDS,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def add_result(path: Path, name: str, result: dict[str, Any]) -> None:
    """Put the result of one drill into the file, in the order of ``DRILLS``."""
    drills = read_json(path)["drills"] if path.exists() else {}
    drills[name] = result
    ordered = {known: drills[known] for known in DRILLS if known in drills}
    write_json(path, {"settings": settings(), "drills": ordered})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.drills", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(DRILLS), help="may be given several times")
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/drills"))
    parser.add_argument("--output", type=Path, default=Path("outputs/drills/results.json"))
    options = parser.parse_args()
    failed = False
    for name in options.only or DRILLS:
        folder = options.work_dir.resolve() / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            outcome = DRILLS[name](folder, options.work_dir.resolve() / "inputs")
        except DrillError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        add_result(options.output, name, outcome.as_dict())
        print(f"{name}: {outcome}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
