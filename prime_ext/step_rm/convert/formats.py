# SPDX-License-Identifier: Apache-2.0
"""One converter per public format: a row in, labelled steps out, or :class:`BadRow` for a row that it cannot read."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_ext.step_rm.records import LabelledStep
from prime_ext.utils.rows import BadRow

NEUTRAL = ("keep", "positive", "negative", "drop")
AFTER_ERROR = ("drop", "negative", "keep")
PSPO_SEPARATOR = re.compile(r"\s*</s>\s*<s>\s*")
_PSPO_MARKER = re.compile(r"\s*(?:\[(\d{1,3})\]|(\d{1,3})\.)")
SHEPHERD_TAG = "\u043a\u0438"
_FIRST_STEP = re.compile(r"step\s*1\s*:", re.IGNORECASE)


@dataclass
class Context:
    """What is known of a file whose rows are converted in their order.

    Attributes:
        source: of its steps.
        after_error: what follows the first wrong step: ``drop`` (no label), ``negative``, or ``keep`` (as labelled).
        keep_flagged: whether PRM800K completions that a labeler flagged count.
        counts: everything left out or mended, by its reason.
        chain: PSPO: the steps of the response so far, without the first ``offset`` of it.
    """

    source: str
    after_error: str
    keep_flagged: bool
    counts: Counter[str] = field(default_factory=Counter)
    chain: tuple[str, ...] = ()
    offset: int = 0


Row = Mapping[str, Any]
Steps = Iterator[LabelledStep]


def text(value: Any, name: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise BadRow(f"{name} must be a text, got {str(value)[:60]!r}")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value


def listed(row: Row, name: str) -> list[Any]:
    """A column with a list that is not empty."""
    if name not in row:
        raise BadRow(f"no column {name!r}; it has {sorted(row)}")
    value = row[name]
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} must be a list that is not empty, got {str(value)[:60]!r}")
    return value


def labels_by_first_error(first: Any, n_steps: int) -> list[int | None]:
    """Labels of steps from the index of the first wrong one, -1 for none: what follows it has none."""
    if not isinstance(first, int) or isinstance(first, bool) or not -1 <= first < n_steps:
        raise BadRow(f"label must be -1 or the index of the first wrong of {n_steps} steps, got {first!r}")
    return [1] * n_steps if first < 0 else [*[1] * first, -1, *[None] * (n_steps - first - 1)]


def pspo(row: Row, context: Context) -> Steps:
    """``{"sentence": "<previous> </s><s><current>", "label": "-1" | "0" | "1"}`` of PSPO and CN-PPO, one step a row.

    The rows of a response follow one another, each with its predecessor only. A row whose previous step is the step of
    the row before goes on with its response; so all previous steps become known. There is no question.
    """
    label = str(row.get("label")).strip()
    if label not in ("-1", "0", "1"):
        raise BadRow(f"label must be -1, 0 or 1, got {row.get('label')!r}")
    parts = tuple(part.strip() for part in PSPO_SEPARATOR.split(text(row.get("sentence"), "sentence")))
    if len(parts) > 2 or not all(parts):
        raise BadRow(f"sentence has {len(parts)} parts between </s><s>, some may be empty; one or two are right")
    *before, current = parts
    if not before:
        context.chain, context.offset = (), 0
    elif context.chain[-1:] != parts[:1]:
        context.counts["pspo: response begins in the middle"] += 1
        marker = _PSPO_MARKER.match(current)
        # Without its beginning only the marker tells the place.
        context.chain, context.offset = parts[:1], max(0, int(marker[1] or marker[2]) - 2) if marker else 0
    index = context.offset + len(context.chain)
    yield LabelledStep("", context.chain, current, int(label), index, context.source)
    context.chain = (*context.chain, current)


def prm800k(row: Row, context: Context) -> Steps:
    """Rows of OpenAI's PRM800K (arXiv 2305.20050): every rated completion of every step, alternatives included.

    The previous steps are those that the labeler chose, or wrote. What has no rating makes no row. After a step of
    which nothing was chosen nothing follows.
    """
    question, label = row.get("question"), row.get("label")
    if not isinstance(question, Mapping) or not isinstance(label, Mapping):
        raise BadRow("question and label must be objects")
    problem = text(question.get("problem"), "question.problem")
    previous: tuple[str, ...] = ()
    for index, step in enumerate(listed(label, "steps")):
        name = f"step {index + 1}"
        if not isinstance(step, Mapping):
            raise BadRow(f"{name} must be an object")
        completions = step.get("completions") or []
        for completion in completions:
            if not isinstance(completion, Mapping) or completion.get("rating") not in (-1, 0, 1, None):
                raise BadRow(f"{name}: a completion without a rating of -1, 0, 1 or null")
            if completion.get("rating") is None:
                context.counts["prm800k: no rating"] += 1
            elif completion.get("flagged") and not context.keep_flagged:
                context.counts["prm800k: flagged"] += 1
            else:
                current = text(completion.get("text"), f"{name}: text")
                yield LabelledStep(problem, previous, current, completion["rating"], index, context.source)
        chosen, written = step.get("chosen_completion"), step.get("human_completion")
        if isinstance(chosen, int) and 0 <= chosen < len(completions):
            previous = (*previous, text(completions[chosen].get("text"), f"{name}: chosen text"))
        elif isinstance(written, Mapping):
            previous = (*previous, text(written.get("text"), f"{name}: text of the labeler"))
        elif chosen is not None:
            raise BadRow(f"{name}: chosen_completion {chosen!r} is none of {len(completions)}")
        else:
            return


def math_shepherd(row: Row, context: Context) -> Steps:
    """Rows of Math-Shepherd (arXiv 2312.08935): ``input`` with a tag after each step, ``label`` with + or - instead.

    The question ends where "Step 1:" begins, or else behind its last question mark before the first tag. A tag inside
    the question labels no step and is left out, with the text kept.
    """
    given, labelled = text(row.get("input"), "input"), text(row.get("label"), "label")
    *pieces, _ = given.split(SHEPHERD_TAG)
    if not pieces:
        raise BadRow(f"input has no step tag {SHEPHERD_TAG}")
    labels: list[int | None] = []
    at = 0
    for number, piece in enumerate(pieces, start=1):
        sign = labelled[at + len(piece) : at + len(piece) + 1]
        if sign not in ("+", "-") or labelled[at : at + len(piece)] != piece:
            raise BadRow(f"label does not say + or - at tag {number} of input")
        labels.append(1 if sign == "+" else -1)
        at += len(piece) + 1
    number = next((k for k, piece in enumerate(pieces) if _FIRST_STEP.search(piece)), 0)
    match = _FIRST_STEP.search(pieces[number])
    cut = match.start() if match else pieces[0].rfind("?") + 1
    if cut == 0 and not (match and number):
        raise BadRow("input has neither 'Step 1:' nor a question mark behind its question")
    question = text("".join([*pieces[:number], pieces[number][:cut]]), "question").strip()
    context.counts["math_shepherd: tag in the question"] += number
    steps = [piece.strip() for piece in [pieces[number][cut:], *pieces[number + 1 :]]]
    yield from _chain(question, steps, labels[number:], context)


def processbench(row: Row, context: Context) -> Steps:
    """Rows of ProcessBench (arXiv 2412.06559): ``label`` is the first wrong step from 0, -1 for none.

    Steps before it are right, it is wrong; what follows has no label, or -1 with ``after_error`` = negative.
    """
    question, steps = text(row.get("problem"), "problem"), listed(row, "steps")
    yield from _chain(question, steps, labels_by_first_error(row.get("label"), len(steps)), context)


def chains(row: Row, context: Context) -> Steps:
    """``{"question": ..., "steps": [...], "labels": [-1 | 0 | 1 | null, ...]}``; also TRL's ``prompt`` and
    ``completions`` with true and false."""
    question = next((row[name] for name in ("question", "prompt", "problem") if row.get(name)), None)
    steps = listed(row, "steps" if "steps" in row else "completions")
    labels = [(1 if label else -1) if isinstance(label, bool) else label for label in listed(row, "labels")]
    if len(steps) != len(labels):
        raise BadRow(f"{len(steps)} steps and {len(labels)} labels")
    if not all(label in (-1, 0, 1, None) for label in labels):
        raise BadRow(f"labels must be -1, 0, 1 or null, or true and false, got {str(labels)[:60]}")
    yield from _chain(text(question, "question"), steps, labels, context)


def _chain(question: str, steps: list[Any], labels: list[int | None], context: Context) -> Steps:
    """The labelled steps of a response; ``after_error`` decides about those behind the first wrong one."""
    texts = tuple(text(step, f"step {number}") for number, step in enumerate(steps, start=1))
    if context.after_error != "keep" and -1 in labels:
        first = labels.index(-1) + 1
        labels = labels[:first] + [-1 if context.after_error == "negative" else None] * (len(labels) - first)
    for index, label in enumerate(labels):
        if label is not None:
            yield LabelledStep(question, texts[:index], texts[index], label, index, context.source)


FORMATS: dict[str, Callable[[Row, Context], Steps]] = {
    each.__name__: each for each in (pspo, prm800k, math_shepherd, processbench, chains)
}
