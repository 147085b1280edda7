# SPDX-License-Identifier: Apache-2.0
"""Rates of the steps of a response, by continuing its prefixes, and the labels that follow."""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from scipy.stats import binomtest

from prime_ext.generate.backend import Response
from prime_ext.verifiers import Verdict

from .dialogues import Ask, Dialogue, Effect
from .grading import Judge
from .model_stage import Outcome, Row
from .stages import Removal

_LISTS = {"labels": pa.float64(), "rates": pa.float64(), "low": pa.float64(), "high": pa.float64()}
_CHAT = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))


def build_schema(raw: bool) -> pa.Schema:
    """Return the schema of the output; ``prompt`` is a chat, or a text if ``raw``.

    Lists have a value for each step: its label, its rate with a 95 % interval, and the trials that
    the rate is the mean of. ``missing`` and ``truncated`` count trials of the row.
    """
    return pa.schema(
        {
            "id": pa.string(),
            "data_source": pa.string(),
            "prompt": pa.string() if raw else _CHAT,
            "completions": pa.list_(pa.string()),
            "label": pa.int32(),
            **{name: pa.list_(kind) for name, kind in _LISTS.items()},
            "trials": pa.list_(pa.int32()),
            "missing": pa.int32(),
            "truncated": pa.int32(),
        }
    )


def get_steps(row: Row) -> list[str]:
    return [row["text"][start:end].strip() for start, end in row["spans"]]


def get_prefix(row: Row, step: int) -> str:
    """Return the response up to the end of a step, with line breaks but no spaces after it.

    A line break keeps a model from extending the step; tokenizers put spaces before words.
    """
    return str(row["text"][: row["spans"][step][1]].rstrip(" \t"))


def build_prompt(row: Row, prefix: str) -> Any:
    """Return a chat that ends with a begun response, or text that does."""
    if row["raw"]:
        return row["prompt"][-1]["content"] + prefix
    return (*row["prompt"], {"role": "assistant", "content": prefix})


# ---- labels ----


@dataclass(frozen=True)
class Estimate:
    """Rate of a step, in [0, 1], from a number of trials, and its interval, None for none."""

    rate: float
    trials: int
    low: float | None = None
    high: float | None = None


@lru_cache(maxsize=4096)
def estimate_rate(right: int, trials: int) -> Estimate:
    """Return the share of right trials with Wilson's 95 % interval."""
    interval = binomtest(right, trials).proportion_ci(method="wilson")
    return Estimate(right / trials, trials, float(interval.low), float(interval.high))


@dataclass(frozen=True)
class Labeling:
    """Number of samples, and how estimates become labels; ``totals`` counts faults of samples."""

    samples: int
    threshold: float
    soft: bool
    totals: Counter[str] = field(default_factory=Counter)

    def label(
        self, row: Row, estimates: Sequence[Estimate], of_prefixes: bool, **counts: int
    ) -> list[Row]:
        """Return the output row of a response, every step of which has an estimate.

        A success from a prefix proves those before it, so of prefixes the first error is the step
        after the last right one.
        """
        hard = [float(estimate.rate > self.threshold) for estimate in estimates]
        first = hard.index(0.0) if 0.0 in hard else -1
        if of_prefixes and 1.0 in hard:
            last = len(hard) - 1 - hard[::-1].index(1.0)
            first = last + 1 if last + 1 < len(hard) else -1
        return [self.build_row(row, estimates, hard, first, **counts)]

    def label_prefixes(
        self, row: Row, estimates: Sequence[Estimate | None], first: int, **counts: int
    ) -> list[Row]:
        """Return the output row where only the first error is known: nothing of steps after it."""
        steps = range(len(estimates))
        hard = [1.0 if first < 0 or t < first else 0.0 if t == first else None for t in steps]
        return [self.build_row(row, estimates, hard, first, **counts)]

    def build_row(
        self,
        row: Row,
        estimates: Sequence[Estimate | None],
        hard: Sequence[float | None],
        first: int,
        missing: int,
        truncated: int,
    ) -> Row:
        """Return the row of :func:`build_schema`, and add to the totals."""
        self.totals.update(missing=missing, truncated=truncated)
        rates = [None if estimate is None else estimate.rate for estimate in estimates]
        return {
            "id": row["id"],
            "data_source": row["data_source"],
            "prompt": row["prompt"][-1]["content"] if row["raw"] else row["prompt"],
            "completions": get_steps(row),
            "labels": rates if self.soft else list(hard),
            "label": first,
            "rates": rates,
            "low": [estimate and estimate.low for estimate in estimates],
            "high": [estimate and estimate.high for estimate in estimates],
            "trials": [estimate.trials if estimate else 0 for estimate in estimates],
            "missing": missing,
            "truncated": truncated,
        }


