# SPDX-License-Identifier: Apache-2.0
"""Conditions over the metrics of a run, as a user writes them after it.

    last(step) >= 592                          mean(critic/score/mean, last=20) > 0.3
    finite(actor/pg_loss)                      last(prm/loss) < first(prm/loss)
    max(prm/grad_norm) < 100                   last(step) >= 592 or last(training/epoch) >= 14

A condition is ``finite(NAME)``, ``complete(NAME)``, or two values with ``<  <=  >  >=  ==  !=`` between them; ``or``
joins several. A value is a number or ``first``, ``last``, ``min``, ``max``, ``mean``, ``count`` of a metric, over all
steps in which it was logged or the ``first=N`` or ``last=N`` of them. ``finite`` holds when no value is infinite or not
a number, ``complete`` when there is one for every step from the first to the last. ``step`` is the number of the step
itself. A name ends at a space, comma or parenthesis: ``val-core/gsm8k/acc/mean@4`` is one. In a shell a condition wants
single quotes.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    """Why a condition does not hold, where it is more than its value."""


@dataclass(frozen=True)
class Call:
    """A function of one metric, over the ``n`` values at one ``end`` of the run, or over all."""

    function: str
    metric: str
    end: str | None = None
    n: int = 0

    def series(self, metrics: Metrics) -> dict[int, float]:
        """Values by step; what is no finite number is NaN."""
        if self.metric == STEP:
            found: dict[int, float] = {step: step for step in metrics}
        else:
            logged = {step: values[self.metric] for step, values in metrics.items() if self.metric in values}
            found = {step: math.nan if value is None else float(value) for step, value in logged.items()}
        if not found:
            raise _DoesNotHold("no step was logged" if self.metric == STEP else f"{self.metric} was never logged")
        steps = sorted(found)
        if self.end:
            steps = steps[: self.n] if self.end == "first" else steps[-self.n :]
        return {step: found[step] for step in steps}

    def value(self, metrics: Metrics) -> float:
        """The aggregate. Raises _DoesNotHold where a value is no number."""
        series = self.series(metrics)
        if self.function == "count":
            return len(series)
        self._require_numbers(series)
        return _AGGREGATES[self.function](list(series.values()))

    def demand(self, metrics: Metrics) -> None:
        """Raises _DoesNotHold unless the metric is ``finite`` or ``complete``."""
        series = self.series(metrics)
        if self.function == "finite":
            self._require_numbers(series)
        else:
            absent = sorted(set(range(min(series), max(metrics) + 1)) - set(series))
            if absent:
                what = "" if self.metric == STEP else f"{self.metric} of "
                raise _DoesNotHold(f"{what}{_steps(absent)} missing")

    def _require_numbers(self, series: Mapping[int, float]) -> None:
        odd = [step for step, value in series.items() if not math.isfinite(value)]
        if odd:
            raise _DoesNotHold(f"{self.metric} is no finite number in {_steps(odd)}")


@dataclass(frozen=True)
class Comparison:
    """Two values and the sign between them."""

    left: Call | float
    sign: str
    right: Call | float

    def demand(self, metrics: Metrics) -> None:
        """Raises _DoesNotHold with the two values if they do not compare so."""
        left, right = (side.value(metrics) if isinstance(side, Call) else side for side in (self.left, self.right))
        if not _COMPARISONS[self.sign](left, right):
            raise _DoesNotHold(f"{left:.6g} against {right:.6g}")


@dataclass(frozen=True)
class Condition:
    """What a user wrote, and what was understood: one of the alternatives has to hold."""

    text: str
    alternatives: tuple[Call | Comparison, ...]

    def problem(self, metrics: Metrics) -> str | None:
        """None when it holds, otherwise one line with the reason."""
        reasons = []
        for alternative in self.alternatives:
            try:
                alternative.demand(metrics)
            except _DoesNotHold as reason:
                reasons.append(str(reason))
            else:
                return None
        return f"{self.text}: {'; '.join(reasons)}"


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        ConditionError: it is none.
    """
    return Condition(text.strip(), tuple(_alternative(part.strip()) for part in re.split(r"\s+or\s+", text.strip())))


def _alternative(text: str) -> Call | Comparison:
    call = _CALL.fullmatch(text)
    if call and call["function"] in _STATEMENTS:
        return _call(text)
    comparison = _COMPARISON.fullmatch(text)
    if not comparison:
        raise ConditionError(
            f"condition {text!r} is not of the form finite(NAME), complete(NAME) or FUNCTION(NAME) < NUMBER"
        )
    left, right = (_value(comparison[side].strip()) for side in ("left", "right"))
    return Comparison(left, comparison["sign"], right)


def _value(text: str) -> Call | float:
    try:
        number = float(text)
    except ValueError:
        return _call(text)
    if not math.isfinite(number):
        raise ConditionError(f"{text} is no number to compare with; finite(NAME) asks for finite values")
    return number


def _call(text: str) -> Call:
    match = _CALL.fullmatch(text)
    if not match:
        raise ConditionError(f"{text!r} is neither a number nor FUNCTION(NAME) or FUNCTION(NAME, last=N)")
    function, end, n = match["function"], match["end"], int(match["n"] or 0)
    if function not in _AGGREGATES and function not in _STATEMENTS:
        raise ConditionError(f"{text!r}: {function} is not one of {', '.join([*_AGGREGATES, *_STATEMENTS])}")
    if end and n < 1:
        raise ConditionError(f"{text!r}: {end}={n} must be >= 1")
    return Call(function, match["metric"], end, n)


def _steps(steps: Sequence[int]) -> str:
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
