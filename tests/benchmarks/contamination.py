# SPDX-License-Identifier: Apache-2.0
"""Speed of the contamination report beside comparing all pairs, and what a split by rows gives away.

    python tests/benchmarks/contamination.py [--data DATA]

Three measurements, all on one core: rows per second of the report on GSM8K, MATH and EQUATE; the near-duplicates of a
part of StressTest by the index and by the Jaccard similarity of every pair (which must agree); and the share of test
rows with a twin among the training rows if EQUATE is divided by rows, and if it is divided by groups. Prints them and
writes contamination.json beside this file.
"""

from pathlib import Path

import harness

from data_preprocessing.contamination import Comparison
from data_preprocessing.rl_input import problem_texts
from data_preprocessing.text_similarity import LEVELS, Settings, SimilarityIndex, jaccard, near_groups, shingles
from prime_ext.step_rm.question_split import normal_form, split_of
from prime_ext.utils.rows import BadRow, read_source

SETS = ("AWPNLI", "NewsNLI", "RedditNLI", "RTE_Quant", "StressTest")


def texts_of(path: Path) -> list[tuple[str, ...]]:
    return [problem_texts(row) for _, row in read_source(path) if not isinstance(row, BadRow)]


def hits(train: list[tuple[str, ...]], test: list[tuple[str, ...]]) -> dict[str, int]:
    """Test rows with a twin, by level."""
    index = Comparison()
    for row, texts in enumerate(test):
        index.add(texts, (0, row))
    for row, texts in enumerate(train):
        index.pass_by(texts, (0, row))
    found = [index.hit(key) for key in range(len(test))]
    return {level: sum(hit is not None and hit.level == level for hit in found) for level in LEVELS}


def speed(data: Path) -> dict[str, object]:
    files = [data / "gsm8k" / "train.jsonl", data / "math" / "train.jsonl"]

    def report() -> int:
        train = [texts for path in files for texts in texts_of(path)]
        test = texts_of(data / "gsm8k" / "test.jsonl") + texts_of(data / "equate" / "StressTest.csv")
        hits(train, test)
        return len(train) + len(test)

    rows, seconds = harness.timed(report)
    return {"rows": rows, "cpu_seconds": round(seconds, 1), "rows_per_second": round(rows / seconds)}


def beside_all_pairs(data: Path, rows: int) -> dict[str, object]:
    texts = ["\n".join(parts) for parts in texts_of(data / "equate" / "StressTest.csv")[:rows]]
    settings = Settings()
    index = SimilarityIndex(settings)

    def indexed() -> set[tuple[int, int]]:
        for text in texts:
            index.add(text)
        hits = [(left, entry) for left, text in enumerate(texts) for entry, _ in index.hits(text)]
        return {(left, entry[1]) for left, entry in hits if entry[0] == "near"}

    def compared() -> set[tuple[int, int]]:
        forms = [shingles(normal_form(text), settings.shingle) for text in texts]
        kept, least = sorted({dict(entries)["near"] for entries in index.entries}), settings.threshold
        lefts = range(len(texts))
        return {(left, right) for left in lefts for right in kept if jaccard(forms[left], forms[right]) >= least}

    found, index_seconds = harness.timed(indexed)
    expected, pairs_seconds = harness.timed(compared)
    return {
        "rows": len(texts),
        "pairs": len(expected),
        "found": len(found & expected),
        "false": len(found - expected),
        "index_cpu_seconds": round(index_seconds, 2),
        "all_pairs_cpu_seconds": round(pairs_seconds, 2),
        "all_pairs_over_index": round(pairs_seconds / index_seconds, 1),
    }


def splits(data: Path, share: float) -> dict[str, dict[str, object]]:
    """What dividing each set of EQUATE by rows and by groups gives away."""
    result: dict[str, dict[str, object]] = {}
    for name in SETS:
        texts = texts_of(data / "equate" / f"{name}.csv")
        for kind, keys in (("rows", [str(row) for row in range(len(texts))]), ("groups", near_groups(texts))):
            sides = [split_of(key, 0.0, share, 0) for key in keys]
            test = [parts for parts, side in zip(texts, sides, strict=True) if side == "test"]
            train = [parts for parts, side in zip(texts, sides, strict=True) if side == "train"]
            by_level = hits(train, test)
            total = sum(by_level.values())
            described = {"test_rows": len(test), "hit": total, "share": round(total / len(test), 4)}
            result.setdefault(name, {})[f"by_{kind}"] = {**described, "by_level": by_level}
    return result


def main() -> None:
    parser = harness.parser(__doc__, "gsm8k, math and equate")
    parser.add_argument("--pairs-rows", type=int, default=1500, help="rows of which all pairs are compared")
    parser.add_argument("--test", type=float, default=0.2, help="share of the test data in both kinds of split")
    options = parser.parse_args()
    results = {
        "report": speed(options.data),
        "near_duplicates": beside_all_pairs(options.data, options.pairs_rows),
        "split": splits(options.data, options.test),
        "index": vars(Settings()),
    }
    harness.record(options, results, ("datasketch", "numpy"))


if __name__ == "__main__":
    main()
