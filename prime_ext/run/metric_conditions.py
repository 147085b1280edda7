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
from functools import partial

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


@dataclass(frozen=True)
class Condition:
    """What a user wrote, and what was understood: one of the alternatives has to return, instead of _DoesNotHold."""

    text: str
    alternatives: tuple[Callable[[Metrics], None], ...]

    def problem(self, metrics: Metrics) -> str | None:
        """None when it holds, otherwise one line with the reason."""
        reasons = []
        for demand in self.alternatives:
            try:
                demand(metrics)
            except _DoesNotHold as reason:
                reasons.append(str(reason))
            else:
                return None
        return f"{self.text}: {'; '.join(reasons)}"


def parse(text: str) -> Condition:
    """Read a condition. Raises ConditionError."""
    return Condition(text.strip(), tuple(_alternative(part.strip()) for part in re.split(r"\s+or\s+", text.strip())))


def _alternative(text: str) -> Callable[[Metrics], None]:
    call = _CALL.fullmatch(text)
    if call and call["function"] in _STATEMENTS:
        return partial(_STATEMENTS[call["function"]], _checked(call))
    comparison = _COMPARISON.fullmatch(text)
    if not comparison:
        raise ConditionError(
            f"condition {text!r} is not of the form finite(NAME), complete(NAME) or FUNCTION(NAME) < NUMBER"
        )
    return partial(
        _compare, _value(comparison["left"].strip()), comparison["sign"], _value(comparison["right"].strip())
    )


def _value(text: str) -> Callable[[Metrics], float]:
    try:
        number = float(text)
    except ValueError:
        call = _CALL.fullmatch(text)
        if not call:
            raise ConditionError(f"{text!r} is neither a number nor FUNCTION(NAME) or FUNCTION(NAME, last=N)") from None
        return partial(_aggregate, _checked(call))
    if not math.isfinite(number):
        raise ConditionError(f"{text} is no number to compare with; finite(NAME) asks for finite values")
    return lambda metrics: number


def _checked(call: re.Match[str]) -> re.Match[str]:
    known = [*_AGGREGATES, *_STATEMENTS]
    if call["function"] not in known:
        raise ConditionError(f"{call[0]!r}: {call['function']} is not one of {', '.join(known)}")
    if call["end"] and int(call["n"]) < 1:
        raise ConditionError(f"{call[0]!r}: {call['end']}={call['n']} must be >= 1")
    return call


def _compare(left: Callable[[Metrics], float], sign: str, right: Callable[[Metrics], float], metrics: Metrics) -> None:
    values = left(metrics), right(metrics)
    if not _COMPARISONS[sign](*values):
        raise _DoesNotHold(f"{values[0]:.6g} against {values[1]:.6g}")


def _series(call: re.Match[str], metrics: Metrics) -> dict[int, float]:
    """Values of the metric by step, at the end that is asked for; what is no finite number is NaN."""
    name = call["metric"]
    found: dict[int, float] = {}
    for step in sorted(metrics):
        if name == STEP or name in metrics[step]:
            value = step if name == STEP else metrics[step][name]
            found[step] = math.nan if value is None else float(value)
    if not found:
        raise _DoesNotHold("no step was logged" if name == STEP else f"{name} was never logged")
    steps = list(found)
    if call["end"]:
        steps = steps[: int(call["n"])] if call["end"] == "first" else steps[-int(call["n"]) :]
    return {step: found[step] for step in steps}


def _finite(call: re.Match[str], metrics: Metrics) -> None:
    odd = [step for step, value in _series(call, metrics).items() if not math.isfinite(value)]
    if odd:
        raise _DoesNotHold(f"{call['metric']} is no finite number in {_steps(odd)}")


def _complete(call: re.Match[str], metrics: Metrics) -> None:
    series = _series(call, metrics)
    absent = sorted(set(range(min(series), max(metrics) + 1)) - set(series))
    if absent:
        raise _DoesNotHold(f"{'' if call['metric'] == STEP else call['metric'] + ' of '}{_steps(absent)} missing")


_STATEMENTS = {"finite": _finite, "complete": _complete}


def _aggregate(call: re.Match[str], metrics: Metrics) -> float:
    if call["function"] != "count":
        _finite(call, metrics)
    return _AGGREGATES[call["function"]](list(_series(call, metrics).values()))


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
