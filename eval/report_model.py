# SPDX-License-Identifier: Apache-2.0
"""What a report says about a task, in one form for Markdown and HTML, so that the two cannot differ."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.finished_run import Judged, TaskRun
from eval.published import Published, best_of, headline, published
from eval.report_text import NONE, number, percent
from eval.statistics import NoProblems, pass_at_k
from prime_ext.tasks.choice_metrics import METRICS

# Examples of each kind, and of a text in them the most characters.
EXAMPLES, MOST_TEXT = 3, 6000
KINDS = {
    "right": "right",
    "wrong": "wrong",
    "no_answer": "without an answer",
    "truncated": "truncated",
    "ungraded": "not judged",
}


@dataclass(frozen=True)
class Example:
    """A response to look at.

    Attributes:
        kind: one of :data:`KINDS`.
        row: its numbers.
        prompt: what the model was shown.
        response: its text.
        gold: what is right.
        extracted: the answer that was found; None if there is none.
        detail: what the grader says.
    """

    kind: str
    row: Judged
    prompt: Any
    response: str
    gold: str
    extracted: str | None
    detail: str


@dataclass(frozen=True)
class ProblemLine:
    """A problem in the list.

    Attributes:
        name: id.
        groups: subject, level and so on.
        mean: mean score of the judged responses; None if there is none.
        judged: number of judged responses.
        tokens: mean length of the responses.
        truncated: number of truncated responses.
        gold: what is right.
    """

    name: str
    groups: Mapping[str, str]
    mean: float | None
    judged: int
    tokens: float
    truncated: int
    gold: str


@dataclass(frozen=True)
class TaskView:
    """Everything about a task.

    Attributes:
        task: the run's task.
        mean: ``avg@n``, the score of the task; None where nothing was judged.
        facts: shares, lengths and counts, as texts.
        published: published numbers beside ours.
        headline: those for the summary.
        groups: estimates by the values of subject, level and so on.
        curves: points of ``pass@k`` and ``maj@k``.
        lengths: token counts by ``right`` and ``wrong``.
        problems: all, the hardest first.
        examples: by kind.
    """

    task: TaskRun
    mean: Mapping[str, Any] | None
    facts: Sequence[tuple[str, str]]
    published: Sequence[Published]
    headline: Published | None
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]]
    curves: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]]
    lengths: Mapping[str, Sequence[int]]
    problems: Sequence[ProblemLine]
    examples: Mapping[str, Sequence[Example]]

    @property
    def metric(self) -> str:
        """Name of the score."""
        return f"avg@{self.task.n}"

    @property
    def solved(self) -> tuple[int, int, int]:
        """Problems of which no, some and all judged responses are right."""
        means = [line.mean for line in self.problems if line.mean is not None]
        never, always = sum(mean == 0 for mean in means), sum(mean == 1 for mean in means)
        return never, len(means) - never - always, always


def view(task: TaskRun) -> TaskView:
    """Everything about a task of a run."""
    groups = {
        name: {value: own for value, own in parts.items() if own is not None}
        for name, parts in task.entry["summary"]["groups"].items()
    }
    return TaskView(
        task=task,
        mean=task.entry["summary"]["scores"].get(f"avg@{task.n}"),
        facts=facts(task.entry),
        published=published(task.name, task.entry),
        headline=headline(task.name, task.entry),
        groups=groups,
        curves=curves(task),
        lengths={
            "right": [row.tokens for row in task.rows if row.score == 1],
            "wrong": [row.tokens for row in task.rows if row.score is not None and row.score < 1],
        },
        problems=sorted(map(_line, task.problems.values()), key=lambda line: (line.mean is None, line.mean)),
        examples=choose_examples(task),
    )


def facts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Shares, lengths and counts of a task, with their names."""
    summary, decoding = entry["summary"], entry["decoding"]
    tokens = summary["tokens"]
    known = [
        ("problems", number(summary["problems"])),
        ("responses per problem", number(summary["samples_per_problem"])),
        ("responses without an answer", f"{percent(summary['no_answer'])} %"),
        (f"truncated at {decoding['max_new_tokens']:,} tokens", f"{percent(summary['truncated'])} %"),
        ("mean length, tokens", number(float(tokens["mean"]))),
        ("median length", number(tokens["median"])),
        ("longest", number(tokens["most"])),
        ("responses that the grader could not judge", number(summary["grader_failures"])),
        ("failed responses", number(entry["failed_responses"])),
    ]
    known += [(f"{name.replace('_', ' ')}, %", percent(own)) for name, own in _choice(entry).items()]
    # A run that generated nothing, such as one that only graded again, has no speed.
    if entry.get("response_tokens_per_second") is not None:
        known.append(("response tokens per second", number(float(entry["response_tokens_per_second"]))))
    known += [(f"seconds of {part}", number(float(own))) for part, own in entry.get("seconds", {}).items()]
    return known


