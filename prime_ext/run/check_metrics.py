# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.run.check_metrics METRICS.jsonl CONDITION ...``: whether a finished run was what it should be.

    python -m prime_ext.run.check_metrics outputs/gsm8k/metrics.jsonl 'last(step) >= 105' 'finite(actor/pg_loss)' \\
        'mean(critic/score/mean, last=20) > 0.5' --checkpoints outputs/gsm8k/checkpoints

Reads the file of verl's ``file`` logger with the parts of earlier starts (:mod:`prime_ext.run.metrics_file`).
Status: 0 all hold; 1 at least one does not, with one line for each on the standard error; 2 a condition cannot be read.

    last(step) >= 592                          mean(critic/score/mean, last=20) > 0.3
    finite(actor/pg_loss)                      last(prm/loss) < first(prm/loss)
    max(prm/grad_norm) < 100                   last(step) >= 592 or last(training/epoch) >= 14

A condition is ``finite(NAME)``, ``complete(NAME)``, or two values with ``<  <=  >  >=  ==  !=`` between them; ``or``
joins several. A value is a number or ``first``, ``last``, ``min``, ``max``, ``mean``, ``count`` of a metric, over all
steps in which it was logged or the ``first=N`` or ``last=N`` of them. ``finite`` holds when no value is infinite or not
a number, ``complete`` when there is one for every step from the first to the last. ``step`` is the number of the step
itself. A name ends at a space, comma or parenthesis: ``val-core/gsm8k/acc/mean@4`` is one. In a shell a condition wants
single quotes.