# ---- continuations ----

Exchange = Generator[Sequence[Effect], list[Any], list[Estimate | None]]


def continue_prefixes(
    row: Row, steps: Sequence[int], samples: int, counts: Counter[str]
) -> Exchange:
    """Return the estimate of each of these steps, None where no continuation could be graded."""
    prefixes = [get_prefix(row, step) for step in steps]
    trials = [(prefix, sample) for prefix in prefixes for sample in range(samples)]
    answers: list[Response] = yield [
        Ask(build_prompt(row, prefix), sample) for prefix, sample in trials
    ]
    counts["truncated"] += sum(answer.finish == "length" for answer in answers)
    verdicts: list[Verdict] = yield [
        _grade(row, prefix + answer.text)
        for (prefix, _), answer in zip(trials, answers, strict=True)
    ]
    estimates: list[Estimate | None] = []
    for start in range(0, len(verdicts), samples):
        graded = [v for v in verdicts[start : start + samples] if not v.grader_failure]
        counts["missing"] += samples - len(graded)
        right = sum(verdict.correct for verdict in graded)
        estimates.append(estimate_rate(right, len(graded)) if graded else None)
    return estimates


def _grade(row: Row, response: str) -> Judge:
    gold = row["reward_model"]["ground_truth"]
    return Judge(row["data_source"], response, gold, row["extra_info"])


def continue_all(row: Row, model: str, labeling: Labeling) -> Dialogue[Outcome]:
    """Continue every prefix but the complete response. Return the row, or why it is removed."""
    counts: Counter[str] = Counter(missing=0, truncated=0)
    (verdict,) = yield [_grade(row, row["text"])]
    steps = range(len(row["spans"]) - 1)
    estimates = yield from continue_prefixes(row, steps, labeling.samples, counts)
    known = [estimate for estimate in estimates if estimate is not None]
    if verdict.grader_failure or len(known) < len(estimates):
        return Removal("ungraded", verdict.detail or "no continuation of a step")
    return labeling.label(row, [*known, _know(verdict.correct)], of_prefixes=True, **counts)


def bisect(row: Row, model: str, labeling: Labeling) -> Dialogue[Outcome]:
    """Find the first error of a wrong response. Return the row, or why it is removed.

    OmegaPRM (arXiv 2406.06592): an error before a step makes all later prefixes wrong. A correct
    response has no error.
    """
    counts: Counter[str] = Counter(missing=0, truncated=0)
    (verdict,) = yield [_grade(row, row["text"])]
    if verdict.grader_failure:
        return Removal("ungraded", verdict.detail)
    last = len(row["spans"]) - 1
    estimates: list[Estimate | None] = [*[None] * last, _know(verdict.correct)]
    if verdict.correct:
        return labeling.label_prefixes(row, estimates, -1, **counts)
    low = 0
    high = last
    while low < high:
        middle = (low + high) // 2
        (estimate,) = yield from continue_prefixes(row, [middle], labeling.samples, counts)
        if estimate is None:
            return Removal("ungraded", f"no continuation of step {middle + 1}")
        estimates[middle] = estimate
        if estimate.rate > labeling.threshold:
            low = middle + 1
        else:
            high = middle
    return labeling.label_prefixes(row, estimates, low, **counts)


def _know(correct: bool) -> Estimate:
    """Return the estimate of a complete response, which is exact."""
    return Estimate(float(correct), 1, float(correct), float(correct))
