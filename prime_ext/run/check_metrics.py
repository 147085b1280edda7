# SPDX-License-Identifier: Apache-2.0
"""Checks of a finished run: all its steps are there, its metrics are finite, a checkpoint is complete.

Training runs check themselves when ``PRIME_EXT_CHECKS=default`` is set, as the recipes do. They read the metrics of
all starts, and exit with status 1 and one line per problem if something is wrong.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from prime_ext.config.checks import SettingsError
from prime_ext.config.settings import prm_section
from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics

ENVIRONMENT = "PRIME_EXT_CHECKS"
DEFAULT = "default"


@dataclass(frozen=True)
class RunChecks:
    """What a healthy run leaves."""

    path: Path  # of the metrics file
    finite: tuple[str, ...]  # metrics that must have been logged, with a finite number every time
    # Metrics by name, and their least last value; one of them is enough. ``step`` is the step itself.
    reached: Mapping[str, float] = field(default_factory=dict)
    without_gaps: bool = True  # whether every step from the first one to the last must have been logged
    checkpoints: Path | None = None  # folder that must hold a complete checkpoint

    def problems(self) -> list[str]:
        """Return one line for everything that is wrong with the metrics or the checkpoints."""
        metrics: Mapping[int, Mapping[str, float | None]] = read_metrics(self.path)
        # None stands for what JSON cannot express: NaN and infinity.
        if not metrics:
            return [f"{self.path} has no metrics"]
        problems = []
        lasts: dict[str, float] = {"step": max(metrics)}
        for values in metrics.values():
            lasts |= {name: value for name, value in values.items() if value is not None}
        if self.reached and not any(lasts.get(name, -math.inf) >= least for name, least in self.reached.items()):
            wanted = " or ".join(f"{name} {least:g}" for name, least in self.reached.items())
            end = ", ".join(f"{name} {lasts[name]:g}" for name in self.reached if name in lasts)
            problems.append(f"the run did not reach {wanted}; it ended at {end or 'nothing that was logged'}")
        missing = sorted(set(range(min(metrics), max(metrics) + 1)) - set(metrics))
        if self.without_gaps and missing:
            problems.append(f"no metrics of {_name_steps(missing)}")
        for name in self.finite:
            logged = {step: values[name] for step, values in metrics.items() if name in values}
            odd = [step for step, value in logged.items() if value is None or not math.isfinite(value)]
            if not logged:
                problems.append(f"{name} was never logged")
            if odd:
                problems.append(f"{name} is not a finite number in {_name_steps(odd)}")
        if self.checkpoints is not None and not complete_steps(self.checkpoints):
            problems.append(f"{self.checkpoints} has no whole checkpoint")
        return problems

    def finish(self) -> None:
        """Check a run that has ended. Exit with status 1 and one line per problem, if there are any."""
        problems = self.problems()
        for problem in problems:
            print(f"prime_ext: does not hold: {problem}", file=sys.stderr)
        if problems:
            raise SystemExit(1)
        print("prime_ext: all checks of the run hold")


def checks_requested() -> bool:
    """Return whether ``PRIME_EXT_CHECKS`` is ``default``. SettingsError: it has another value."""
    word = os.environ.get(ENVIRONMENT)
    if word and word != DEFAULT:
        raise SettingsError(f"{ENVIRONMENT}={word} is not known; the only value is {DEFAULT}")
    return bool(word)


def checks_of_rl(config: DictConfig, path: Path | None) -> RunChecks | None:
    """Return what every healthy RL run with metrics in ``path`` leaves; None if ``PRIME_EXT_CHECKS`` is not set.

    SettingsError: its value is not known, or the run has no metrics file.
    """
    if not checks_requested():
        return None
    if path is None:
        raise SettingsError(f"{ENVIRONMENT}={DEFAULT}: add `file` to trainer.logger, whose metrics are checked")
    trainer, steps = config.trainer, config.trainer.total_training_steps
    # The data end a run, too; its last step then belongs to the last epoch.
    reached = ({} if steps is None else {"step": steps}) | {"training/epoch": trainer.total_epochs - 1}
    names = []
    if steps is None or trainer.critic_warmup < steps:
        names += ["actor/pg_loss", "actor/grad_norm"]
    prm = prm_section(config)
    if prm is not None and prm.update_mode != "none":
        names += ["prm/loss", "prm/grad_norm"]
    if config.algorithm.adv_estimator == "gae":
        names += ["critic/vf_loss", "critic/grad_norm"]
    # Absolute, because Hydra may change the folder of the process.
    folder = Path(trainer.default_local_dir).absolute() if trainer.save_freq > 0 else None
    return RunChecks(path.absolute(), tuple(names), reached, checkpoints=folder)


def _name_steps(steps: Sequence[int]) -> str:
    """Return ``step 3``, or ``steps 3, 4, 5, 6, 7 and 2 more``."""
    shown = ", ".join(map(str, steps[:5]))
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
