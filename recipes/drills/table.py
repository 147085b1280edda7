# SPDX-License-Identifier: Apache-2.0
"""The table of docs/fault_drills.md, from the measured results.

python -m recipes.drills.table recipes/drills/results.json
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json

# The fault in words, and whose it is to mend what is left of it.
FAULTS = {
    "two_runs": "a second run is started in the same folder (the second one's end)",
    "kill_verifiers": "SIGKILL of the actor with the verifiers of a node",
    "kill_agent_loop": "SIGKILL of an agent-loop worker",
    "full_disk": "the disk of the checkpoints fills up in the middle of a save",
    "corrupt_checkpoint": "SIGKILL of all processes, and a file of the newest checkpoint (not counted) cut in half",
    "kill_rank": "SIGKILL of a training rank",
    "kill_driver": "SIGKILL of the command itself",
    "kill_reward_worker": "SIGKILL of a reward worker",
    "kill_rollout_server": "SIGKILL of a rollout server",
    "kill_trainer": "SIGKILL of the trainer (Ray's `TaskRunnerV1`)",
    "nan_prm": "one weight of the PRM's start model is NaN",
    "no_reward_server": "PSPO-WRS: the server of the step reward model goes away",
    "too_easy_data": "every rollout of every prompt is right, so no prompt passes the filter",
    "nan_policy": "one weight of the policy's start model is NaN",
    "nan_learning_rate": "the learning rate is NaN",
}
HEADER = ("fault", "the run", "what the user sees", "saved before, whole after", "the same command again")


def ending(drill: Mapping[str, Any]) -> str:
    """How the run ended, and when."""
    seconds = f"{drill['seconds']:.0f} s"
    if drill["survived"]:
        return "goes on"
    if drill["exit_status"] is None:
        return f"hangs (watched for {seconds})"
    status = drill["exit_status"]
    how = f"is killed (signal {-status})" if status < 0 else f"ends with {status}"
    left = f"; its last process {drill['leftover_seconds']:.0f} s later" if drill["leftover_seconds"] >= 1 else ""
    stuck = f"; {', '.join(f'`{name}`' for name in drill['leftovers'])} had to be killed" if drill["leftovers"] else ""
    return f"{how} after {seconds}{left}{stuck}"


def kept(drill: Mapping[str, Any]) -> str:
    """Whether anything that was saved is lost."""
    if not drill["saved"]:
        return "nothing saved yet"
    return f"**lost: steps {drill['lost']}**" if drill["lost"] else f"{drill['saved']}, all"


def afterwards(drill: Mapping[str, Any]) -> str:
    """What the same command does when it is started again."""
    if drill["went_on"] is None:
        return drill["note"] or "-"
    if drill["went_on"]:
        return f"resumes from step {drill['resumed_from']} and goes on"
    return f"**does not go on**: {drill['note']}"


def row(name: str, drill: Mapping[str, Any]) -> list[str]:
    line = drill["last_line"].replace("|", "\\|")
    return [FAULTS[name], ending(drill), f"`{line}`" if line else "-", kept(drill), afterwards(drill)]


def table(results: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    rows = [HEADER, ["---"] * len(HEADER), *(row(name, drill) for name, drill in results["drills"].items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.drills.table", description=__doc__)
    parser.add_argument("results", type=Path)
    print(table(read_json(parser.parse_args().results)), end="")


if __name__ == "__main__":
    main()