def _choice(entry: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of multiple choice that the table of scores does not have."""
    return {name: own for name, own in (entry["choice"] or {}).items() if name in METRICS and name != "accuracy"}


def curves(task: TaskRun) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
    """``pass@k`` and ``maj@k`` over k: those of the run, and unbiased ``pass@k`` at the powers of 2 from its scores.

    ``maj@1`` is the score of a single response.
    """
    found: dict[str, dict[int, Mapping[str, Any]]] = {"pass@k": {}, "maj@k": {}}
    for name, own in task.entry["summary"]["scores"].items():
        kind, _, k = name.partition("@")
        if f"{kind}@k" in found and own is not None:
            found[f"{kind}@k"][int(k)] = own
    for k in (2**power for power in range(task.n.bit_length())):
        if k not in found["pass@k"] and task.n > 1:
            try:
                found["pass@k"][k] = asdict(pass_at_k(task.scores, k))
            except NoProblems:
                continue
    mean = task.entry["summary"]["scores"].get(f"avg@{task.n}")
    if found["maj@k"] and mean is not None:
        found["maj@k"].setdefault(1, mean)
    return {name: sorted(points.items()) for name, points in found.items() if len(points) > 1}


def length_table(task: TaskRun) -> list[list[str]]:
    """Count, mean, median and 90th percentile of the length, by what became of the response."""
    parts = {
        "right": [row.tokens for row in task.rows if row.score == 1],
        "wrong": [row.tokens for row in task.rows if row.score is not None and row.score < 1],
        "not judged": [row.tokens for row in task.rows if row.score is None],
    }
    return [[name, *_lengths(own)] for name, own in parts.items() if own]


def _lengths(own: Sequence[int]) -> list[str]:
    ninth = statistics.quantiles(own, n=10, method="inclusive")[-1] if len(own) > 1 else own[0]
    return [
        number(len(own)),
        number(statistics.fmean(own)),
        number(float(statistics.median(own))),
        number(float(ninth)),
    ]


def _line(rows: Sequence[Judged]) -> ProblemLine:
    scores = [row.score for row in rows if row.score is not None]
    return ProblemLine(
        name=rows[0].problem,
        groups=rows[0].groups,
        mean=statistics.fmean(scores) if scores else None,
        judged=len(scores),
        tokens=statistics.fmean(row.tokens for row in rows),
        truncated=sum(row.truncated for row in rows),
        gold=rows[0].gold,
    )


def kind_of(row: Judged) -> str:
    """The kind of examples that a response belongs to."""
    if row.score is None:
        return "ungraded"
    if row.truncated:
        return "truncated"
    if row.score == 1:
        return "right"
    return "no_answer" if row.extracted is None else "wrong"


def choose_examples(task: TaskRun, most: int = EXAMPLES) -> dict[str, list[Example]]:
    """Examples of each kind, of different problems where possible, spread evenly over the task."""
    by_kind: dict[str, dict[str, Judged]] = {kind: {} for kind in KINDS}
    for row in task.rows:
        by_kind[kind_of(row)].setdefault(row.problem, row)
    chosen = {kind: _spread(list(rows.values()), most) for kind, rows in by_kind.items()}
    return {kind: [example(task, row) for row in rows] for kind, rows in chosen.items() if rows}


def _spread(rows: Sequence[Judged], most: int) -> list[Judged]:
    return list(rows) if len(rows) <= most else [rows[place * len(rows) // most] for place in range(most)]


def example(task: TaskRun, row: Judged) -> Example:
    """A response with its texts."""
    texts = task.texts(row)
    return Example(
        kind_of(row), row, texts["prompt"], texts["response"], texts["gold"], texts["extracted"], texts["detail"]
    )


def published_cell(own: Published | None, model: str, metric: str) -> str:
    """Published numbers in a line of the summary; their metric is named if it is not ``metric``, unless it is empty."""
    if own is None or not own.values:
        return NONE
    name, value = best_of(own.values, model)
    return f"{value:.1f} ({name}{'' if metric in ('', own.metric) else f', {own.metric}'})"
