# SPDX-License-Identifier: Apache-2.0
"""Train methods of the laboratory on a task, each with several seeds; finished runs are skipped.

    python -m recipes.lab_study.run compact rloo distilled --seeds 0,1,2 --output outputs/lab prm.epochs=2

A run is a line of ``runs.jsonl``, in the folder of its task. ``key=value`` changes a setting of all methods named, and
becomes part of the name of their runs.
"""

import argparse
import itertools
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from tqdm import tqdm

from prime_ext.config.checks import Count, SettingsError, read
from recipes.lab.sample import chosen_log_probs, response_logits
from recipes.lab.settings import METHODS, settings_of
from recipes.lab.train import Lab, Learner, warm_up
from recipes.lab_study.tasks import TASKS
from recipes.study_runs import keep_run, read_runs


def run(
    task_name: str,
    methods: list[str],
    seeds: list[int],
    output: Path,
    rollouts: int,
    device: str = "cpu",
    keep_policy: bool = False,
) -> None:
    """Train what is not there yet.

    Args:
        task_name: in ``TASKS``.
        methods: names in ``METHODS`` and, in between, ``key=value`` for all of them.
        seeds: one run each.
        output: of the runs, ``TASK/runs.jsonl``, and of the warm start, ``TASK/start``.
        rollouts: budget of a run.
        device: for torch.
        keep_policy: save the trained model, as ``TASK/METHOD_seed<k>``: a teacher for other runs.

    Raises:
        SettingsError: a name, key or value is unknown or cannot work, or a run is there with other settings.
    """
    read(Literal[tuple(TASKS)], task_name, "task")
    task, folder = TASKS[task_name], output / task_name
    changes = [item for item in methods if "=" in item]
    names = [item for item in methods if "=" not in item]
    if not names:
        raise SettingsError(f"no method was named; there are: {', '.join(METHODS)}")
    kept = read_runs(folder)
    missing: dict[str, dict[str, Any]] = {}
    for method, seed in itertools.product(names, seeds):
        read(Literal[tuple(METHODS)], method, "method")
        settings = settings_of(task.settings, METHODS[method], dict(item.split("=", 1) for item in changes))
        label = label_of(method, changes)
        name = f"{label}_seed{seed}"
        plan = {"task": task_name, "method": label, "seed": seed, "budget": rollouts, "settings": settings}
        if name not in kept:
            missing[name] = plan
        elif other := [key for key in plan if kept[name].get(key) != plan[key]]:
            raise SettingsError(f"{folder} has a run {name} with another {other[0]}; choose another --output")
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
    for name, plan in missing.items():
        lab = Lab(task, plan["settings"], plan["seed"], start, device)
        with tqdm(total=rollouts, desc=name, unit=" rollouts") as bar:
            curve = train(lab, rollouts, lambda examined, bar=bar: bar.update(examined - bar.n))
        versions = {"commit": commit(), "torch": torch.__version__, "transformers": transformers.__version__}
        if keep_policy:
            lab.policy.model.save_pretrained(folder / name)
        keep_run(folder, name, plan | {"device": device, **versions, "curve": curve})


def train(lab: Lab, budget: int, progress: Callable[[int], Any]) -> list[dict]:
    """Train until so many rollouts were sampled, those that the filter dropped included; the points of the curve."""
    curve = [lab.point()]
    if lab.settings["rft.rollouts"]:
        fine_tune_on_right_ones(lab)
        curve.append(lab.point())
    while lab.examined < budget:
        lab.step()
        progress(lab.examined)
        if lab.examined >= min(budget, curve[-1]["rollouts"] + lab.task.evaluate_every):
            curve.append(lab.point())
    return curve


def fine_tune_on_right_ones(lab: Lab) -> None:
    """Rejection sampling before RL: imitate the right ones of the first rollouts."""
    settings, started = lab.settings, time.perf_counter()
    batch = lab.sample_and_judge(settings["rft.rollouts"] // settings["rollout.n"])
    right_B = batch.outcome_B.nonzero()[:, 0].cpu()
    learner = Learner(lab.policy.model, settings["rft.lr"], warm_up(20), decay=0.0)
    for _ in range(settings["rft.epochs"]):
        order_B = right_B[torch.randperm(len(right_B), generator=lab.prm_rng)]
        for rows in order_B.split(settings["rft.mini_batch_size"]):
            part = batch.rows(rows)
            learner.minimize(-chosen_log_probs(response_logits(learner.model, part), part)[part.mask_BT].mean())
    lab.seconds += time.perf_counter() - started


def label_of(method: str, changes: Sequence[str]) -> str:
    """Name of the runs of a method with such ``key=value``; of a folder its last part."""
    return ",".join([method, *sorted(re.sub(r"=.*/", "=", change) for change in changes)])


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
    parser.add_argument("--device", choices=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",), default="cpu")
    parser.add_argument("--keep-policy", action="store_true", help="save the trained model, a teacher for other runs")
    arguments = parser.parse_intermixed_args()
    try:
        if not all(seed.isdecimal() for seed in arguments.seeds.split(",")):
            raise SettingsError(f"--seeds={arguments.seeds} must be whole numbers with commas between them")
        read(Count, arguments.rollouts, "--rollouts")
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        options = (arguments.output, arguments.rollouts, arguments.device, arguments.keep_policy)
        run(arguments.task, arguments.methods, seeds, *options)
    except SettingsError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
