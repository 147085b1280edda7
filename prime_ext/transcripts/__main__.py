# SPDX-License-Identifier: Apache-2.0
"""Write one page of a run's rollouts: why did this response get its reward?

prime-ext transcripts outputs/run --step 20

RUN is trainer.default_local_dir, or the folder above it. docs/how_to/transcripts.md explains the
page.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from prime_ext.transcripts.files import find_folder, find_steps, read_step
from prime_ext.transcripts.page import render_page
from prime_ext.utils.arguments import WHOLE, Parser
from prime_ext.utils.files import write_text
from prime_ext.utils.run_store import command


@command("prime_ext.transcripts", OSError)
def main(words: Sequence[str] | None = None) -> int:
    """Write the page that the words ask for; return the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--step", type=WHOLE, help="a recorded step (default: the last)")
    parser.add_argument("--output", type=Path, help="file (default: RUN/transcripts.html)")
    arguments = parser.parse_args(words)
    folder = find_folder(arguments.run)
    rows = read_step(folder, arguments.step)
    output = arguments.output or arguments.run / "transcripts.html"
    write_text(output, render_page(rows, str(arguments.run), find_steps(folder)))
    print(f"{output}: step {rows[0]['step']}, {len(rows)} responses; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
