# SPDX-License-Identifier: Apache-2.0
"""What training files give away of test files: a report as JSON and Markdown.

    python -m data_preprocessing.contamination gsm8k/train.jsonl --test gsm8k/test.jsonl math500.json \\
        --output reports/gsm8k

writes ``reports/gsm8k.json`` and ``reports/gsm8k.md``. Files are CSV, JSON Lines, JSON (rows or columns) or parquet;
the question is found by the names of the columns (--columns names others). Test rows are kept in memory, training rows
pass by. A file that is given on both sides is compared with itself; no row counts as its own duplicate. Exits with 2
and one line when a file cannot be read.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from data_preprocessing.contamination_index import LEVELS, MEANING, ContaminationIndex, Place
from data_preprocessing.contamination_report import markdown
from data_preprocessing.problem_texts import problem_texts
from data_preprocessing.text_similarity import Settings
from prime_ext.utils.files import atomic_path, write_json, write_text
from prime_ext.utils.rows import BadRow, SourceError, read_source

_MAX_SHOWN = 400
_MAX_REASONS = 20


@dataclass
class FileCount:
    """A file, and what was read of it."""

    path: Path
    rows: int = 0
    unusable: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The last folder and the name: enough to recognise it, and nothing about the machine."""
        return "/".join(self.path.parts[-2:]).lstrip("/")

    def described(self) -> dict[str, Any]:
        listed = dict(self.unusable.most_common(_MAX_REASONS))
        others = sum(self.unusable.values()) - sum(listed.values())
        reasons = listed | ({"other reasons": others} if others else {})
        return {"file": self.name, "rows": self.rows, "unusable": reasons}


