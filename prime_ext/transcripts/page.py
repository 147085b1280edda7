# SPDX-License-Identifier: Apache-2.0
"""The page of a step's transcripts: one file without scripts, for any screen and either scheme.

Text that comes from a model is hostile: all of it is made visible and escaped. The page needs no
other file, and its policy forbids scripts and requests, whatever a text contains.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from prime_ext.transcripts.frame import EXPLANATION, FRAME, LEVELS
from prime_ext.utils.report_page import shorten, show_invisible

Row = Mapping[str, Any]
# Tokens that are shown of a response and of a page, and characters of other texts.
MOST_TOKENS = 3000
MOST_OF_PAGE = 60_000
MOST_OF_PROMPT = 4000
MOST_OF_DETAIL = 400
# Step scores are probabilities: neither good nor bad at one half. Other rewards are so at 0.
SCORE_CENTER = 0.5
# Shares of the values that have less than the full color; one outlier must not turn all white.
FULL_COLOR_FROM = 0.98

VERDICTS = {
    "correct": ("good", "✓ correct"),
    "wrong": ("bad", "✗ wrong"),
    "no_answer": ("bad", "∅ no answer"),
    "timeout": ("bad", "✗ out of time"),
    "error": ("bad", "✗ error"),
    "out_of_memory": ("bad", "✗ out of memory"),
}
DECISIONS = {
    "kept": ("good", "trained on"),
    "too_easy": ("quiet", "dropped: too easy"),
    "too_hard": ("quiet", "dropped: too hard"),
    "truncated": ("quiet", "dropped: a response was cut off"),
    "failed": ("odd", "dropped: no response could be graded"),
}
METRICS = {
    "prime/gate/value": "gate",
    "prime/gate/pair_accuracy_average": "running pair accuracy of the PRM",
    "prm/pair_accuracy/before_update": "pair accuracy of the PRM in this step",
    "prime/process/normalizer": "process rewards divided by",
    "prime/kl/prm_coefficient": "pull towards the PRM",
    "prime/kl/average_coefficient": "pull towards the policy's average",
}


def escape(text: str) -> str:
    """Escape a text, and make its invisible characters visible."""
    return html.escape(show_invisible(text))


def format_value(value: float) -> str:
    """Format a number with its sign and four digits."""
    return f"{value:+.4g}"


def render_page(rows: Sequence[Row], run: str, steps: Sequence[int]) -> str:
    """Return the page of the rollouts of a step; ``steps`` are those of the run that have one."""
    limit = max(200, min(MOST_TOKENS, MOST_OF_PAGE // max(1, len(rows))))
    first = rows[0]
    values = [unit for row in rows for unit in _Values(row).process if unit is not None]
    advantages = [value for row in rows for value in row.get("advantage") or ()]
    scales = {"process": _find_scale(values), "advantage": _find_scale(advantages)}
    scored = any("step_scores" in row and row["step_scores"] for row in rows)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["uid"])]
    parts = [_head(first, run, steps), _facts(rows, groups), _legend(scales, bool(values), scored)]
    for number, group in enumerate(groups, start=1):
        parts.append(_group(number, group, scales, limit))
    chosen = "by-process" if values else "by-advantage"
    title = f"Step {first['step']}: why did this response get its reward?"
    return (
        FRAME.replace(f'id="{chosen}"', f'id="{chosen}" checked', 1)
        .replace("TITLE", escape(title), 1)
        .replace("CONTENT", "\n".join(parts), 1)
    )


class _Values:
    """The numbers of a response, by token.

    Attributes:
        process: distance of the process reward of the token's unit (token, step or turn) from the
            neutral value; None without one.
        notes: what a reader sees who points at the token.
        step_at: the number, from 1, of the step that begins at the token.
    """

    def __init__(self, row: Row):
        n_tokens = len(row["tokens"])
        self.mask = row.get("mask") or [1] * n_tokens
        self.advantage = row.get("advantage")
        self.process: list[float | None] = [None] * n_tokens
        self.notes: list[list[str]] = [[] for _ in range(n_tokens)]
        self.step_at: dict[int, int] = {}
        reward_T = row.get("process")
        if row.get("step_ends"):
            self._add_steps(row, reward_T)
        if reward_T is not None and row.get("unit", "token") == "token" and not self._scores(row):
            for token, reward in enumerate(reward_T):
                if self.mask[token]:
                    self.process[token] = reward
        if reward_T is not None:
            self._add_notes("process reward", reward_T)
        for end, reward in zip(row.get("turn_ends", ()), row.get("turn_rewards", ()), strict=True):
            self.notes[end].append(f"reward of the turn {format_value(reward)}")
        if any(row.get("paid_here") or ()):
            self._add_notes("reward paid here", row["paid_here"])
        for name in ("advantage", "return"):
            if row.get(name) is not None:
                self._add_notes(name, row[name])

    @staticmethod
    def _scores(row: Row) -> list[float] | None:
        return row.get("step_scores")

    def _add_notes(self, name: str, values: Sequence[float]) -> None:
        for token, value in enumerate(values):
            if self.mask[token]:
                self.notes[token].append(f"{name} {format_value(value)}")

    def _add_steps(self, row: Row, reward_T: Sequence[float] | None) -> None:
        unit = "turn" if row.get("unit") == "turn" else "step"
        scores = self._scores(row)
        start = 0
        ends = row["step_ends"]
        for number, end in enumerate(ends):
            tokens = [token for token in range(start, end + 1) if self.mask[token]]
            if tokens:
                self.step_at[tokens[0]] = number + 1
            value = None
            note = f"{unit} {number + 1} of {len(ends)}"
            if scores:
                value = scores[number] - SCORE_CENTER
                note += f", score {scores[number]:.4g}"
            elif reward_T is not None and row.get("unit", "token") != "token":
                value = math.fsum(reward_T[token] for token in tokens)
                note += f", sum {format_value(value)}"
            for token in tokens:
                self.process[token] = value
                self.notes[token].append(note)
            start = max(start, end + 1)


def _find_scale(values: Iterable[float]) -> float:
    """Return the size from which a value has the full color."""
    sizes = sorted(abs(value) for value in values)
    return max(sizes[int(FULL_COLOR_FROM * (len(sizes) - 1))], 1e-9) if sizes else 1.0


def _level(value: float | None, scale: float, letter: str) -> str:
    """Return the CSS class of a value: its channel, and its level from -LEVELS to LEVELS."""
    if value is None or not math.isfinite(value):
        return ""
    level = round(LEVELS * min(1.0, abs(value) / scale))
    return f"{letter}{'+' if value > 0 else '-'}{level}" if level else ""


def _classes(*names: str) -> str:
    known = " ".join(name.replace("+", "u").replace("-", "d") for name in names if name)
    return f' class="{known}"' if known else ""


# ---- parts of the page ---------------------------------------------------------------------------


def _head(first: Row, run: str, steps: Sequence[int]) -> str:
    others = ", ".join(map(str, steps))
    return (
        f"<header><p class=over>{escape(run)}</p>"
        f"<h1>Why did this response get its reward?</h1>"
        f"<p>Step <b>{first['step']}</b> of {escape(first['method'])}. Recorded steps: {others}."
        " Another one: <code>prime-ext transcripts RUN --step N</code>.</p></header>"
    )


def _facts(rows: Sequence[Row], groups: Sequence[Sequence[Row]]) -> str:
    trained = [group for group in groups if group[0]["filter"] == "kept"]
    facts = [
        ("prompts shown", f"{len(trained)} trained on, {len(groups) - len(trained)} dropped"),
        ("responses", f"{len(rows):,}"),
    ]
    metrics: Mapping[str, float] = next((row["metrics"] for row in rows if row.get("metrics")), {})
    facts += [(label, f"{metrics[name]:.4g}") for name, label in METRICS.items() if name in metrics]
    paid = next((row for row in rows if row.get("coefficient") is not None), None)
    if paid is not None and paid.get("paid"):
        gate = " times the gate" if "prime/gate/value" in metrics else ""
        facts.append(("weight of the process rewards", f"{paid['coefficient']:g}{gate}"))
    return f"{_list_facts(facts)}{EXPLANATION}"


def _list_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return names with values, side by side; long values are shortened."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(shorten(value, MOST_OF_DETAIL))}</dd></div>"
        for name, value in facts
    )
    return f"<dl class=facts>{cells}</dl>" if cells else ""


def _legend(scales: Mapping[str, float], rewarded: bool, scored: bool) -> str:
    """Return the bar that explains the colors and chooses between their meanings."""
    bars = []
    cells = "".join(
        f"<i{_classes(_level(level, LEVELS, 'p'), _level(level, LEVELS, 'a'))}></i>"
        for level in range(-LEVELS, LEVELS + 1)
    )
    for name, center in (("process", SCORE_CENTER if scored else 0.0), ("advantage", 0.0)):
        low, high = center - scales[name], center + scales[name]
        bars.append(
            f"<span class='bar of-{name}'><span>{low:.3g}</span>{cells}<span>{high:.3g}</span>"
            f"<span class=mid>no color: {center:g}</span></span>"
        )
    word = "step score" if scored else "process reward"
    choice = (
        f"<label for=by-process>{word}</label><label for=by-advantage>advantage</label>"
        if rewarded
        else "<label for=by-advantage>advantage</label>"
        "<span class=hint>no process rewards in this run</span>"
    )
    return (
        f"<div class=legend><span class=choice>Color: {choice}</span>{''.join(bars)}"
        "<span class=hint>Point at a token, or tap it: its numbers are at the bottom.</span></div>"
    )


def _group(number: int, group: Sequence[Row], scales: Mapping[str, float], limit: int) -> str:
    first = group[0]
    kind, decision = DECISIONS.get(first["filter"], ("odd", first["filter"]))
    infos = [row["info"] for row in group if not _failed(row["info"])]
    labels = [info["acc"] for info in infos if _is_number(info.get("acc"))]
    accuracy = f", mean accuracy {sum(labels) / len(labels):.3g}" if labels else ""
    gold = first.get("gold")
    shown = (
        f"<p class=gold>Gold answer: <code>{escape(shorten(gold, MOST_OF_DETAIL))}</code></p>"
        if gold is not None
        else ""
    )
    prompt = html.escape(shorten(first["prompt"], MOST_OF_PROMPT))
    return (
        f"<section><h2>Prompt {number} <span class='chip {kind}'>{escape(decision)}</span></h2>"
        f"<p class=hint>{_count(group)}{accuracy}; id {escape(first['uid'])}</p>"
        f"<div class=prompt>{prompt}</div>{shown}"
        + "".join(_response(row, group, scales, limit) for row in group)
        + "</section>"
    )


def _count(rows: Sequence[Row]) -> str:
    return "1 response" if len(rows) == 1 else f"{len(rows)} responses"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _failed(info: Mapping[str, Any]) -> bool:
    """Return whether the grader or the scorer of a response failed."""
    return bool(info.get("grader_failure") or info.get("reward_failure"))


def _verdict(info: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the words of a verdict."""
    if info.get("reward_failure"):
        return "odd", "⚠ not scored"
    name = info.get("verdict")
    if info.get("grader_failure"):
        return "odd", f"⚠ not graded: {str(name).replace('_', ' ')}"
    if name is not None:
        return VERDICTS.get(name, ("odd", str(name)))
    if _is_number(info.get("acc")):
        return ("good" if info["acc"] >= 1 else "bad"), f"accuracy {info['acc']:g}"
    return "quiet", "no verdict"


