# SPDX-License-Identifier: Apache-2.0
"""Speed of deduplication beside an index that keeps all texts, and its memory per row.

    python tests/benchmarks/deduplicate.py [--data DATA] [--rows 4000]

On GSM8K and MATH, per second of processor time of one core: making the keys (which the pipeline divides among
processes), finding the twins by them, and the index of the contamination report filled and asked with the same rows.
Prints them, with the bytes that both keep of a row, and writes deduplicate.json beside this file.
"""

import tracemalloc
from pathlib import Path

import harness
import numpy as np

from data_preprocessing.deduplicate import Compared, first_of_each, sketch
from data_preprocessing.rl_input import problem_texts
from data_preprocessing.text_similarity import Settings, SimilarityIndex
from prime_ext.utils.rows import BadRow, read_source


def texts_of(data: Path, rows: int) -> list[str]:
    """The same number of problems of both sets."""
    found = []
    for name in ("gsm8k", "math"):
        numbered = read_source(data / name / "train.jsonl")
        found += ["\n".join(problem_texts(row)) for _, row in numbered if not isinstance(row, BadRow)][: rows // 2]
    return found


def main() -> None:
    options = harness.parser(__doc__, "gsm8k and math", rows=4000).parse_args()
    settings = Settings(mask_numbers=False)
    texts = texts_of(options.data, options.rows)

    def index_of(some: list[str]) -> SimilarityIndex:
        index = SimilarityIndex(settings)
        for text in some:
            index.add(text)
        return index

    def near_earlier_rows() -> int:
        index = index_of(texts)
        hits = [[entry for entry, _ in index.hits(text)] for text in texts]
        return sum(any(level == "near" and first < row for level, first in found) for row, found in enumerate(hits))

    keys, sketching = harness.timed(lambda: np.array([sketch(text, settings) for text in texts]))
    twins, search = harness.timed(lambda: list(first_of_each(keys, map(Compared, texts), settings)))
    near, indexing = harness.timed(near_earlier_rows)
    few = texts[:500]
    tracemalloc.start()
    kept = index_of(few)
    bytes_per_row = tracemalloc.get_traced_memory()[0] / len(kept.entries)
    tracemalloc.stop()
    n = len(texts)
    results = {
        "rows": n,
        "twins": len(twins),
        "near_twins_of_an_earlier_row_by_the_index": near,
        "keys_rows_per_cpu_second": round(n / sketching),
        "search_rows_per_cpu_second": round(n / search),
        "index_rows_per_cpu_second": round(n / indexing),
        "index_over_keys_and_search": round(indexing / (sketching + search), 2),
        "bytes_per_row": keys.nbytes // n,
        "bytes_per_row_of_the_index": round(bytes_per_row),
        "index": vars(settings),
    }
    harness.record(options, results, ("datasketch", "numpy"))


if __name__ == "__main__":
    main()
