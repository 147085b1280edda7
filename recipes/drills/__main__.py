# SPDX-License-Identifier: Apache-2.0
"""Command line of the drills."""

import argparse
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json, write_json
from recipes.drills import faults, kills
from recipes.drills.outcome import Outcome
from recipes.drills.runs import HANG_SECONDS, DrillError
from recipes.drills.session import prime_session

# Hit one run after another of one command in one folder; first those that the run survives.
CHAINED = {
    "two_runs": faults.two_runs,
    "kill_verifiers": kills.kill_verifiers,
    "kill_agent_loop": kills.killing("ray::AgentLoopWorker"),
    "full_disk": faults.full_disk,
    "corrupt_checkpoint": faults.corrupt_checkpoint,
    "kill_rank": kills.killing("ray::WorkerDict"),
    "kill_driver": kills.killing(None),
    "kill_reward_worker": kills.killing("ray::RewardLoopWorker"),
    "kill_rollout_server": kills.killing("ray::TransformersServer"),
    "kill_trainer": kills.killing("ray::TaskRunnerV1"),
}
ALONE = {
    "nan_prm": faults.nan_prm,
    "no_reward_server": faults.no_reward_server,
    "too_easy_data": faults.too_easy_data,
    "nan_policy": faults.nan_policy,
    "nan_learning_rate": faults.nan_learning_rate,
}
DRILLS = [*CHAINED, *ALONE]
PACKAGES = ("verl", "ray", "torch", "transformers", "TransferQueue")


def settings() -> dict[str, Any]:
    """What the results depend on."""
    return {
        "save_freq": 1,
        "hang_seconds": HANG_SECONDS,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def add_result(path: Path, name: str, outcome: Outcome) -> None:
    """Put the result of one drill into the file, in the order of ``DRILLS``."""
    drills = read_json(path)["drills"] if path.exists() else {}
    drills[name] = outcome.as_dict()
    ordered = {known: drills[known] for known in DRILLS if known in drills}
    write_json(path, {"settings": settings(), "drills": ordered})


def run_drills(names: list[str], work_dir: Path, output: Path) -> list[str]:
    """Run drills one after another. Returns those that did not come about."""
    inputs, failed = work_dir / "inputs", []
    for name in names:
        # The chained ones share a folder.
        shutil.rmtree(work_dir / (name if name in ALONE else "chain"), ignore_errors=True)
    session = prime_session(work_dir / "chain", inputs, own_disk="full_disk" in names)
    try:
        for name in names:
            try:
                if name in CHAINED:
                    outcome = CHAINED[name](session)
                else:
                    session.close()
                    outcome = ALONE[name](work_dir / name, inputs)
            except DrillError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                failed.append(name)
                continue
            add_result(output, name, outcome)
            print(f"{name}: {outcome}", flush=True)
    finally:
        session.close()
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.drills", description=__doc__)
    parser.add_argument("--only", action="append", choices=DRILLS, help="may be given several times")
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/drills"))
    parser.add_argument("--output", type=Path, default=Path("outputs/drills/results.json"))
    options = parser.parse_args()
    # In their order, because the chained ones come first.
    names = [name for name in DRILLS if name in (options.only or DRILLS)]
    raise SystemExit(bool(run_drills(names, options.work_dir.resolve(), options.output)))


if __name__ == "__main__":
    main()
