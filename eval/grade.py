# SPDX-License-Identifier: Apache-2.0
"""Judge responses without a model: those of a run again, or of a file that was made elsewhere.

    prime-ext eval-grade --run outputs/eval/MODEL
    prime-ext eval-grade --input answers.jsonl --data-source math500

The verdicts of a task of a run are replaced when all of its new ones are there; the command prints
how many changed.

A file has a response a row: gold, response (the complete text) or answer (what was found in it),
and data_source, which selects the verifier, unless --data-source does. Rows with the same problem
(or question, prompt, id) are responses to one problem. Formats are JSON Lines, JSON, CSV and
parquet. FILE.graded.jsonl gets the rows with verdict, score, extracted, grader_failure, detail.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError
from prime_ext.config.modules import add_modules_argument, import_modules
from prime_ext.tasks.rl_rows import find_idle_verifiers
from prime_ext.utils.arguments import build_parser
from prime_ext.utils.files import read_lines, write_json
from prime_ext.utils.run_store import LineFile, Row, RunError, RunLock, command, parse_object
from prime_ext.verifiers.sources import TaskVerifier

from .episodes import make_verifier
from .grade_file import format_verdicts, grade_file
from .results import (
    PROBLEMS,
    RESPONSES,
    RESULTS,
    SAMPLES,
    add_timing,
    get_key,
    read_results,
    versions,
)
from .run import conclude
from .summary import measure
from .verdicts import PROBLEM_FIELDS, grade, list_fields


def regrade(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Judge all responses of a run's folder again, and measure again.

    Returns what ``results.json`` now holds, and how many verdicts of each task changed.

    Raises:
        RunError: the folder holds no results, or something in it is broken.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder")
    with RunLock(folder):
        results = read_results(folder)
        verifiers = {
            task["grader"]: make_verifier(task["grader"]) for task in results["tasks"].values()
        }
        results["regraded_with"] = versions()
        changed = {}
        for name, task in results["tasks"].items():
            changed[name] = _regrade(folder / name, task, verifiers[task["grader"]])
            write_json(folder / RESULTS, results)
    return results, changed


def _regrade(folder: Path, task: dict[str, Any], verifier: TaskVerifier) -> int:
    """Judge a task and change its results. Returns how many verdicts changed."""
    path = folder / PROBLEMS
    n = task["decoding"]["n"]
    if not path.is_file():
        raise RunError(f"{path} does not exist; the command of the run, given again, makes it")
    rows = [parse_object(line, f"{path} line {number}") for number, line in read_lines(path)]
    for number, row in enumerate(rows, start=1):
        if set(row) != set(PROBLEM_FIELDS) or not isinstance(row["gold"], str):
            held = f"the gold answer {row['gold']!r}" if "gold" in row else "no gold answer"
            raise RunError(
                f"{path} problem {number} has {held[:80]}; it must hold"
                f" {', '.join(PROBLEM_FIELDS)}, gold a text"
            )
    problems = {row["problem"]: row for row in rows}
    keys = [(problem, sample) for problem in problems for sample in range(n)]
    response_fields, sample_fields = list_fields(task["grader"])
    responses = LineFile(folder / RESPONSES, get_key, response_fields, keys)
    old = LineFile(folder / SAMPLES, get_key, sample_fields, keys)
    unfinished = folder / f".{SAMPLES}"
    unfinished.unlink(missing_ok=True)
    new = LineFile(unfinished, get_key, sample_fields, keys)
    seconds = grade(folder.name, verifier, problems, responses.rows, new)
    unfinished.replace(old.path)
    task |= measure(
        task["grader"],
        n,
        {key: row["groups"] for key, row in problems.items()},
        new.rows,
        task["ks"],
    )
    add_timing(folder.parent, folder.name, grading=seconds)

    def judged(row: Row | None) -> tuple[Any, ...]:
        return () if row is None else (row["verdict"], row["score"], row["extracted"])

    return sum(judged(old.rows.get(key)) != judged(row) for key, row in new.rows.items())


@command("grade", SettingsError)
def main(words: Sequence[str] | None = None) -> int:
    parser = build_parser("eval-grade", __doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="folder of eval.run")
    what.add_argument("--input", type=Path, metavar="FILE", help="rows with gold and response")
    parser.add_argument(
        "--data-source", metavar="NAME", help="of all rows of --input, such as math500"
    )
    add_modules_argument(parser)
    options = parser.parse_args(words)
    import_modules(options.modules)
    if options.input is not None:
        output, stored, verdicts = grade_file(options.input, options.data_source)
        if options.modules:
            for line in find_idle_verifiers(answer.data_source for answer in stored):
                print(line, file=sys.stderr)
        print(format_verdicts(stored, verdicts))
        print(f"every response and verdict: {output}")
        return 0
    if options.data_source is not None:
        parser.error("--data-source goes with --input; a run knows its own")
    folder = options.run
    results, changed = regrade(folder)
    for name, number in changed.items():
        print(f"{name}: {number} verdicts changed")
    return conclude(results, folder)


if __name__ == "__main__":
    sys.exit(main())
