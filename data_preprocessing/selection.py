# SPDX-License-Identifier: Apache-2.0
"""The final selection of math problems by the votes of ``data_preprocessing.validate_votes``. No model is asked.

    python -m data_preprocessing.selection --input data/voted/train.parquet --output-dir data/selected

Keeps rows that are consistently solvable, whose solutions agree and whose agreed answer is the reference
(``selection_rule.py``); rows of other verifiers than the math verifier pass. Exits with 1 if nothing is left, with 2
and one line when nothing can be written. See docs/data.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_preprocessing.model_stage import finished, stage_parser
from data_preprocessing.rl_input import Row
from data_preprocessing.row_stage import Outcome, Plan, RowStage, run_stage
from data_preprocessing.selection_rule import MODELS, RULES, SOLVABLE_BY, SelectionRule, reason_against
from data_preprocessing.stage import Removal
from data_preprocessing.votes import Votes
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.sources import source_of

DEFAULTS = SelectionRule()


def selected(row: Row, rule: SelectionRule) -> Outcome:
    """The row, or why it goes.

    Raises:
        SourceError: the row has other votes than those of ``validate_votes``.
    """
    if source_of(row["data_source"]).task != "math":
        return [row]
    try:
        votes = [Votes(**one) for one in row["extra_info"].get("votes") or ()]
    except TypeError as error:
        raise SourceError(f"extra_info.votes are not those of validate_votes: {error}") from error
    reason = reason_against(votes, rule)
    return [row] if reason is None else Removal(*reason)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[Path]]:
    """Select and write. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
    """
    rule = SelectionRule(
        options.solvable_by, options.min_solvable, options.min_agreement, options.min_match, options.models
    )
    plan = Plan(options.input, options.output_dir, strict=options.strict, settings=asdict(rule))
    return run_stage(RowStage("Final selection", RULES), lambda rows: [selected(row, rule) for row in rows], plan)


def parser() -> argparse.ArgumentParser:
    top = stage_parser("selection", __doc__)
    top.add_argument(
        "--solvable-by",
        choices=SOLVABLE_BY,
        default=DEFAULTS.solvable_by,
        help="model: the judges say that it can be solved (default); agreement: solutions that agree are enough",
    )
    for name, meaning in (
        ("solvable", "end in an answer"),
        ("agreement", "give the same answer"),
        ("match", "give the reference"),
    ):
        default = getattr(DEFAULTS, f"min_{name}")
        top.add_argument(
            f"--min-{name}",
            type=float,
            default=default,
            help=f"share of a model's solutions that must {meaning} (default: {default})",
        )
    top.add_argument(
        "--models", choices=MODELS, default=DEFAULTS.models, help="which of the models that voted must find so"
    )
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    return finished("selection", lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
