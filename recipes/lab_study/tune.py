# SPDX-License-Identifier: Apache-2.0
"""Methods tuned with equal effort, then compared on seeds that were not looked at before.

    python -m recipes.lab_study.tune compact --output outputs/lab_study
    python -m recipes.lab_study.report outputs/lab_study/confirmation/compact --baseline rloo,actor.lr=4e-4

``study.yaml`` has the candidates, as many for each method, the seeds and the budget. The candidate with the highest
mean accuracy over the curves of the tuning seeds is confirmed. Interrupted, the same command goes on.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from prime_ext.config.checks import SettingsError
from prime_ext.utils.files import write_json
from recipes.lab_study.run import label_of, run
from recipes.study_runs import read_runs

STUDIES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "study.yaml").read_text())


def mean_accuracy(curve: Sequence[Mapping[str, Any]]) -> float:
    """Area under the curve over rollouts, divided by their number."""
    rollouts, accuracy = (np.array([point[name] for point in curve], dtype=float) for name in ("rollouts", "accuracy"))
    return float(np.trapezoid(accuracy, rollouts) / (rollouts[-1] - rollouts[0]))


def train_teacher(task: str, output: Path, method: str, overrides: list[str], seed: int, rollouts: int) -> Path:
    """The folder of a model that was trained longer."""
    run(task, [method, *overrides], [seed], output, rollouts, keep_policy=True)
    return output / task / f"{label_of(method, overrides)}_seed{seed}"


def tune(study: str, output: Path) -> dict[str, list[str]]:
    """Tune and confirm what ``study.yaml`` says of the study.

    Returns:
        The chosen overrides of each method, also in ``OUTPUT/STUDY/chosen.json`` with the scores of all candidates.
    """
    plan = STUDIES[study]
    task = plan.get("task", study)
    teacher = train_teacher(task, output / "teacher", **plan["teacher"]) if "teacher" in plan else Path()
    chosen: dict[str, list[str]] = {}
    scores: dict[str, dict[str, float]] = {}
    for method, listed in plan["methods"].items():
        candidates = [[word.format(teacher=teacher) for word in overrides] for overrides in listed]
        scores[method] = {}
        for overrides in candidates:
            run(task, [method, *overrides], plan["tuning_seeds"], output / "tuning", plan["rollouts"])
            label = label_of(method, overrides)
            kept = read_runs(output / "tuning" / task)
            curves = [kept[f"{label}_seed{seed}"]["curve"] for seed in plan["tuning_seeds"]]
            scores[method][label] = float(np.mean([mean_accuracy(curve) for curve in curves]))
        chosen[method] = max(candidates, key=lambda overrides, of=method: scores[of][label_of(of, overrides)])
        write_json(output / study / "chosen.json", {"chosen": chosen, "mean_accuracy": scores})
    for name, (method, more) in plan.get("untuned", {}).items():
        chosen[name] = [*chosen[method], *more]
    for method, overrides in chosen.items():
        run(task, [method, *overrides], plan["seeds"], output / "confirmation", plan["rollouts"])
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--output", type=Path, default=Path("outputs/lab_study"))
    arguments = parser.parse_args()
    try:
        chosen = tune(arguments.study, arguments.output)
    except SettingsError as error:
        raise SystemExit(f"error: {error}") from None
    for method, overrides in chosen.items():
        print(label_of(method, overrides))


if __name__ == "__main__":
    main()
