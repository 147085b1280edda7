# SPDX-License-Identifier: Apache-2.0
"""Train one method of the laboratory on a task; a run that is already there is not repeated.

    python -m recipes.lab.run compact distilled actor.lr=6e-4 --seed 0 --output outputs/lab

``key=value`` changes a setting and becomes part of the run's name. A run is one JSON file in the folder of its task.
Studies of many runs: :mod:`recipes.studies.run`. ``methods.yaml`` has the defaults, what else a key may be, the methods
and the tasks. Keys that prime_ext has too keep name and meaning.
"""

import argparse
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
import yaml
from pydantic import Field, FiniteFloat
from tqdm import tqdm

from prime_ext.config.checks import Count, SettingsError, read
from prime_ext.utils.files import read_json, write_json
from recipes.lab.tasks import CompactChain, LastDigitChain
from recipes.lab.train import Lab, Learner, chosen_log_probs, response_logits, warm_up

FILE = yaml.safe_load((Path(__file__).parent / "methods.yaml").read_text())
DEFAULTS, CHOICES, LEAST, SHARES = (FILE[name] for name in ("defaults", "choices", "least", "shares"))
METHODS: dict[str, dict[str, Any]] = FILE["methods"]
TASKS = {name: CompactChain(**values) for name, values in FILE["compact_tasks"].items()} | {
    name: LastDigitChain(**values) for name, values in FILE["last_digit_tasks"].items()
}


def build_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults, overridden by the values of the layers, which may be text; later layers win.

    ``SettingsError``: a key is unknown, or a value does not have the type of its default or cannot work.
    """
    settings = dict(DEFAULTS)
    for key, value in (item for layer in layers for item in layer.items()):
        if key not in DEFAULTS:
            raise SettingsError(f"unknown key {key}; known keys: {', '.join(DEFAULTS)}")
        settings[key] = read(_get_type(key), value, key)
    if settings["prm.lora_rank"] and settings["prm.trainable_layers"]:
        raise SettingsError("prm.lora_rank trains an adapter of all layers; it needs prm.trainable_layers=0")
    if settings["prm.update_mode"] == "interleaved" and settings["prm.groups"] == "mixed":
        raise SettingsError("prm.update_mode=interleaved scores what it trains on; prm.groups=mixed leaves some out")
    return settings


def _get_type(key: str) -> Any:
    """Return the type of a setting, for pydantic, which also reads text."""
    default = DEFAULTS[key]
    if key in CHOICES:
        return Literal[tuple(CHOICES[key])]
    if isinstance(default, bool | str):
        return type(default)
    kind = int if isinstance(default, int) else FiniteFloat
    return Annotated[kind, Field(ge=LEAST.get(key, 0), le=1 if key in SHARES else None)]


def run(
    task_name: str,
    method: str,
    changes: Sequence[str],
    seed: int,
    rollouts: int,
    output: Path,
    keep_policy: bool = False,
) -> dict[str, Any]:
    """Return a run with its curve, from ``OUTPUT/TASK/NAME.json`` if it is there; else train it first.

    ``changes`` are ``key=value``, on top of the method; ``rollouts`` are the budget. With ``keep_policy`` the trained
    model is saved in ``OUTPUT/TASK/NAME``, a teacher for other runs. ``SettingsError``: a name, key or value is unknown
    or cannot work, or the run is there with other settings.
    """
    task = TASKS[read(Literal[tuple(TASKS)], task_name, "task")]
    read(Literal[tuple(METHODS)], method, "method")
    settings = build_settings(task.settings, METHODS[method], dict(change.split("=", 1) for change in changes))
    label = label_run(method, changes)
    folder, name = output / task_name, f"{label}_seed{seed}"
    plan = {"task": task_name, "method": label, "seed": seed, "budget": rollouts, "settings": settings}
    path = folder / f"{name}.json"
    if path.exists():
        known = read_json(path)
        if other := [key for key in plan if known.get(key) != plan[key]]:
            raise SettingsError(f"{path} is a run with another {other[0]}; choose another --output")
        return known
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    start = folder / "start"
    if not start.exists():
        print(f"{start}: training the warm start")
        task.warm_start(start)
    lab = Lab(task, settings, seed, start)
    curve = train(lab, rollouts, name)
    if keep_policy:
        lab.policy.model.save_pretrained(folder / name)
    versions = {"commit": get_commit(), "torch": torch.__version__, "transformers": transformers.__version__}
    result = plan | versions | {"curve": curve}
    write_json(path, result)
    return result


def train(lab: Lab, budget: int, name: str) -> list[dict]:
    """Train until ``budget`` rollouts were sampled, including those that the filter drops; return the curve."""
    curve = [lab.point()]
    if lab.settings["rft.rollouts"]:
        fine_tune_on_right_ones(lab)
        curve.append(lab.point())
    with tqdm(total=budget, desc=name, unit=" rollouts") as bar:
        while lab.examined < budget:
            lab.step()
            bar.update(lab.examined - bar.n)
            if lab.examined >= min(budget, curve[-1]["rollouts"] + lab.task.evaluate_every):
                curve.append(lab.point())
    return curve


def fine_tune_on_right_ones(lab: Lab) -> None:
    """Imitate the right responses among the first rollouts before RL (rejection sampling)."""
    settings, started = lab.settings, time.perf_counter()
    batch = lab.sample_and_judge(settings["rft.rollouts"] // settings["rollout.n"])
    right_B = batch.outcome_B.nonzero()[:, 0]
    learner = Learner(lab.policy.model, settings["rft.lr"], warm_up(20), decay=0.0)
    for _ in range(settings["rft.epochs"]):
        order_B = right_B[torch.randperm(len(right_B), generator=lab.prm_rng)]
        for rows in order_B.split(settings["rft.mini_batch_size"]):
            part = batch.rows(rows)
            learner.minimize(-chosen_log_probs(response_logits(learner.model, part), part)[part.mask_BT].mean())
    lab.seconds += time.perf_counter() - started


def label_run(method: str, changes: Sequence[str]) -> str:
    """Name a method with its changed settings; of a folder in a value only the last part stays."""
    return ",".join([method, *sorted(re.sub(r"=.*/", "=", change) for change in changes)])


def get_commit() -> str | None:
    """Return the current commit, with ``-dirty`` if the tree has changes; None without git or a repository."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return answer.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task_name", metavar="task", help=", ".join(TASKS))
    parser.add_argument("method", help=", ".join(METHODS))
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs/lab"))
    parser.add_argument("--rollouts", type=int, default=2400)
    parser.add_argument("--keep-policy", action="store_true", help="save the trained model, a teacher for other runs")
    options = parser.parse_intermixed_args()
    try:
        if wrong := [change for change in options.changes if "=" not in change]:
            raise SettingsError(f"{wrong[0]} must be key=value; one run has one method")
        read(Count, options.rollouts, "--rollouts")
        result = run(**vars(options))
    except SettingsError as error:
        raise SystemExit(f"error: {error}") from None
    for point in result["curve"]:
        print(f"{point['rollouts']:>8} rollouts  {100 * point['accuracy']:5.1f} %  {point['seconds']:8.1f} s")


if __name__ == "__main__":
    main()
