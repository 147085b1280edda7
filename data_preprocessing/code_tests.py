# SPDX-License-Identifier: Apache-2.0
"""Which tests of a problem stay: not the cut ones, each once, none too large, and not too many."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_preprocessing.code_problem import CodeProblem
from data_preprocessing.stage import Changed, Removal

# Codeforces shows long tests cut, with an ellipsis at the end; short ones may end with one of their own.
_CUT_FROM = 200
NO_TESTS = "no_tests"


@dataclass(frozen=True)
class SizeLimits:
    """Limits of a problem's tests.

    Attributes:
        most_tests: how many stay.
        most_bytes: of one test, input and output together, as JSON.
        most_bytes_in_all: of all tests of a problem.
        least_tests: with fewer, the problem goes.
    """

    most_tests: int = 20
    most_bytes: int = 20_000
    most_bytes_in_all: int = 100_000
    least_tests: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


def spread(n: int, k: int) -> list[int]:
    """``k`` of ``n`` places, evenly, with the first and the last; all of them if there are no more."""
    if n <= k:
        return list(range(n))
    return [0] if k == 1 else [place * (n - 1) // (k - 1) for place in range(k)]


def chosen_tests(inputs: Sequence[Any], outputs: Sequence[Any], limits: SizeLimits) -> tuple[list[int], Counter[str]]:
    """Numbers of the tests that stay, and how many went and why.

    Sets give the examples first, then tests in order of growing size or in none: of too many, an even spread stays.
    If they are still too large together, the largest go first, of equal ones the later.
    """
    gone: Counter[str] = Counter()
    seen: set[str] = set()
    left: list[int] = []
    sizes: dict[int, int] = {}
    for number, pair in enumerate(zip(inputs, outputs, strict=True)):
        given, size = json.dumps(pair[0]), len(json.dumps(pair).encode())
        if any(isinstance(text, str) and len(text) >= _CUT_FROM and text.rstrip().endswith("...") for text in pair):
            gone["cut tests"] += 1
        elif given in seen:
            gone["repeated tests"] += 1
        elif size > limits.most_bytes:
            gone["tests too large"] += 1
        else:
            seen.add(given)
            sizes[number] = size
            left.append(number)
    kept = [left[place] for place in spread(len(left), limits.most_tests)]
    total = sum(sizes[number] for number in kept)
    for number in sorted(kept, key=lambda number: (-sizes[number], -number)):
        if total <= limits.most_bytes_in_all:
            break
        kept.remove(number)
        total -= sizes[number]
    if len(kept) < len(left):
        gone["tests beyond the limits"] = len(left) - len(kept)
    return kept, gone


def within_limits(limits: SizeLimits) -> Callable[[CodeProblem], Any]:
    """The stage that leaves each problem the tests of :func:`chosen_tests`."""

    def stage(problem: CodeProblem) -> CodeProblem | Changed | Removal:
        kept, gone = chosen_tests(problem.inputs, problem.outputs, limits)
        if len(kept) < limits.least_tests:
            reasons = ", ".join(f"{name} {n}" for name, n in gone.items()) or "there are no others"
            return Removal(NO_TESTS, f"{len(kept)} of {len(problem.inputs)} tests left: {reasons}")
        if not gone:
            return problem
        pick = replace(
            problem,
            inputs=tuple(problem.inputs[number] for number in kept),
            outputs=tuple(problem.outputs[number] for number in kept),
        )
        return Changed(pick, gone)

    return stage
