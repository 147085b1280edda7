# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice problems rewritten as open questions by a model, with the gold answer that belongs to them.

    python -m data_preprocessing.rewrite_choice --input data/math/choice.jsonl --output-dir data/open BACKEND
    python -m data_preprocessing.rewrite_choice --input data/math/choice.jsonl --merge data/math/train.parquet \\
        --output-dir data/merged BACKEND

Reads what ``rl_data`` puts aside as multiple choice. The gold answer becomes the text of the option that it names. A
problem is asked about up to --tries times, each with a seed of its own; what cannot be rewritten is removed and listed.
With --merge the rows of a file come first, then those that were rewritten. Interrupted or killed, the same command goes
on and asks nothing twice.

Exits with 1 if nothing is left, with 2 and one line when nothing can be written. See docs/data.md.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_preprocessing.choice_rewrite import RULES, rewriting
from data_preprocessing.model_stage import add_model_arguments, finished, positive, run_model_stage, stage_parser
from data_preprocessing.row_stage import RowStage
from prime_ext.generate.backend import Sampling

# As the published script.
SAMPLING = Sampling(temperature=0.8, max_new_tokens=2048)
TRIES = 10


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[Path]]:
    """Ask, check and write. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
        BackendError: the model cannot be opened.
    """
    positive(options, "tries")
    return run_model_stage(
        options,
        RowStage("Multiple choice to open questions", RULES),
        lambda model: partial(rewriting, tries=options.tries),
        settings={"tries": options.tries},
        first=options.merge,
    )


def parser() -> argparse.ArgumentParser:
    top = stage_parser("rewrite_choice", __doc__)
    top.add_argument(
        "--merge", type=Path, metavar="FILE", help="RL rows that go before the rewritten ones; the output has its name"
    )
    top.add_argument("--tries", type=int, default=TRIES, help=f"answers per problem at most (default: {TRIES})")
    add_model_arguments(top, SAMPLING)
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    return finished("rewrite_choice", lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
