# SPDX-License-Identifier: Apache-2.0
"""Compare two finished runs problem by problem: is the second checkpoint better, and on which problems?

    python -m eval.compare RUN_A RUN_B                    prints the table
    python -m eval.compare RUN_A RUN_B --output DIR       compare.json, compare.md and compare.html in DIR

Differences are the second run minus the first. Runs with other problems are never compared; other decoding or prompts
only if that is asked for, and the reports say so.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.compare_report import html_comparison, markdown_comparison, summary_lines
from eval.compare_tasks import compare, for_json
from eval.finished_run import BadRun, load_run
from prime_ext.utils.files import write_json, write_text


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="eval.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, metavar="RUN_A", help="folder that eval.run wrote")
    parser.add_argument("after", type=Path, metavar="RUN_B", help="the same of the other model")
    parser.add_argument("--output", type=Path, help="folder for the reports")
    parser.add_argument("--allow-decoding", action="store_true", help="compare although the decoding differs")
    parser.add_argument("--allow-prompts", action="store_true", help="compare although the prompts differ")
    arguments = parser.parse_args(words)
    output = arguments.output
    try:
        if output is not None and output.exists() and not output.is_dir():
            raise BadRun(f"--output {output} is a file; give a folder")
        runs = load_run(arguments.before), load_run(arguments.after)
        found = compare(*runs, decoding=arguments.allow_decoding, prompts=arguments.allow_prompts)
        print("\n".join(summary_lines(found)))
        if output is not None:
            # All is made before anything is written.
            texts = {"compare.md": markdown_comparison(found), "compare.html": html_comparison(found)}
            write_json(output / "compare.json", for_json(found))
            for name, text in texts.items():
                write_text(output / name, text)
            print("\n".join(str(output / name) for name in ("compare.json", *texts)))
    except BadRun as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