def usable_rows(count: FileCount, options: argparse.Namespace) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Row numbers and texts of a file; what has no text is counted with its reason.

    Raises:
        SourceError: the file cannot be read, or none of its rows can be used.
    """
    rows = tqdm(read_source(count.path), desc=count.name, unit=" rows", disable=not sys.stderr.isatty())
    for number, row in rows:
        count.rows += 1
        try:
            if isinstance(row, BadRow):
                raise row
            texts = problem_texts(row, options.columns, options.remove)
        except BadRow as error:
            count.unusable[str(error)[:_MAX_SHOWN]] += 1
            continue
        yield number, texts
    if count.rows == 0:
        raise SourceError(f"{count.path} has no rows")
    if sum(count.unusable.values()) == count.rows:
        raise SourceError(
            f"{count.path}: no row can be used: {next(iter(count.unusable))}; --columns names the columns"
        )


def compare(options: argparse.Namespace, caught: TextIO | None = None) -> dict[str, Any]:
    """Read all files and compare them.

    Args:
        options: of the command line.
        caught: where one JSON line goes for each training row that hits.

    Returns:
        The report.

    Raises:
        SourceError: see :func:`usable_rows`.
    """
    settings = Settings(threshold=options.threshold, ngram=options.ngram, ngram_share=options.ngram_share)
    index = ContaminationIndex(settings)
    tests = [FileCount(path) for path in options.test]
    trains = [FileCount(path) for path in options.train]
    # Where the rows of a test file stand among the training files, and the other way round.
    train_of = {t: r for t, test in enumerate(tests) for r, train in enumerate(trains) if _same(test, train)}
    test_of = {r: t for t, r in train_of.items()}
    shown: list[str] = []
    for file, test in enumerate(tests):
        for row, texts in usable_rows(test, options):
            index.add(texts, Place(file, row))
            shown.append("\n".join(texts))
    hitting: Counter[int] = Counter()
    for file, train in enumerate(trains):
        for row, texts in usable_rows(train, options):
            itself = Place(test_of[file], row) if file in test_of else None
            level = index.pass_by(texts, Place(file, row), itself)
            if level is not None:
                hitting[file] += 1
                if caught is not None:
                    caught.write(json.dumps({"file": train.name, "row": row, "level": level}) + "\n")
    return {
        "settings": {**asdict(settings), "columns": list(options.columns), "remove": list(options.remove)},
        "recall_at_threshold": round(settings.recall(settings.threshold), 4),
        "versions": {name: version(name) for name in ("datasketch", "numpy")},
        "levels": MEANING,
        "train": [{**train.described(), "hitting": hitting[file]} for file, train in enumerate(trains)],
        "training_rows_by_level": {level: index.caught[level] for level in LEVELS},
        "test": _tests(index, tests, trains, train_of, shown, options.examples),
    }


def _same(left: FileCount, right: FileCount) -> bool:
    return left.path.resolve() == right.path.resolve()


def _tests(
    index: ContaminationIndex,
    tests: Sequence[FileCount],
    trains: Sequence[FileCount],
    train_of: dict[int, int],
    shown: Sequence[str],
    n_examples: int,
) -> list[dict[str, Any]]:
    """What was found, by test file."""
    levels: list[Counter[str]] = [Counter() for _ in tests]
    sources: list[Counter[str]] = [Counter() for _ in tests]
    examples: list[list[dict[str, Any]]] = [[] for _ in tests]
    for key, place in enumerate(index.places):
        itself = Place(train_of[place.file], place.row) if place.file in train_of else None
        hit = index.hit(key, itself)
        if hit is None:
            continue
        levels[place.file][hit.level] += 1
        sources[place.file][trains[hit.place.file].name] += 1
        if levels[place.file][hit.level] <= n_examples:
            examples[place.file].append(
                {
                    "level": hit.level,
                    "similarity": round(hit.similarity, 4),
                    "test_row": place.row,
                    "test": shown[key][:_MAX_SHOWN],
                    "train_file": trains[hit.place.file].name,
                    "train_row": hit.place.row,
                    "train": hit.text[:_MAX_SHOWN],
                }
            )
    described = []
    for file, test in enumerate(tests):
        used = test.rows - sum(test.unusable.values())
        hits = sum(levels[file].values())
        found = {level: levels[file][level] for level in LEVELS}
        by_train = dict(sorted(sources[file].items()))
        ordered = sorted(examples[file], key=lambda example: LEVELS.index(example["level"]))
        described.append(
            {**test.described(), "hit": hits, "share": round(hits / used, 4), "by_level": found, "by_train": by_train}
            | {"examples": ordered}
        )
    return described


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m data_preprocessing.contamination",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("train", nargs="+", type=Path, metavar="TRAIN", help="training files")
    top.add_argument("--test", nargs="+", type=Path, required=True, metavar="FILE", help="test files")
    top.add_argument("--output", type=Path, required=True, help="name of the report, without .json and .md")
    top.add_argument("--caught", type=Path, help="JSON Lines file for the training rows that hit: file, row, level")
    top.add_argument(
        "--columns",
        type=lambda text: tuple(text.split(",")),
        default=(),
        help="columns of the question, separated by commas (default: found by name)",
    )
    top.add_argument(
        "--remove", action="append", default=[], metavar="TEXT", help="cut this text out of every question; repeatable"
    )
    defaults = Settings()
    top.add_argument(
        "--threshold",
        type=float,
        default=defaults.threshold,
        help=f"Jaccard similarity (default: {defaults.threshold})",
    )
    top.add_argument("--ngram", type=int, default=defaults.ngram, help=f"words (default: {defaults.ngram})")
    top.add_argument(
        "--ngram-share",
        type=float,
        default=defaults.ngram_share,
        help=f"share of a test row's word n-grams in one training row (default: {defaults.ngram_share})",
    )
    top.add_argument("--examples", type=int, default=2, help="examples per file and level (default: 2)")
    return top


def _check(options: argparse.Namespace) -> None:
    for name in ("threshold", "ngram_share"):
        if not 0 < getattr(options, name) <= 1:
            raise SourceError(f"--{name.replace('_', '-')} {getattr(options, name)} must be above 0 and at most 1")
    if options.ngram < 1 or options.examples < 0:
        raise SourceError("--ngram must be at least 1 and --examples at least 0")


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    try:
        _check(options)
        with ExitStack() as stack:
            caught = None
            if options.caught is not None:
                caught = stack.enter_context(stack.enter_context(atomic_path(options.caught)).open("w"))
            report = compare(options, caught)
        name = options.output.name
        write_json(options.output.with_name(f"{name}.json"), report)
        write_text(options.output.with_name(f"{name}.md"), markdown(report))
    except (SourceError, OSError) as error:
        print(f"contamination: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    for test in report["test"]:
        found = ", ".join(f"{level} {n}" for level, n in test["by_level"].items() if n)
        print(f"{test['file']}: {test['hit']} of {test['rows']} rows ({100 * test['share']:.1f} %) {found}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
