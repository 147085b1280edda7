# SPDX-License-Identifier: Apache-2.0
"""Fault tests: a small run on the CPU, one fault, and what becomes of the run and of what it had saved.

    python -m recipes.fault_tests --work-dir outputs/fault_tests --output outputs/fault_tests/results.json
    python -m recipes.fault_tests --only kill_driver --only full_disk ...
    python -m recipes.fault_tests --table recipes/fault_tests/results.json

The last prints the table of docs/how_to/fault_tests.md, which was made from that file.
"""

import argparse
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json, write_json
from recipes.fault_tests import faults
from recipes.fault_tests.runs import HANG_SECONDS, NotReached, Outcome, Run, Session
from recipes.run_statistics import markdown

# The fault in words, and what brings it about. These hit one run after another of one command in one folder; first
# those that the run survives.
CHAINED = {
    "two_runs": ("a second run is started in the same folder (the second one's end)", faults.two_runs),
    "kill_verifiers": ("SIGKILL of the actor with the verifiers of a node", faults.kill_verifiers),
    "kill_agent_loop": ("SIGKILL of an agent-loop worker", faults.killing("ray::AgentLoopWorker")),
    "full_disk": ("the disk of the checkpoints fills up in the middle of a save", faults.full_disk),
    "corrupt_checkpoint": (
        "SIGKILL of all processes, and a file of the newest checkpoint (not counted) cut in half",
        faults.corrupt_checkpoint,
    ),
    "kill_rank": ("SIGKILL of a training rank", faults.killing("ray::WorkerDict")),
    "kill_driver": ("SIGKILL of the command itself", faults.killing(None)),
    "kill_reward_worker": ("SIGKILL of a reward worker", faults.killing("ray::RewardLoopWorker")),
    "kill_rollout_server": ("SIGKILL of a rollout server", faults.killing("ray::TransformersServer")),
    "kill_trainer": ("SIGKILL of the trainer (Ray's `TaskRunnerV1`)", faults.killing("ray::TaskRunnerV1")),
}
# These have a run and a folder of their own.
ALONE = {
    "nan_prm": ("one weight of the PRM's start model is NaN", faults.nan_weight("prm.model.path")),
    "no_reward_server": ("PSPO-WRS: the server of the step reward model goes away", faults.no_reward_server),
    "too_easy_data": (
        "every rollout of every prompt is right, so no prompt passes the filter",
        faults.too_easy_data,
    ),
    "nan_policy": (
        "one weight of the policy's start model is NaN",
        faults.nan_weight("actor_rollout_ref.model.path"),
    ),
    "nan_learning_rate": ("the learning rate is NaN", faults.nan_learning_rate),
}
FAULTS = CHAINED | ALONE
PACKAGES = ("verl", "ray", "torch", "transformers", "TransferQueue")


def add_result(path: Path, name: str, outcome: Outcome) -> None:
    """Put the result of one fault into the file, in the order of ``FAULTS``."""
    results = read_json(path)["faults"] if path.exists() else {}
    results[name] = outcome.as_dict()
    settings = {"save_freq": 1, "hang_seconds": HANG_SECONDS, "python": platform.python_version()}
    settings |= {package: version(package) for package in PACKAGES}
    write_json(path, {"settings": settings, "faults": {known: results[known] for known in FAULTS if known in results}})


def run_tests(names: list[str], work_dir: Path, output: Path) -> list[str]:
    """Bring about one fault after another. Returns those that did not come about."""
    inputs, chain, failed = work_dir / "inputs", work_dir / "chain", []
    for name in names:
        shutil.rmtree(work_dir / name if name in ALONE else chain, ignore_errors=True)
    session = Session(chain, lambda name: Run(chain, inputs, name=name), own_disk="full_disk" in names)
    try:
        for name in names:
            try:
                if name in CHAINED:
                    outcome = CHAINED[name][1](session)
                else:
                    session.close()
                    outcome = ALONE[name][1](work_dir / name, inputs)
            except NotReached as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                failed.append(name)
                continue
            add_result(output, name, outcome)
            print(f"{name}: {outcome}", flush=True)
    finally:
        session.close()
    return failed


def ending(result: Mapping[str, Any]) -> str:
    """How the run ended, and when."""
    seconds, status = f"{result['seconds']:.0f} s", result["exit_status"]
    if result["survived"]:
        return "goes on"
    if status is None:
        return f"hangs (watched for {seconds})"
    text = f"is killed (signal {-status})" if status < 0 else f"ends with {status}"
    text += f" after {seconds}"
    if result["leftover_seconds"] >= 1:
        text += f"; its last process {result['leftover_seconds']:.0f} s later"
    if result["leftovers"]:
        text += f"; {', '.join(f'`{name}`' for name in result['leftovers'])} had to be killed"
    return text


def kept(result: Mapping[str, Any]) -> str:
    """Whether anything that was saved is lost."""
    if not result["saved"]:
        return "nothing saved yet"
    return f"**lost: steps {result['lost']}**" if result["lost"] else f"{result['saved']}, all"


def afterwards(result: Mapping[str, Any]) -> str:
    """What the same command does when it is started again."""
    if result["went_on"] is None:
        return result["note"] or "-"
    if result["went_on"]:
        return f"resumes from step {result['resumed_from']} and goes on"
    return f"**does not go on**: {result['note']}"


def table(results: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    head = ("fault", "the run", "what the user sees", "saved before, whole after", "the same command again")
    rows = []
    for name, result in results["faults"].items():
        line = result["last_line"].replace("|", "\\|")
        rows.append((FAULTS[name][0], ending(result), f"`{line}`" if line else "-", kept(result), afterwards(result)))
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=FAULTS, help="may be given several times")
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/fault_tests"))
    parser.add_argument("--output", type=Path, default=Path("outputs/fault_tests/results.json"))
    parser.add_argument("--table", type=Path, metavar="RESULTS", help="only print the table of these results")
    options = parser.parse_args()
    if options.table:
        print(table(read_json(options.table)), end="")
        return
    # In their order, because the chained ones come first.
    names = [name for name in FAULTS if name in (options.only or FAULTS)]
    raise SystemExit(bool(run_tests(names, options.work_dir.resolve(), options.output)))


if __name__ == "__main__":
    main()
