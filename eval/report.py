# SPDX-License-Identifier: Apache-2.0
"""Reports of finished runs, and the tables of the papers with a column for every run.

    python -m eval.report outputs/eval                                 report.md and report.html in the run's folder
    python -m eval.report RUN [RUN ...] --output DIR                   the same in DIR, and the runs side by side
    python -m eval.report RUN [RUN ...] --table prime --output DIR     table 1 of the PRIME paper with our columns
    python -m eval.report RUN [RUN ...] --table pspo --output DIR      the table of PSPO with our columns

The HTML pages need nothing else: no network, no script. Runs are only read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.finished_run import BadRun, FinishedRun, load_run
from eval.paper_table import TABLES, paper_table, runs_table, table_html, table_markdown
from eval.report_html import html_report
from eval.report_markdown import markdown_report
from eval.report_model import view
from prime_ext.utils.files import write_text


def write_reports(folder: Path, output: Path | None = None) -> list[Path]:
    """Write the reports of a run.

    Args:
        folder: of the run.
        output: where they go; None is the run's folder.

    Returns:
        ``report.md`` and ``report.html``.

    Raises:
        BadRun: see :func:`eval.finished_run.load_run`; nothing is written.
    """
    return _write(load_run(folder), output or folder)


def _write(run: FinishedRun, output: Path) -> list[Path]:
    views = [view(task) for task in run.tasks.values()]
    texts = {output / "report.md": markdown_report(run, views), output / "report.html": html_report(run, views)}
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRun(f"two runs have a folder of the name {twice!r}, so their columns could not be told apart")
    return names


def report(folders: Sequence[Path], output: Path | None, table: str | None) -> list[Path]:
    """What the command does. Returns the files that were written.

    Raises:
        BadRun: a run cannot be reported; nothing is written.
    """
    if output is not None and output.exists() and not output.is_dir():
        raise BadRun(f"--output {output} is a file; give a folder")
    runs = [load_run(folder) for folder in folders]
    names = _names(runs)
    written = []
    if table is None:
        for name, run in zip(names, runs, strict=True):
            written += _write(run, run.folder if output is None else output / name if len(runs) > 1 else output)
    if table is None and len(runs) == 1:
        return written
    made = runs_table(dict(zip(names, runs, strict=True)))
    if table is not None:
        made = paper_table(table, dict(zip(names, runs, strict=True)))
    if output is None:
        print(table_markdown(made))
        return written
    stem = "runs" if table is None else f"table_{table}"
    for path, text in ((output / f"{stem}.md", table_markdown(made)), (output / f"{stem}.html", table_html(made))):
        write_text(path, text)
        written.append(path)
    return written


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="eval.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="+", type=Path, help="folder that eval.run wrote")
    parser.add_argument("--output", type=Path, help="folder for the reports; a table without it is printed")
    parser.add_argument("--table", choices=sorted(TABLES), help="only this paper's table")
    arguments = parser.parse_args(words)
    try:
        for path in report(arguments.run, arguments.output, arguments.table):
            print(path)
    except BadRun as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
