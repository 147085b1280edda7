# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.step_rm.convert``: labelled steps of public data sets into one parquet file.

    python -m prime_ext.step_rm.convert --prm800k phase2_train.jsonl --math-shepherd math-shepherd.jsonl \\
        --processbench gsm8k.json --hold-out processbench --output steps.parquet

Options of formats may be repeated and mixed; all files share one split by the hash of the question, see
prime_ext/step_rm/question_split.py. Every row that cannot be read is one line on stderr. Exits with 2 and one line when
nothing can be written.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prime_ext.step_rm.convert.formats import AFTER_ERROR, FORMATS, NEUTRAL, Context
from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.question_split import NEAR_DUPLICATES, group_of, normal_form, split_of
from prime_ext.step_rm.records import LabelledStep, write_steps
from prime_ext.utils.rows import BadRow, SourceError, read_source

_MAPPED = {"positive": 1, "negative": -1, "drop": None}


class Conversion:
    """Two passes over the files: the first counts what each input is labelled, the second writes.

    Attributes:
        counts: what was left out, mended and written.
        votes: how often each input has each label, by its hash.
        held_out: groups of questions of the sources that are test data altogether.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.counts: Counter[str] = Counter()
        self.votes: dict[bytes, list[int]] = {}
        self.held_out: set[str] = set()

    def _rows(self, name: str, path: Path, report: bool) -> Iterator[LabelledStep]:
        options = self.arguments
        after_error = options.after_error or ("drop" if name == "processbench" else "keep")
        context = Context(f"{name}:{path.name.partition('.')[0]}", after_error, options.keep_flagged)
        malformed, number = 0, 0
        for number, row in tqdm(read_source(path), desc=path.name, unit=" rows", disable=not sys.stderr.isatty()):
            try:
                if isinstance(row, BadRow):
                    raise row
                # Whole rows only: nothing of a row that breaks in the middle is kept.
                steps = list(FORMATS[name](row, context))
            except BadRow as error:
                malformed += 1
                if report:
                    print(f"{path} row {number}: {error}", file=sys.stderr)
                continue
            for step in steps:
                label = step.label if step.label or options.neutral == "keep" else _MAPPED[options.neutral]
                if label is None:
                    context.counts["neutral: dropped"] += 1
                else:
                    yield replace(step, label=label)
        if report:
            self.counts += context.counts
            self.counts.update({"malformed rows": malformed, "rows": number})
            if number == 0:
                raise StepRMError(f"{path} has no rows")
            if malformed > options.max_malformed * number:
                raise StepRMError(
                    f"{path}: {malformed} of {number} rows are not in the format {name}; "
                    f"--max-malformed {options.max_malformed} allows fewer"
                )

    def _steps(self, report: bool) -> Iterator[tuple[LabelledStep, bool]]:
        """Each step, and whether its source is held out."""
        for name, path in self.arguments.files:
            for step in self._rows(name, path, report):
                yield step, name in self.arguments.hold_out

    def _group(self, step: LabelledStep) -> str:
        first = step.previous[0] if step.previous else step.current
        return group_of(step.question or first, self.arguments.near_duplicates)

    def count(self) -> None:
        """The first pass."""
        for step, held_out in self._steps(report=True):
            self.votes.setdefault(input_key(step), [0] * len(LABELS))[LABELS.index(step.label)] += 1
            if held_out:
                self.held_out.add(self._group(step))

    def stored(self) -> Iterator[LabelledStep]:
        """The second pass: every input once, with the label that most rows give it."""
        options = self.arguments
        places: dict[bytes, str] = {}
        for step, held_out in self._steps(report=False):
            votes = self.votes.pop(input_key(step), None)
            if votes is None:
                self.counts["duplicates merged"] += 1
                continue
            if sorted(votes)[-1] == sorted(votes)[-2]:
                self.counts["contradictory labels: dropped"] += sum(votes)
                continue
            group = self._group(step)
            split = split_of(group, options.validation, options.test, options.seed)
            if group in self.held_out:
                if not held_out and split != "test":
                    self.counts["moved to test: question of a held-out source"] += 1
                split = "test"
            if not step.question and places.setdefault(pair_key(step), split) != split:
                self.counts["dropped: step without question, known to another split"] += 1
                continue
            label = LABELS[votes.index(max(votes))]
            self.counts.update([f"split {split}", f"label {label}"])
            yield replace(step, label=label, split=split, group=group)

    def summary(self) -> dict[str, object]:
        options = self.arguments
        chosen = ("neutral", "after_error", "keep_flagged", "near_duplicates", "validation", "test", "seed", "hold_out")
        return {
            "files": [f"{name}:{path.name}" for name, path in options.files],
            "options": {key: getattr(options, key) for key in chosen},
            "counts": dict(sorted(self.counts.items())),
        }


def _hash(parts: list[str]) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).digest()


def input_key(step: LabelledStep) -> bytes:
    """The same for what a model would see as the same, white space aside."""
    return _hash([" ".join(part.split()) for part in (step.question, *step.previous, step.current)])


def pair_key(step: LabelledStep) -> bytes:
    """The previous and the current step in normal form: without a question nothing else tells inputs apart."""
    return _hash([normal_form(part, mask_numbers=False) for part in (*step.previous[-1:], step.current)])


def _named(name: str, path: str) -> tuple[str, Path]:
    return name, Path(path)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m prime_ext.step_rm.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Files of all formats are in one list, in the order given.
    files: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "FILE", "dest": "files", "default": []}
    for name, converter in FORMATS.items():
        text = (converter.__doc__ or "").strip().splitlines()[0]
        top.add_argument(f"--{name.replace('_', '-')}", type=partial(_named, name), help=text, **files)
    top.add_argument("--output", type=Path, required=True, help="the parquet file")
    top.add_argument("--neutral", choices=NEUTRAL, default="keep", help="what becomes of the label 0 (default: keep)")
    top.add_argument(
        "--after-error",
        choices=AFTER_ERROR,
        help="steps behind the first wrong one: no label, -1, or as labelled (default: drop for ProcessBench, which "
        "has no labels there, and keep; PSPO and PRM800K are never changed)",
    )
    top.add_argument("--keep-flagged", action="store_true", help="PRM800K: keep completions that a labeler flagged")
    top.add_argument("--validation", type=float, default=0.05, help="share of the questions (default: 0.05)")
    top.add_argument("--test", type=float, default=0.05, help="share of the questions (default: 0.05)")
    top.add_argument("--seed", type=int, default=0, help="of the split")
    top.add_argument(
        "--hold-out",
        action="append",
        default=[],
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help="all questions of this format are test data, in the files of other formats too",
    )
    top.add_argument(
        "--near-duplicates",
        choices=NEAR_DUPLICATES,
        default="numbers",
        help="whether long questions that differ in numbers only stay together (default: numbers, they do)",
    )
    top.add_argument(
        "--max-malformed", type=float, default=0.1, help="share of unreadable rows per file to accept (default: 0.1)"
    )
    return top


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Convert and write. Returns the summary. Raises ``StepRMError`` and ``SourceError``."""
    if not arguments.files:
        raise StepRMError(f"no input; give one of {', '.join('--' + name.replace('_', '-') for name in FORMATS)}")
    if not (arguments.validation >= 0 <= arguments.test and arguments.validation + arguments.test < 1):
        raise StepRMError(f"--validation {arguments.validation} and --test {arguments.test} must add up to less than 1")
    conversion = Conversion(arguments)
    conversion.count()
    if not conversion.votes:
        raise StepRMError(f"no labelled step in {', '.join(str(path) for _, path in arguments.files)}")
    write_steps(arguments.output, conversion.stored(), lambda: json.dumps(conversion.summary()))
    return conversion.summary()


def main(words: Sequence[str] | None = None) -> int:
    try:
        summary = run(parser().parse_args(words))
    except (StepRMError, SourceError) as error:
        print(f"prime_ext: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
