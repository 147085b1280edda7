# SPDX-License-Identifier: Apache-2.0
"""Train methods on a task, each with several seeds; one JSON file per run, and finished runs are skipped.

    python -m recipes.lab.run compact rloo distilled --seeds 0,1,2 --output outputs/lab --rollouts 2400 prm.epochs=2

What is ``key=value`` changes a setting of all methods named, and becomes part of the name of their runs.
"""

import argparse
import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from prime_ext.config.checks import SettingsError, choice, whole_number
from prime_ext.utils.files import read_json, write_json
from recipes.lab.settings import METHODS, Settings, settings_of
from recipes.lab.tasks import TASKS
from recipes.lab.train import Lab, train


def run(task_name: str, methods: list[str], seeds: list[int], output: Path, rollouts: int, device: str = "cpu") -> None:
    """Train what is not there yet.

    Args:
        task_name: in ``TASKS``.
        methods: names in ``METHODS`` and, in between, ``key=value`` for all of them.
        seeds: one run each.
        output: of the runs, ``TASK/METHOD_seed<k>.json``, and of the warm start, ``TASK/start``.
        rollouts: budget of a run.
        device: for torch.

    Raises:
        SettingsError: a name, key or value is unknown or cannot work, or a run is there with other settings.
    """
    choice("task", task_name, tuple(TASKS))
    choice("device", device, ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",))
    task, folder = TASKS[task_name], output / task_name
    changes = dict(item.split("=", 1) for item in methods if "=" in item)
    names = [item for item in methods if "=" not in item]
    if not names:
        raise SettingsError(f"no method was named; there are: {', '.join(METHODS)}")
    missing: list[tuple[Path, Settings, dict[str, Any]]] = []
    for method, seed in itertools.product(names, seeds):
        choice("method", method, tuple(METHODS))
        settings = settings_of(task.settings, METHODS[method], changes)
        label = label_of(method, [item for item in methods if "=" in item])
        path = folder / f"{label}_seed{seed}.json"
        plan = {"task": task_name, "method": label, "seed": seed, "budget": rollouts, "settings": settings.by_key()}
        there = read_json(path) if path.exists() else None
        if there is None:
            missing.append((path, settings, plan))
        elif other := [key for key in plan if there.get(key) != plan[key]]:
            raise SettingsError(f"{path} is of a run with another {other[0]}; choose another --output")
    if not missing:
        print(f"{folder}: all runs are there")
        return

    transformers.utils.logging.disable_progress_bar()
    if device == "cpu":
        torch.set_num_threads(1)
    start = folder / "start"
    if not start.exists():
        print(f"{start}: training the warm start")
        task.warm_start(start)
    for path, settings, plan in missing:
        lab = Lab(task, settings, plan["seed"], start, device)
        with tqdm(total=rollouts, desc=path.stem, unit=" rollouts") as bar:
            curve = train(lab, rollouts, lambda examined, bar=bar: bar.update(examined - bar.n))
        versions = {"commit": commit(), "torch": torch.__version__, "transformers": transformers.__version__}
        write_json(path, plan | {"device": device, **versions, "curve": curve})


def label_of(method: str, changes: Sequence[str]) -> str:
    """Name of the runs of a method with such ``key=value``."""
    return ",".join([method, *sorted(changes)])


def commit() -> str | None:
    """The commit that runs, ``-dirty`` behind it if the tree has changes; None without git or a repository."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return answer.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("methods", nargs="+", metavar="METHOD or KEY=VALUE", help=", ".join(METHODS))
    parser.add_argument("--seeds", default="0", help="with commas between them")
    parser.add_argument("--output", type=Path, default=Path("outputs/lab"))
    parser.add_argument("--rollouts", type=int, default=2400)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_intermixed_args()
    try:
        if not all(seed.isdecimal() for seed in arguments.seeds.split(",")):
            raise SettingsError(f"--seeds={arguments.seeds} must be whole numbers with commas between them")
        whole_number("--rollouts", arguments.rollouts, 1)
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        run(arguments.task, arguments.methods, seeds, arguments.output, arguments.rollouts, arguments.device)
    except SettingsError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
