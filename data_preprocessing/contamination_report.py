# SPDX-License-Identifier: Apache-2.0
"""The contamination report as Markdown."""

from collections.abc import Mapping
from typing import Any

from data_preprocessing.markdown_table import cell, table


def markdown(report: Mapping[str, Any]) -> str:
    """Counts by test file, what the levels mean, the training files, and examples."""
    levels = list(report["levels"])
    settings = report["settings"]
    lines = [
        "# Contamination",
        "",
        "Test rows that have a twin among the training rows, at the most literal level.",
        "",
    ]
    lines += table(
        ["test file", "rows", "hit", "share", *levels],
        [
            [
                test["file"],
                str(test["rows"]),
                str(test["hit"]),
                f"{100 * test['share']:.1f} %",
                *(str(test["by_level"][level]) for level in levels),
            ]
            for test in report["test"]
        ],
    )
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
    lines += table(
        ["file", "rows", "rows that hit"],
        [[train["file"], str(train["rows"]), str(train["hitting"])] for train in report["train"]],
    )
    unusable = [
        f"- {file['file']}: {n} rows: {reason}"
        for file in (*report["train"], *report["test"])
        for reason, n in file["unusable"].items()
    ]
    if unusable:
        lines += ["## Rows that could not be compared", "", *unusable, ""]
    for test in report["test"]:
        if test["examples"]:
            lines += [f"## {test['file']}", ""]
            lines += table(
                ["level", "test", "train", "similarity"],
                [
                    [
                        example["level"],
                        f"{example['test_row']}: {cell(example['test'])}",
                        f"{example['train_file']} {example['train_row']}: {cell(example['train'])}",
                        f"{example['similarity']:.2f}",
                    ]
                    for example in test["examples"]
                ],
            )
    return "\n".join(lines).rstrip() + "\n"
