# SPDX-License-Identifier: Apache-2.0
"""Run a study: tune each method on some seeds, then run the best candidate on others.

    python -m recipes.studies.run compact --output outputs/studies
    python -m recipes.studies.run my_study.yaml
    python -m recipes.studies.run comparison --only rloo distilled \\
        --results recipes/studies/results/comparison.json

A study is a YAML file, by default one of ``recipes/studies``, with these keys:

- ``task``, fields of examples/minimal_prime.py's task (and ``flipped``, a share of wrong outcomes),
  with a budget of ``rollouts`` and, for tuning, of ``tuning_rollouts``; or with ``model``, a
  folder, the task is ``reasoning_gym`` (a name with parameters) or ``sums`` (parameters of
  ``chain_sum``), the ``limit`` of a response in tokens, and the number of ``train`` problems;
- with ``sums``, ``warm_start``: the ``folder`` of the model that all runs start from, and how it
  learns from demonstrations if it is missing (``steps``, ``lr``, ``batch_size``, ``seed``);
- or ``through_verl`` with ``steps`` and ``options`` of the task;
- ``every`` (steps between evaluations) and ``words`` of all runs;
- ``methods``: candidates by name, each a list of words. With a ``task`` a word is ``key=value`` or,
  where the name is not one, a method; ``scorer.NAME`` is a field of
  :class:`recipes.studies.laboratory.NoisyScorer`, with a ``model``, ``precision`` is bfloat16 or
  float32, and ``filter=true`` leaves out prompts whose responses are all right or all wrong.
  Through verl it is an override or ``NAME=value``, a knob of the task's script;
- ``seeds``, ``more_seeds`` of single methods, and ``tuning_seeds`` where a method has several
  candidates: the one with the highest mean accuracy over the curves is chosen;
- ``labels``, ``table`` and ``picture``: see :mod:`recipes.studies.study_report`.

Start the same command again after an interruption: finished runs, each a file in the study's folder
of ``--output``, are not repeated, and an unfinished one continues from its last evaluation, or
through verl from its last checkpoint. The results go to one file.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# verl reads its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

import numpy as np

from prime_ext.config.checks import SettingsError
from prime_ext.generate.prm_description import versions
from prime_ext.utils.files import write_text
from prime_ext.utils.run_store import RunError
from recipes.studies import laboratory
from recipes.studies.study_report import Study, format_table, get_seeds, read_results, read_study

# Return a run, with its "curve" and "end", of a method, its words and a seed.
Trainer = Callable[[str, Sequence[str], int], dict[str, Any]]


def mean_accuracy(curve: Mapping[str, Sequence[float]]) -> float:
    """Return the area under the curve over rollouts, divided by their number."""
    rollouts = np.array(curve["rollouts"], dtype=float)
    return float(np.trapezoid(curve["accuracy"], rollouts) / (rollouts[-1] - rollouts[0]))


def choose_trainer(study: Study, output: Path) -> Trainer:
    """Return the trainer of a study."""
    if "task" in study:
        return lambda name, words, seed: {"curve": laboratory.run(study, name, words, seed, output)}
    # Here, not above: verl takes seconds to import.
    from recipes.studies.through_verl import VERL_TASKS

    return VERL_TASKS[study["through_verl"]](study, output / study["name"]).train


def get_commit() -> str | None:
    """Return the commit, ``-dirty`` if the tree has changes; None without git or a repository."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return answer.stdout.strip() or None


def run_study(study: Study, output: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return by method the words of its best candidate, the scores of all, and runs by seed.

    Runs through verl that fail do not stop the others. ``SettingsError``: a name, key or value is
    unknown or cannot work. ``RunError``: a run is there with other settings. ``SystemExit``: runs
    failed; with the end of their logs.
    """
    train = choose_trainer(study, output)
    tune = train
    if "tuning_rollouts" in study:
        tune = choose_trainer({**study, "rollouts": study["tuning_rollouts"]}, output)
    methods: dict[str, dict[str, Any]] = {}
    for name in only or study["methods"]:
        candidates = study["methods"][name]
        scores = {}
        for words in candidates if len(candidates) > 1 else ():
            curves = [tune(name, words, seed)["curve"] for seed in study["tuning_seeds"]]
            scores[",".join(words)] = round(
                float(np.mean([mean_accuracy(curve) for curve in curves])), 4
            )
        chosen = max(candidates, key=lambda words: scores.get(",".join(words), 0.0))
        methods[name] = {"words": chosen, **({"tuning": scores} if scores else {}), "runs": {}}
    failed = []
    # Seed after seed, so that comparisons of few seeds are complete early.
    for seed in sorted({seed for name in methods for seed in get_seeds(study, name)}):
        for name, method in methods.items():
            if seed in get_seeds(study, name):
                try:
                    method["runs"][str(seed)] = train(name, method["words"], seed)
                except RuntimeError as error:
                    failed.append(f"{name}, seed {seed}: {error}")
    if failed:
        raise SystemExit(
            "\n\n".join([f"{len(failed)} runs failed; the same command tries them again.", *failed])
        )
    return {"commits": [get_commit()], "versions": versions(), "methods": methods}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/studies"), help="folder of the runs"
    )
    parser.add_argument("--results", type=Path, help="file to write; default: OUTPUT/STUDY.json")
    options = parser.parse_args()
    study = read_study(options.study)
    if unknown := sorted(set(options.only) - set(study["methods"])):
        parser.error(
            f"{unknown[0]} is not a method of {study['name']}; it has {', '.join(study['methods'])}"
        )
    path = options.results or options.output / f"{study['name']}.json"
    try:
        results = run_study(study, options.output.resolve(), options.only)
    except (SettingsError, RunError) as error:
        raise SystemExit(f"error: {error}") from None
    # A line for each run.
    write_text(
        path, json.dumps(results, separators=(",", ":")).replace('{"curve"', '\n{"curve"') + "\n"
    )
    print(f"{path}:\n\n{format_table(study, read_results(study, path))}")


if __name__ == "__main__":
    main()
