# SPDX-License-Identifier: Apache-2.0
r"""Votes of a model on math problems: can they be solved, do its solutions agree, is their answer the reference?

    python -m data_preprocessing.validate_votes --input data/math/train.parquet --output-dir data/voted BACKEND

Asks for --solutions per problem and writes the counts into ``extra_info.votes`` of every row; removes nothing but what
the model cannot be asked. Run again on the output with another model, it adds that model's votes.
``data_preprocessing.selection`` decides. Interrupted or killed, the same command goes on and asks nothing twice.

Exits with 1 if nothing is left, with 2 and one line when nothing can be written. See docs/data.md.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_preprocessing.model_stage import add_model_arguments, finished, positive, run_model_stage, stage_parser
from data_preprocessing.rl_input import with_extra
from data_preprocessing.row_stage import RowStage
from data_preprocessing.votes import FIELDS, voting
from prime_ext.generate.backend import Sampling

# As the published script.
SAMPLING = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=16384)
SOLUTIONS = 5


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[Path]]:
    """Ask and write. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
        BackendError: the model cannot be opened.
    """
    positive(options, "solutions")
    stage = RowStage("Validation by votes", {}, schema=partial(with_extra, fields=FIELDS))
    return run_model_stage(
        options,
        stage,
        lambda model: partial(voting, model=model, solutions=options.solutions),
        settings={"solutions": options.solutions},
    )


def parser() -> argparse.ArgumentParser:
    top = stage_parser("validate_votes", __doc__)
    top.add_argument("--solutions", type=int, default=SOLUTIONS, help=f"per problem (default: {SOLUTIONS})")
    add_model_arguments(top, SAMPLING)
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    return finished("validate_votes", lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