def _reasons(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the answer that the verifier read in a response, and the reason of its verdict."""
    lines = []
    if info.get("pred"):
        lines.append(("answer read", str(info["pred"])))
    elif info.get("verdict") is not None:
        lines.append(("answer read", "none"))
    details = [info.get(name) for name in ("verifier_detail", "failure_detail")]
    return [*lines, *(("reason", str(detail)) for detail in details if detail)]


def _numbers(row: Row, group: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the rewards and advantages of a response to the prompt of ``group``."""
    info = row["info"]
    lines = []
    if "outcome" in row:
        lines.append(("reward", f"{row['outcome']:.4g}"))
        if others := [
            other["outcome"] for other in group if other is not row and "outcome" in other
        ]:
            lines.append(("mean reward of the others", f"{sum(others) / len(others):.3g}"))
    elif _is_number(info.get("score")) and not _failed(info):
        lines.append(("reward", f"{info['score']:.4g}"))
    if row.get("step_scores"):
        mean = sum(row["step_scores"]) / len(row["step_scores"])
        lines.append(("step scores", f"mean {mean:.3g}, lowest {min(row['step_scores']):.3g}"))
    elif row.get("process") is not None:
        lines.append(("sum of process rewards", f"{math.fsum(row['process']):+.3g}"))
    advantage = row.get("advantage") or ()
    advantages = [value for value, use in zip(advantage, row.get("mask") or ()) if use]  # noqa: B905
    if advantages:
        low, high = min(advantages), max(advantages)
        spread = "" if high - low < 1e-6 else f" ({low:+.3g} to {high:+.3g})"
        lines.append(
            ("advantage, mean of the tokens", f"{sum(advantages) / len(advantages):+.3g}{spread}")
        )
    lines.append(("tokens", f"{len(row['tokens']):,}"))
    return lines


def _response(row: Row, group: Sequence[Row], scales: Mapping[str, float], limit: int) -> str:
    kind, words = _verdict(row["info"])
    left = " <span class='chip odd'>left its group</span>" if _left_group(row) else ""
    session = row["key"].split("_")[1:]
    number = ".".join(str(int(index) + 1) for index in session if index != "0") or "1"
    reasons = _list_facts(_reasons(row["info"]))
    more = _list_facts((name, str(value)) for name, value in row["info"].items())
    return (
        f"<article><h3>Response {number} <span class='chip {kind}'>{escape(words)}</span>{left}"
        f"</h3>{reasons}<div class=text>{_tokens(row, scales, limit)}</div>"
        f"{_list_facts(_numbers(row, group))}"
        f"<details><summary>All that the reward manager reported</summary>{more}</details>"
        "</article>"
    )


def _left_group(row: Row) -> bool:
    return row["filter"] == "kept" and "advantage" not in row


def _tokens(row: Row, scales: Mapping[str, float], limit: int) -> str:
    values = _Values(row)
    tokens = row["tokens"]
    head = len(tokens) if len(tokens) <= limit else 2 * limit // 3
    tail = len(tokens) if len(tokens) <= limit else len(tokens) - limit // 3
    parts = [_token(row, values, position, scales) for position in range(head)]
    if tail > head:
        parts.append(f"<b class=cut>… {tail - head:,} tokens left out …</b>")
        parts += [_token(row, values, position, scales) for position in range(tail, len(tokens))]
    return "".join(parts) or "<b class=cut>an empty response</b>"


def _token(row: Row, values: _Values, position: int, scales: Mapping[str, float]) -> str:
    # A line break alone would have no background.
    text = escape(row["tokens"][position]).replace("\n", "<s>↵</s>\n")
    mark = f"<sup>{values.step_at[position]}</sup>" if position in values.step_at else ""
    if not values.mask[position]:
        note = f"token {position + 1}: not trained on (of a tool, or rejected)"
        return f'{mark}<i class=other data-v="{note}">{text}</i>'
    advantage = None if values.advantage is None else values.advantage[position]
    kinds = _classes(
        _level(values.process[position], scales["process"], "p"),
        _level(advantage, scales["advantage"], "a"),
    )
    notes = [f"token {position + 1}", *values.notes[position]]
    # A line may break between two notes only.
    note = " · ".join(words.replace(" ", "\u00a0") for words in notes)
    return f'{mark}<i{kinds} data-v="{html.escape(note)}">{text}</i>'