Training runs check themselves when ``PRIME_EXT_CHECKS`` is set, as the recipes do: ``default``, which every healthy run
of that kind meets (:func:`default_conditions` for RL), and conditions, separated by semicolons.
"""

import argparse
import math
import operator
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics

if TYPE_CHECKING:
    from omegaconf import DictConfig

ENVIRONMENT = "PRIME_EXT_CHECKS"
DEFAULT = "default"
STEP = "step"
# Values by step; None stands for what JSON has no word for: NaN and infinity.
Metrics = Mapping[int, Mapping[str, float | None]]

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
    "mean": lambda values: math.fsum(values) / len(values),
    "count": len,
}
_STATEMENTS = ("finite", "complete")
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CALL = re.compile(
    r"(?P<function>[a-z]+)\(\s*(?P<metric>[^\s,()]+)\s*(?:,\s*(?P<end>first|last)\s*=\s*(?P<n>\d+)\s*)?\)"
)
_COMPARISON = re.compile(r"(?P<left>.+?)\s*(?P<sign><=|>=|==|!=|<|>)\s*(?P<right>.+)")


class ConditionError(ValueError):
    """A condition that cannot be read; the message is one line that says what could be."""


class _DoesNotHold(Exception):
    """Why a condition does not hold."""


_Value = float | re.Match[str]


@dataclass(frozen=True)
class Condition:
    """What a user wrote, and its alternatives: a statement, or a value, a sign and another value."""

    text: str
    alternatives: tuple[tuple[_Value, str, _Value], ...]

    def problem(self, metrics: Metrics) -> str | None:
        """None when it holds, otherwise one line with the reason."""
        reasons = []
        for left, sign, right in self.alternatives:
            try:
                values = _evaluate(left, metrics), _evaluate(right, metrics)
            except _DoesNotHold as reason:
                reasons.append(str(reason))
                continue
            if _COMPARISONS[sign](*values):
                return None
            reasons.append(f"{values[0]:.6g} against {values[1]:.6g}")
        return f"{self.text}: {'; '.join(reasons)}"


def parse(text: str) -> Condition:
    """Read a condition. Raises ConditionError."""
    return Condition(text.strip(), tuple(_alternative(part.strip()) for part in re.split(r"\s+or\s+", text.strip())))


def _alternative(text: str) -> tuple[_Value, str, _Value]:
    call = _CALL.fullmatch(text)
    if call and call["function"] in _STATEMENTS:
        # A statement that holds has the value 1.
        return _checked(call, _STATEMENTS), "==", 1.0
    comparison = _COMPARISON.fullmatch(text)
    if not comparison:
        raise ConditionError(
            f"condition {text!r} is not of the form finite(NAME), complete(NAME) or FUNCTION(NAME) < NUMBER"
        )
    return _value(comparison["left"].strip()), comparison["sign"], _value(comparison["right"].strip())


def _value(text: str) -> _Value:
    try:
        number = float(text)
    except ValueError:
        call = _CALL.fullmatch(text)
        if not call:
            raise ConditionError(f"{text!r} is neither a number nor FUNCTION(NAME) or FUNCTION(NAME, last=N)") from None
        return _checked(call, tuple(_AGGREGATES))
    if not math.isfinite(number):
        raise ConditionError(f"{text} is no number to compare with; finite(NAME) asks for finite values")
    return number


def _checked(call: re.Match[str], functions: Sequence[str]) -> re.Match[str]:
    if call["function"] not in functions:
        raise ConditionError(f"{call[0]!r}: {call['function']} is not one of {', '.join(functions)}")
    if call["end"] and int(call["n"]) < 1:
        raise ConditionError(f"{call[0]!r}: {call['end']}={call['n']} must be >= 1")
    return call


def _evaluate(value: _Value, metrics: Metrics) -> float:
    if isinstance(value, float):
        return value
    function, name = value["function"], value["metric"]
    logged = {step: {STEP: float(step)} if name == STEP else row for step, row in sorted(metrics.items())}
    series = {step: row[name] for step, row in logged.items() if name in row}
    if not series:
        raise _DoesNotHold("no step was logged" if name == STEP else f"{name} was never logged")
    steps = list(series)
    if value["end"]:
        steps = steps[: int(value["n"])] if value["end"] == "first" else steps[-int(value["n"]) :]
    if function == "complete":
        absent = sorted(set(range(min(steps), max(metrics) + 1)) - set(steps))
        if absent:
            raise _DoesNotHold(f"{'' if name == STEP else name + ' of '}{_named(absent)} missing")
        return 1.0
    numbers = {step: math.nan if (number := series[step]) is None else float(number) for step in steps}
    odd = [step for step, number in numbers.items() if not math.isfinite(number)]
    if odd and function != "count":
        raise _DoesNotHold(f"{name} is no finite number in {_named(odd)}")
    return 1.0 if function == "finite" else float(_AGGREGATES[function](list(numbers.values())))


def _named(steps: Sequence[int]) -> str:
    """``step 3``, or ``steps 3-5, 9`` and how many more."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:5]]
    more = f" and {len(ranges) - 5} more places" if len(ranges) > 5 else ""
    return f"step{'' if len(steps) == 1 else 's'} {', '.join(shown)}{more}"


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
    """The conditions of a training run, read before it starts so that a slip of the pen does not cost a run.

    Attributes:
        path: of the metrics file.
        conditions: what its metrics have to meet.
        checkpoints: folder that must hold a whole checkpoint; None for none.
    """

    path: Path
    conditions: tuple[Condition, ...]
    checkpoints: Path | None = None

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

    def problems(self) -> list[str]:
        """A line for every condition that does not hold, and one if there should be a whole checkpoint and is none."""
        metrics = read_metrics(self.path)
        if not metrics:
            return [f"{self.path} has no metrics"]
        found = [condition.problem(metrics) for condition in self.conditions]
        if self.checkpoints is not None and not complete_steps(self.checkpoints):
            found.append(f"{self.checkpoints} has no whole checkpoint")
        return [problem for problem in found if problem]

    def report(self) -> None:
        """Check, and print the outcome; ends the process with status 1 when something does not hold."""
        problems = self.problems()
        for problem in problems:
            print(f"prime_ext: does not hold: {problem}", file=sys.stderr)
        if problems:
            raise SystemExit(1)
        print(f"prime_ext: all {len(self.conditions) + (self.checkpoints is not None)} conditions hold")

    def finish(self) -> None:
        """Say how to repeat the check, and :meth:`report`."""
        words = [str(self.path), *(condition.text for condition in self.conditions)]
        words += ["--checkpoints", str(self.checkpoints)] if self.checkpoints else []
        print(f"prime_ext: python -m prime_ext.run.check_metrics {shlex.join(words)}", flush=True)
        self.report()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="prime_ext.run.check_metrics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path, help="file of verl's `file` logger")
    parser.add_argument("conditions", nargs="*", metavar="CONDITION")
    parser.add_argument("--checkpoints", type=Path, help="folder that must hold a whole checkpoint")
    options = parser.parse_args()
    try:
        conditions = tuple(parse(text) for text in options.conditions)
    except ConditionError as error:
        parser.exit(2, f"prime_ext.run.check_metrics: {error}\n")
    RunChecks(options.metrics, conditions, options.checkpoints).report()


if __name__ == "__main__":
    main()
