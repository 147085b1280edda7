# SPDX-License-Identifier: Apache-2.0
"""Math problems in verl's RL schema, filtered and checked: GSM8K, MATH, NuminaMath-CoT.

    python -m data_preprocessing.rl_data --sources gsm8k math --data-dir DATA --output-dir data/math
    python -m data_preprocessing.rl_data --sources numina --input numina=my_set.jsonl --output-dir data/mine

The plain case of ``data_preprocessing.pipeline``, which says what is written: sources from the command line, and the
rules of math as the only stage. Without --data-dir and --input the rows come from the Hugging Face hub.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_preprocessing import pipeline, validate
from data_preprocessing.command import Made, build_parser, check_names, check_positive, finish
from data_preprocessing.math_rules import MATH_ALWAYS, MATH_RULES, MathRules
from data_preprocessing.math_sources import MATH_SOURCES
from data_preprocessing.pipeline import PipelineSettings, SourceSettings
from prime_ext.tasks.rl_rows import OUTPUTS


def run(options: argparse.Namespace) -> Made:
    """Convert, filter and write. Returns the report and the parquet files."""
    check_names(options.input, options.sources, "--sources")
    check_positive(options, "chunk_rows", "workers")
    rules = tuple(name for name in MATH_RULES if name in (*options.rules, *MATH_ALWAYS))
    settings = PipelineSettings(
        title="Math RL data",
        sources={
            name: SourceSettings(options.input.get(name, {}), tuple(options.splits or ())) for name in options.sources
        },
        stages={MathRules.name: MathRules(rules)},
        data_dir=options.data_dir,
        system_prompt=options.system_prompt,
        chunk_rows=options.chunk_rows,
    )
    return pipeline.run(settings, options.output_dir, workers=options.workers, strict=options.strict)


def parser() -> argparse.ArgumentParser:
    top = build_parser("rl_data", __doc__)
    about = "; ".join(f"{name}: {source.title}" for name, source in MATH_SOURCES.items())
    top.add_argument("--sources", nargs="+", choices=list(MATH_SOURCES), required=True, help=about)
    pipeline.add_run_arguments(top)
    local = ", ".join(path for source in MATH_SOURCES.values() for path in source.local.values())
    top.add_argument("--data-dir", type=Path, help=f"folder with {local}, as far as --sources needs them")
    top.add_argument("--splits", nargs="+", choices=OUTPUTS, help="default: all that there are")
    meanings = "; ".join(f"{name}: {rule.meaning}" for name, rule in MATH_RULES.items())
    about = f"what is removed from the training split (default: all); {MATH_ALWAYS[0]} always is. {meanings}"
    top.add_argument("--rules", nargs="*", choices=list(MATH_RULES), default=list(MATH_RULES), help=about)
    about = "actions: the seven actions and the form of a response (default); none; or a text file"
    top.add_argument("--system-prompt", default="actions", help=about)
    top.add_argument("--chunk-rows", type=int, default=5_000, help="rows of a row group")
    return top


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    return finish("rl_data", lambda: run(options), lambda _, paths: validate.main([str(path) for path in paths]))


if __name__ == "__main__":
    sys.exit(main())
