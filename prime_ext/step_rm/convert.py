# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.step_rm.convert``: write labeled steps of data sets into one parquet file.

    python -m prime_ext.step_rm.convert --prm800k phase2_train.jsonl \\
        --math-shepherd math-shepherd.jsonl --output steps.parquet

Options of formats may be repeated and mixed; all files share one split by the hash of the question.
Every row that cannot be read is one line on stderr. Exits with 2 and one line when nothing can be
written.
"""

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prime_ext.step_rm.labels import LABELS
from prime_ext.step_rm.question_split import (
    NEAR_DUPLICATES,
    SPLITS,
    name_group,
    normalize_question,
    pick_split,
)
from prime_ext.step_rm.records import LabelledStep, write_steps
from prime_ext.utils.arguments import Parser, add_split_arguments, check_split
from prime_ext.utils.fields import (
    Row,
    check_text,
    check_whole,
    get_field,
    get_list,
    get_prompt,
    get_text,
    get_texts,
    show_value,
)
from prime_ext.utils.rows import BadRow, SourceError, read_source
from prime_ext.utils.run_store import RunError, command
from prime_ext.utils.text_tokens import wrap_prompt

# Share of the rows of a file that may be unreadable.
MOST_MALFORMED = 0.1
PSPO_SEPARATOR = re.compile(r"\s*</s>\s*<s>\s*")
SHEPHERD_TAG = "\u043a\u0438"
_FIRST_STEP = re.compile(r"step\s*1\s*:", re.IGNORECASE)


@dataclass
class Context:
    """State of a file whose rows are read in order; ``chain`` has PSPO's response so far."""

    source: str
    counts: Counter[str]
    chain: tuple[str, ...] = ()


Steps = Iterator[LabelledStep]


def read_label(value: Any, name: str) -> int:
    """Return a label -1, 0 or 1. Raises ``BadRow``."""
    if isinstance(value, bool):
        # For Python, false equals 0, a neutral step.
        raise BadRow(f"{name} must be -1, 0 or 1, got {value}; write 1 for true and -1 for false")
    if value not in LABELS:
        raise BadRow(f"{name} must be -1, 0 or 1, got {show_value(value)}")
    return int(value)


def read_labels(row: Row, length: int) -> list[int | None]:
    """Return the labels of a row with a list of them, None for steps without one."""
    return [
        None if value is None else read_label(value, f"labels {number}")
        for number, value in enumerate(get_list(row, "labels", length=length), start=1)
    ]


def pspo(row: Row, context: Context) -> Steps:
    """Read PSPO's and CN-PPO's ``{"sentence": "<previous> </s><s><current>", "label": "0"}``.

    A row is one step, its label "-1", "0" or "1". Rows of a response follow one another; joined
    they give all previous steps. Rows have no question.
    """
    _, value = get_field(row, "label")
    if isinstance(value, str) and value.strip() in ("-1", "0", "1"):
        value = int(value)
    label = read_label(value, "label")
    parts = tuple(step.strip() for step in PSPO_SEPARATOR.split(get_text(row, "sentence")))
    if len(parts) > 2 or not all(parts):
        raise BadRow(
            f"sentence has {len(parts)} parts between </s><s>, some may be empty; one or two are"
            " right"
        )
    *before, current = parts
    if not before:
        context.chain = ()
    elif context.chain[-1:] != parts[:1]:
        context.counts["pspo: response begins in the middle"] += 1
        context.chain = parts[:1]
    yield LabelledStep("", context.chain, current, label, context.source)
    context.chain = (*context.chain, current)


def prm800k(row: Row, context: Context) -> Steps:
    """Read OpenAI's PRM800K (arXiv 2305.20050): every rated completion of every step.

    Alternatives are included. Previous steps are those that the labeler chose or wrote. Flagged or
    unrated completions make no step.
    """
    question = row.get("question")
    label = row.get("label")
    if not isinstance(question, Mapping) or not isinstance(label, Mapping):
        raise BadRow("question and label must be objects")
    problem = check_text(question.get("problem"), "question.problem")
    previous: tuple[str, ...] = ()
    for number, step in enumerate(get_list(label, "steps"), start=1):
        name = f"step {number}"
        if not isinstance(step, Mapping):
            raise BadRow(f"{name} must be an object")
        completions = step.get("completions") or []
        if not isinstance(completions, list):
            raise BadRow(f"{name}: completions must be a list, got {show_value(completions)}")
        for completion in completions:
            if not isinstance(completion, Mapping):
                raise BadRow(f"{name}: a completion must be an object")
            if (raw_rating := completion.get("rating")) is None:
                context.counts["prm800k: no rating"] += 1
            elif completion.get("flagged"):
                context.counts["prm800k: flagged"] += 1
            else:
                rating = read_label(raw_rating, f"{name}: a rating")
                current = check_text(completion.get("text"), f"{name}: text")
                yield LabelledStep(problem, previous, current, rating, context.source)
        chosen = step.get("chosen_completion")
        written = step.get("human_completion")
        if chosen is None and not isinstance(written, Mapping):
            return
        if isinstance(written, Mapping) and (
            chosen is None or chosen not in range(len(completions))
        ):
            taken = check_text(written.get("text"), f"{name}: text of the labeler")
        else:
            index = check_whole(chosen, f"{name}: chosen_completion", 0, len(completions) - 1)
            taken = check_text(completions[index].get("text"), f"{name}: chosen text")
        previous = (*previous, taken)


