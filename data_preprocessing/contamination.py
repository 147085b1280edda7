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
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_preprocessing.command import Made, finish, parser_of
from data_preprocessing.report import cell, table
from data_preprocessing.rl_input import problem_texts
from data_preprocessing.row_source import parsed_rows, short_name
from data_preprocessing.text_similarity import LEVELS, MEANING, Entry, Settings, SimilarityIndex
from prime_ext.utils.files import write_json, write_json_lines, write_text
from prime_ext.utils.rows import BadRow, SourceError

_MAX_SHOWN = 400
_MAX_REASONS = 20
# A row: the number of its file on the command line, and of the row in the file, from 1.
Place = tuple[int, int]


@dataclass
class FileCount:
    """A file, what was read of it, and how many of its rows hit or are hit, by level."""

    path: Path
    rows: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return short_name(self.path)

    def described(self) -> dict[str, Any]:
        listed = dict(self.unusable.most_common(_MAX_REASONS))
        others = self.unusable.total() - sum(listed.values())
        reasons = listed | ({"other reasons": others} if others else {})
        return {"file": self.name, "rows": self.rows, "unusable": reasons}

    def usable(self, columns: Sequence[str], remove: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Row numbers and texts; what has no text is counted with its reason. SourceError if none has."""
        rows = parsed_rows(self.path, lambda row, *_: problem_texts(row, columns, remove))
        for number, found in tqdm(rows, desc=self.name, unit=" rows", disable=not sys.stderr.isatty()):
            self.rows += 1
            if isinstance(found, BadRow):
                self.unusable[str(found)[:_MAX_SHOWN]] += 1
            else:
                yield number, found
        if self.rows == 0:
            raise SourceError(f"{self.path} has no rows")
        if self.unusable.total() == self.rows:
            reason = next(iter(self.unusable))
            raise SourceError(f"{self.path}: no row can be used: {reason}; --columns names the columns")


@dataclass(frozen=True)
class Hit:
    """A training row that gives a test row away; see :meth:`SimilarityIndex.hits` for the similarity."""

    level: str
    similarity: float
    place: Place
    text: str


class Comparison:
    """Which test rows training rows give away. Test rows are kept, training rows only pass by."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.index = SimilarityIndex(settings or Settings())
        self.places: dict[Place, int] = {}
        # The two best training rows of an entry: one of them may be the test row itself.
        self._best: dict[Entry, list[Hit]] = defaultdict(list)

    def add(self, texts: Sequence[str], place: Place) -> None:
        """Keep a test row."""
        self.places[place] = len(self.places)
        self.index.add(*texts)

    def pass_by(self, texts: Sequence[str], place: Place, itself: Place | None = None) -> str | None:
        """The most literal level at which a training row hits a test row other than ``itself``, or None."""
        itself_alone = [] if itself is None else [self.places.get(itself)]
        levels = set()
        for entry, similarity in self.index.hits(*texts):
            if self.index.rows[entry] != itself_alone:
                levels.add(entry[0])
            best = [*self._best[entry], Hit(entry[0], similarity, place, "\n".join(texts))]
            self._best[entry] = sorted(best, key=lambda hit: -hit.similarity)[:2]
        return min(levels, key=LEVELS.index, default=None)  # type: ignore[arg-type]

    def hit(self, number: int, itself: Place | None = None) -> Hit | None:
        """The most literal hit of a test row, other than the training row at ``itself``; then the most similar."""
        best = (hit for entry in self.index.entries[number] for hit in self._best.get(entry, ()) if hit.place != itself)
        return min(best, key=lambda hit: (LEVELS.index(hit.level), -hit.similarity), default=None)  # type: ignore[arg-type]


def compare(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read all files and compare them. Returns the report, and file, row and level of each training row that hits."""
    settings = Settings(options.threshold, ngram=options.ngram, ngram_share=options.ngram_share)
    comparison = Comparison(settings)
    tests, trains = [FileCount(path) for path in options.test], [FileCount(path) for path in options.train]
    # Where the rows of a test file stand among the training files, and the other way round.
    paths = [train.path.resolve() for train in trains]
    same = {t: paths.index(test.path.resolve()) for t, test in enumerate(tests) if test.path.resolve() in paths}
    test_of = {r: t for t, r in same.items()}
    shown: list[str] = []
    for file, test in enumerate(tests):
        for row, texts in test.usable(options.columns, options.remove):
            comparison.add(texts, (file, row))
            shown.append("\n".join(texts)[:_MAX_SHOWN])
    caught: list[dict[str, Any]] = []
    for file, train in enumerate(trains):
        for row, texts in train.usable(options.columns, options.remove):
            itself = (test_of[file], row) if file in test_of else None
            level = comparison.pass_by(texts, (file, row), itself)
            if level is not None:
                train.levels[level] += 1
                caught.append({"file": train.name, "row": row, "level": level})
    sources: dict[int, Counter[str]] = defaultdict(Counter)
    examples: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for (file, row), number in comparison.places.items():
        itself = (same[file], row) if file in same else None
        hit = comparison.hit(number, itself)
        if hit is None:
            continue
        test, train = tests[file], trains[hit.place[0]]
        test.levels[hit.level] += 1
        sources[file][train.name] += 1
        if test.levels[hit.level] <= options.examples:
            found = {"level": hit.level, "similarity": round(hit.similarity, 4), "test_row": row}
            found |= {"test": shown[number], "train_file": train.name, "train_row": hit.place[1]}
            examples[file].append(found | {"train": hit.text[:_MAX_SHOWN]})
    report = {
        "settings": {**asdict(settings), "columns": list(options.columns), "remove": list(options.remove)},
        "recall_at_threshold": round(settings.recall(settings.threshold), 4),
        "versions": {name: version(name) for name in ("datasketch", "numpy")},
        "levels": MEANING,
        "train": [{**train.described(), "hitting": train.levels.total()} for train in trains],
        "training_rows_by_level": {level: sum(train.levels[level] for train in trains) for level in LEVELS},
        "test": [
            {
                **test.described(),
                "hit": test.levels.total(),
                "share": round(test.levels.total() / (test.rows - test.unusable.total()), 4),
                "by_level": {level: test.levels[level] for level in LEVELS},
                "by_train": dict(sorted(sources[file].items())),
                "examples": sorted(examples[file], key=lambda example: LEVELS.index(example["level"])),
            }
            for file, test in enumerate(tests)
        ],
    }
    return report, caught


def markdown(report: Mapping[str, Any]) -> str:
    """Counts by test file, what the levels mean, the training files, and examples."""
    levels, settings = list(report["levels"]), report["settings"]
    lines = ["# Contamination", ""]
    lines += ["Test rows that have a twin among the training rows, at the most literal level.", ""]
    counts = [
        [test["file"], test["rows"], test["hit"], f"{100 * test['share']:.1f} %", *test["by_level"].values()]
        for test in report["test"]
    ]
    lines += table(["test file", "rows", "hit", "share", *levels], counts)
    lines += [f"- `{level}`: {meaning}" for level, meaning in report["levels"].items()]
    lines += [
        "",
        f"Threshold {settings['threshold']} on character {settings['shingle']}-grams, proposed by MinHash with "
        f"{settings['bands']} bands of {settings['rows']} (a pair at the threshold is found with probability "
        f"{report['recall_at_threshold']}); {settings['ngram_share']} of the word {settings['ngram']}-grams, for rows "
        f"with at least {settings['least_ngrams']} of them.",
        "",
        "## Training files",
        "",
    ]
    trains = [[train["file"], train["rows"], train["hitting"]] for train in report["train"]]
    lines += table(["file", "rows", "rows that hit"], trains)
    files = (*report["train"], *report["test"])
    unusable = [f"- {f['file']}: {n} rows: {reason}" for f in files for reason, n in f["unusable"].items()]
    if unusable:
        lines += ["## Rows that could not be compared", "", *unusable, ""]
    for test in report["test"]:
        examples = [
            [
                found["level"],
                f"{found['test_row']}: {cell(found['test'])}",
                f"{found['train_file']} {found['train_row']}: {cell(found['train'])}",
                f"{found['similarity']:.2f}",
            ]
            for found in test["examples"]
        ]
        if examples:
            lines += [f"## {test['file']}", "", *table(["level", "test", "train", "similarity"], examples)]
    return "\n".join(lines).rstrip() + "\n"


def run(options: argparse.Namespace) -> Made:
    """Compare and write. Returns the report and its files."""
    for name in ("threshold", "ngram_share"):
        if not 0 < getattr(options, name) <= 1:
            raise SourceError(f"--{name.replace('_', '-')} {getattr(options, name)} must be above 0 and at most 1")
    if options.ngram < 1 or options.examples < 0:
        raise SourceError("--ngram must be at least 1 and --examples at least 0")
    report, caught = compare(options)
    if options.caught is not None:
        write_json_lines(options.caught, caught)
    paths = [options.output.with_name(f"{options.output.name}.{kind}") for kind in ("json", "md")]
    write_json(paths[0], report)
    write_text(paths[1], markdown(report))
    return report, paths


def parser() -> argparse.ArgumentParser:
    top, near = parser_of("contamination", __doc__), Settings()
    top.add_argument("train", nargs="+", type=Path, metavar="TRAIN", help="training files")
    top.add_argument("--test", nargs="+", type=Path, required=True, metavar="FILE", help="test files")
    top.add_argument("--output", type=Path, required=True, help="name of the report, without .json and .md")
    top.add_argument("--caught", type=Path, help="JSON Lines file for the training rows that hit: file, row, level")
    about = "columns of the question, separated by commas (default: found by name)"
    top.add_argument("--columns", type=lambda text: tuple(text.split(",")), default=(), help=about)
    about = "cut this text out of every question; repeatable"
    top.add_argument("--remove", action="append", default=[], metavar="TEXT", help=about)
    top.add_argument("--threshold", type=float, default=near.threshold, help="Jaccard similarity (%(default)s)")
    top.add_argument("--ngram", type=int, default=near.ngram, help="words of a word n-gram (default: %(default)s)")
    about = "share of a test row's word n-grams in one training row (default: %(default)s)"
    top.add_argument("--ngram-share", type=float, default=near.ngram_share, help=about)
    top.add_argument("--examples", type=int, default=2, help="examples per file and level (default: %(default)s)")
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)

    def shown(report: Mapping[str, Any], _: list[Path]) -> int:
        for test in report["test"]:
            found = ", ".join(f"{level} {n}" for level, n in test["by_level"].items() if n)
            share = f"({100 * test['share']:.1f} %)"
            print(f"{test['file']}: {test['hit']} of {test['rows']} rows {share} {found}".rstrip())
        return 0

    return finish("contamination", lambda: run(options), shown)


if __name__ == "__main__":
    sys.exit(main())
