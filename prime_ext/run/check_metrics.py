# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.run.check_metrics METRICS.jsonl CONDITION ...``: whether a finished run was what it should be.

    python -m prime_ext.run.check_metrics outputs/gsm8k/metrics.jsonl 'last(step) >= 105' 'finite(actor/pg_loss)' \\
        'mean(critic/score/mean, last=20) > 0.5' --checkpoints outputs/gsm8k/checkpoints

Reads the file of verl's ``file`` logger with the parts of earlier starts (:mod:`prime_ext.run.metrics_file`).
Conditions are those of :mod:`prime_ext.run.metric_conditions`. Status: 0 all hold; 1 at least one does not, with one
line for each on the standard error; 2 a condition cannot be read.

Training runs check themselves when ``PRIME_EXT_CHECKS`` is set, as the recipes do: ``default``, which every healthy run
of that kind meets (:func:`default_conditions` for RL), and conditions, separated by semicolons.
"""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metric_conditions import Condition, ConditionError, parse
from prime_ext.run.metrics_file import read_metrics

if TYPE_CHECKING:
    from omegaconf import DictConfig

ENVIRONMENT = "PRIME_EXT_CHECKS"
DEFAULT = "default"


def check(path: Path, conditions: Sequence[Condition], checkpoints: Path | None = None) -> list[str]:
    """One line for every condition that does not hold, and one if there should be a whole checkpoint and is none."""
    metrics = read_metrics(path)
    if not metrics:
        return [f"{path} has no metrics"]
    problems = [condition.problem(metrics) for condition in conditions]
    if checkpoints is not None and not complete_steps(checkpoints):
        problems.append(f"{checkpoints} has no whole checkpoint")
    return [problem for problem in problems if problem]


def default_conditions(config: "DictConfig") -> list[str]:
    """What every healthy run of a configuration meets: all its steps, logged without a gap, and finite numbers."""
    trainer, steps = config.trainer, config.trainer.total_training_steps
    # The data end a run, too; its last step then belongs to the last epoch.
    ends = [f"last(training/epoch) >= {trainer.total_epochs - 1}"]
    if steps is not None:
        ends.insert(0, f"last(step) >= {steps}")
    steps = math.inf if steps is None else steps
    names = []
    if trainer.critic_warmup < steps:
        names += ["actor/pg_loss", "actor/grad_norm"]
    prm = config.get("prm")
    if prm is not None and prm.enable and prm.update_mode != "none" and prm.update_freq <= steps:
        names += ["prm/loss", "prm/grad_norm"]
    if config.algorithm.adv_estimator == "gae":
        names += ["critic/vf_loss", "critic/grad_norm"]
    return [" or ".join(ends), "complete(step)", *(f"finite({name})" for name in names)]


@dataclass(frozen=True)
class RunChecks:
    """The conditions of a training run, read before it starts so that a slip of the pen does not cost a run."""

    path: Path
    """The metrics file."""
    conditions: tuple[Condition, ...]
    checkpoints: Path | None
    """Folder that must hold a whole checkpoint."""

    @classmethod
    def from_environment(
        cls, path: Path | None, defaults: Sequence[str], checkpoints: Path | None = None
    ) -> "RunChecks | None":
        """As ``PRIME_EXT_CHECKS`` says; None when it is not set.

        Args:
            path: of the metrics file; None where the run writes none.
            defaults: what ``default`` stands for.
            checkpoints: folder that must hold a whole checkpoint, if ``default`` is asked for.

        Raises:
            ConditionError: a condition cannot be read, or the run writes no metrics file.
        """
        words = os.environ.get(ENVIRONMENT)
        if not words:
            return None
        if path is None:
            raise ConditionError(f"{ENVIRONMENT}={words}: add `file` to trainer.logger, whose metrics are checked")
        texts = [word.strip() for word in words.split(";") if word.strip()]
        asked = DEFAULT in texts
        own = [text for text in texts if text != DEFAULT]
        conditions = tuple(parse(text) for text in [*(defaults if asked else []), *own])
        # Absolute, because Hydra may change the folder of the process.
        return cls(path.resolve(), conditions, checkpoints.resolve() if asked and checkpoints is not None else None)

    def run(self) -> list[str]:
        """Say how to repeat the check, and return one line per problem."""
        words = [str(self.path), *(condition.text for condition in self.conditions)]
        words += ["--checkpoints", str(self.checkpoints)] if self.checkpoints else []
        print(f"prime_ext: python -m prime_ext.run.check_metrics {shlex.join(words)}", flush=True)
        return check(self.path, self.conditions, self.checkpoints)

    def finish(self) -> None:
        """Check, and say what came of it; ends the process with status 1 when something does not hold."""
        report(self.run(), len(self.conditions) + (self.checkpoints is not None))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="prime_ext.run.check_metrics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path, help="file of verl's `file` logger")
    parser.add_argument("conditions", nargs="*", metavar="CONDITION")
    parser.add_argument("--checkpoints", type=Path, help="folder that must hold a whole checkpoint")
    options = parser.parse_args()
    try:
        conditions = [parse(text) for text in options.conditions]
    except ConditionError as error:
        parser.exit(2, f"prime_ext.run.check_metrics: {error}\n")
    problems = check(options.metrics, conditions, options.checkpoints)
    report(problems, len(conditions) + (options.checkpoints is not None))


def report(problems: Sequence[str], number: int) -> None:
    """Print the outcome; end the process with status 1 when there are problems."""
    for problem in problems:
        print(f"prime_ext: does not hold: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(1)
    print(f"prime_ext: all {number} conditions hold")


if __name__ == "__main__":
    main()