def math_shepherd(row: Row, context: Context) -> Steps:
    """Read Math-Shepherd (arXiv 2312.08935): tags in ``input``, + or - instead in ``label``.

    A tag is after each step. The question ends at "Step 1:", else after the last question mark
    before the first tag. A tag inside it is left out.
    """
    text = get_text(row, "input")
    labeled = get_text(row, "label")
    *pieces, _ = text.split(SHEPHERD_TAG)
    if not pieces:
        raise BadRow(f"input has no step tag {SHEPHERD_TAG}")
    labels: list[int | None] = []
    at = 0
    for number, piece in enumerate(pieces, start=1):
        sign = labeled[at + len(piece) : at + len(piece) + 1]
        if sign not in ("+", "-") or labeled[at : at + len(piece)] != piece:
            raise BadRow(f"label does not say + or - at tag {number} of input")
        labels.append(1 if sign == "+" else -1)
        at += len(piece) + 1
    number = next((k for k, piece in enumerate(pieces) if _FIRST_STEP.search(piece)), 0)
    match = _FIRST_STEP.search(pieces[number])
    cut = match.start() if match else pieces[0].rfind("?") + 1
    if cut == 0 and not (match and number):
        raise BadRow("input has neither 'Step 1:' nor a question mark after its question")
    question = check_text("".join([*pieces[:number], pieces[number][:cut]]), "question").strip()
    context.counts.update(["math_shepherd: tag in the question"] * number)
    steps = [piece.strip() for piece in [pieces[number][cut:], *pieces[number + 1 :]]]
    yield from _chain(question, steps, labels[number:], context)


def chains(row: Row, context: Context) -> Steps:
    """Read ``{"question": ..., "steps": [...], "labels": [-1 | 0 | 1 | null]}``; null: no label."""
    steps = get_texts(row, "steps")
    yield from _chain(get_text(row, "question"), steps, read_labels(row, len(steps)), context)


def stepwise(row: Row, context: Context) -> Steps:
    """Read TRL's ``{"prompt": ..., "completions": [...], "labels": [true | false | null]}``.

    ``data_preprocessing.step_labels`` writes 1 and 0, which are the labels 1 and -1. The question
    is the text of the user's messages.
    """
    prompt = wrap_prompt(get_prompt(row, "prompt"))
    users = [message["content"] for message in prompt if message["role"] == "user"]
    steps = get_texts(row, "completions")
    labels: list[int | None] = []
    for number, value in enumerate(get_list(row, "labels", length=len(steps)), start=1):
        if value not in (0, 1, None):
            raise BadRow(
                f"labels {number} must be 1, 0 or null, got {show_value(value)}; a step reward"
                " model has classes, so write hard labels"
            )
        labels.append(None if value is None else 1 if value else -1)
    yield from _chain(check_text("\n".join(users), "prompt"), steps, labels, context)


def _chain(question: str, steps: list[Any], labels: list[int | None], context: Context) -> Steps:
    """Yield the steps of a response that have a label."""
    texts = tuple(check_text(step, f"step {number}") for number, step in enumerate(steps, start=1))
    for index, label in enumerate(labels):
        if label is not None:
            yield LabelledStep(question, texts[:index], texts[index], label, context.source)


FORMATS: dict[str, Callable[[Row, Context], Steps]] = {
    each.__name__.replace("_", "-"): each
    for each in (pspo, prm800k, math_shepherd, chains, stepwise)
}


# The first step with each input, and how often each label was given to it.
Inputs = dict[bytes, tuple[LabelledStep, list[int]]]


def read_inputs(files: Iterable[tuple[str, Path]], counts: Counter[str]) -> Inputs:
    """Read files, each in its format. Raises ``SourceError``: no rows, or too many malformed."""
    inputs: Inputs = {}
    for name, path in files:
        context = Context(f"{name.replace('-', '_')}:{path.name.partition('.')[0]}", counts)
        malformed = 0
        number = 0
        for number, row in tqdm(
            read_source(path), desc=path.name, unit=" rows", disable=not sys.stderr.isatty()
        ):
            try:
                if isinstance(row, BadRow):
                    raise row
                steps = list(FORMATS[name](row, context))
            except BadRow as error:
                malformed += 1
                print(f"{path} row {number}: {error}", file=sys.stderr)
                continue
            for step in steps:
                _, votes = inputs.setdefault(input_key(step), (step, [0] * len(LABELS)))
                votes[LABELS.index(step.label)] += 1
        counts.update({"malformed rows": malformed, "rows": number})
        if number == 0:
            raise SourceError(f"{path} has no rows")
        if malformed > MOST_MALFORMED * number:
            raise SourceError(f"{path}: {malformed} of {number} rows are not in the format {name}")
    return inputs


def split_inputs(inputs: Inputs, options: argparse.Namespace, counts: Counter[str]) -> Steps:
    """Yield every input once, with its split and the label that most of its rows give it."""
    places: dict[bytes, str] = {}
    for step, votes in inputs.values():
        # Counted only where there are any.
        counts.update(["duplicates merged"] * (sum(votes) - 1))
        if sorted(votes)[-1] == sorted(votes)[-2]:
            counts["contradictory labels: dropped"] += sum(votes)
            continue
        first = step.previous[0] if step.previous else step.current
        group = name_group(step.question or first, options.near_duplicates)
        split = pick_split(group, options.validation, options.test, options.seed)
        if not step.question and places.setdefault(pair_key(step), split) != split:
            counts["dropped: step without question, known to another split"] += 1
            continue
        label = LABELS[votes.index(max(votes))]
        counts.update([f"split {split}", f"label {label}"])
        yield replace(step, label=label, split=split, group=group)


def _hash(parts: list[str]) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).digest()


def input_key(step: LabelledStep) -> bytes:
    """Hash what a model would see, white space normalized."""
    return _hash([" ".join(text.split()) for text in (step.question, *step.previous, step.current)])


def pair_key(step: LabelledStep) -> bytes:
    """Hash previous and current step in normal form: all there is without a question."""
    return _hash(
        [
            normalize_question(text, mask_numbers=False)
            for text in (*step.previous[-1:], step.current)
        ]
    )


@command("prime_ext", interrupted="interrupted; nothing was written")
def main(words: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m prime_ext.step_rm.convert", description=__doc__)
    # Files of all formats are in one list, in the order given.
    files: dict[str, Any] = {
        "nargs": "+",
        "action": "extend",
        "metavar": "FILE",
        "dest": "files",
        "default": [],
    }
    for name, converter in FORMATS.items():
        first_line = (converter.__doc__ or "").strip().splitlines()[0]
        parser.add_argument(
            f"--{name}",
            type=partial(lambda name, path: (name, Path(path)), name),
            help=first_line,
            **files,
        )
    parser.add_argument("--output", type=Path, required=True, help="the parquet file")
    add_split_arguments(parser, "questions", validation=0.05, test=0.05)
    parser.add_argument(
        "--near-duplicates",
        choices=NEAR_DUPLICATES,
        default="numbers",
        help=(
            "whether long questions that differ in numbers only stay together (default: numbers,"
            " they do)"
        ),
    )
    options = parser.parse_args(words)
    if not options.files:
        raise RunError(f"no input; give one of {', '.join('--' + name for name in FORMATS)}")
    check_split(options.validation, options.test)
    counts: Counter[str] = Counter()
    inputs = read_inputs(options.files, counts)
    if not inputs:
        raise RunError(f"no labeled step in {', '.join(str(path) for _, path in options.files)}")
    steps = list(split_inputs(inputs, options, counts))
    summary = {
        "files": [f"{name.replace('-', '_')}:{path.name}" for name, path in options.files],
        "options": {
            key: getattr(options, key) for key in ("near_duplicates", "validation", "test", "seed")
        },
        "counts": dict(sorted(counts.items())),
    }
    write_steps(options.output, steps, json.dumps(summary))
    print(json.dumps(summary, indent=2))
    shares = {"train": 1.0, "validation": options.validation, "test": options.test}
    groups = len({step.group for step in steps})
    for name in (name for name in SPLITS if shares[name] > 0 and not counts[f"split {name}"]):
        rest = (
            "other shares or another seed may"
            if groups > 1
            else "all are of one group of near duplicates; --near-duplicates text may part them"
        )
        print(
            f"prime_ext: no step is in the split {name} ({len(steps):,} steps of {groups:,}"
            f" questions): {rest} change it",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
