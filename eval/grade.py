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
import asyncio
import json
import math
import os
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.grade_rows import TASKS, BadInput, Grader, grade_in_order
from eval.regrade import regrade
from eval.run_plan import RunError
from eval.run_table import conclude
from prime_ext.utils.files import write_json
from prime_ext.utils.rows import SourceError, whole_rows
from prime_ext.verifiers import Outcome, Verdict
from prime_ext.verifiers.math import STYLES


def graded(row: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """A row with its verdict."""
    return {
        **row,
        "verdict": str(verdict.outcome),
        "score": verdict.score,
        "extracted": verdict.extracted,
        "seconds": round(verdict.seconds, 6),
        "detail": verdict.detail,
        "grader_failure": verdict.grader_failure,
        **({"parts": dict(verdict.parts)} if verdict.parts else {}),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of every outcome, mean score and its standard error over the judged rows, and the time per verdict."""
    scores = [row["score"] for row in rows if row["score"] is not None]
    seconds = sorted(row["seconds"] for row in rows)
    counts = Counter(row["verdict"] for row in rows)
    judged = [row.get("parts", {}) for row in rows if row["score"] is not None]
    names = dict.fromkeys(name for parts in judged for name in parts)
    parts = {name: statistics.fmean(own.get(name, 0.0) for own in judged) for name in names}
    spread = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
    return {
        "rows": len(rows),
        "judged": len(scores),
        "grader_failures": len(rows) - len(scores),
        "mean_score": statistics.fmean(scores) if scores else None,
        "standard_error": spread,
        **(
            {"parts": {name: statistics.fmean(own.get(name, 0.0) for own in judged) for name in parts}} if parts else {}
        ),
        "outcomes": {str(outcome): counts[str(outcome)] for outcome in Outcome},
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "seconds_max": seconds[-1] if seconds else None,
    }


def print_summary(summary: dict[str, Any]) -> None:
    """A small table for people."""
    for name, count in summary["outcomes"].items():
        print(f"  {name:<14} {count:>8}  {100 * count / max(1, summary['rows']):6.2f} %")
    if summary["judged"]:
        error = summary["standard_error"]
        accuracy = f"  mean score     {100 * summary['mean_score']:8.2f} %"
        print(accuracy + (f" ± {100 * error:.2f} (standard error)" if error is not None else ""))
        for name, score in summary.get("parts", {}).items():
            print(f"  {name:<14}{100 * score:8.2f} %")
        median, longest = 1000 * summary["seconds_median"], summary["seconds_max"]
        print(f"  per verdict    {median:8.2f} ms median, {longest:.2f} s at most")
    if summary["grader_failures"]:
        print(f"  {summary['grader_failures']} rows could not be judged (grader_failure); they are in no mean")


class PartialOutput:
    """Verdicts of an unfinished run, beside the output they will become."""

    def __init__(self, output: Path, settings: dict[str, Any]):
        self.output = output
        self.path = output.with_name(f".{output.name}.partial")
        self._settings_path = output.with_name(f".{output.name}.settings.json")
        self._settings = settings

    def resume(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows that are graded already; an unfinished last line is cut off.

        Raises:
            BadInput: they belong to other input or were graded with other settings.
        """
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._settings_path.write_text(json.dumps(self._settings), encoding="utf-8")
            return []
        hint = f"delete {self.path} to start anew"
        settings = json.loads(self._settings_path.read_text(encoding="utf-8")) if self._settings_path.exists() else None
        if settings != self._settings:
            raise BadInput(f"an unfinished run was graded with {settings}, not {self._settings}; {hint}")
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        done = [json.loads(line) for line in whole.splitlines()]
        if len(done) > len(rows):
            raise BadInput(f"an unfinished run graded {len(done)} rows, the input has {len(rows)}; {hint}")
        for number, (old, new) in enumerate(zip(done, rows, strict=False), start=1):
            if any(key not in old or old[key] != value for key, value in new.items() if key not in _ADDED):
                raise BadInput(f"row {number} of the input is not what an unfinished run graded; {hint}")
        self.path.write_bytes(whole + b"\n" if whole else b"")
        return done

    def finish(self, summary: dict[str, Any]) -> Path:
        """Give the output its name and write the summary beside it. Returns the summary's path."""
        path = self.output.with_name(f"{self.output.name}.summary.json")
        write_json(path, {**self._settings, **summary})
        os.replace(self.path, self.output)
        self._settings_path.unlink(missing_ok=True)
        return path


_ADDED = frozenset(graded({}, Verdict(Outcome.WRONG, 0.0, parts={"base": 0.0})))


async def _grade(grader: Grader, rows: list[dict], done: list[dict], partial: PartialOutput, concurrency: int) -> None:
    failures = sum(row["grader_failure"] for row in done)
    with partial.path.open("a", encoding="utf-8") as lines, tqdm(total=len(rows), initial=len(done)) as progress:
        async for row, verdict in grade_in_order(grader, rows[len(done) :], concurrency):
            done.append(graded(row, verdict))
            failures += verdict.grader_failure
            lines.write(json.dumps(done[-1]) + "\n")
            progress.update()
            if failures:
                progress.set_postfix(failures=failures)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Grade a file. Returns the summary.

    Raises:
        BadInput, SourceError: see their messages.
    """
    if arguments.output.exists() and not arguments.overwrite:
        raise BadInput(f"{arguments.output} exists already; use --overwrite to grade again")
    if arguments.output.resolve() == arguments.input.resolve():
        raise BadInput("--output must not be the input")
    rows = list(whole_rows(arguments.input))
    if not rows:
        raise BadInput(f"{arguments.input} has no rows")
    problems = {}
    if arguments.problems is not None:
        problems = {str(problem["task_id"]): problem for problem in whole_rows(arguments.problems)}
    grader = Grader(arguments.task, arguments.extraction, arguments.reward, problems)
    for number, row in enumerate(rows, start=1):
        grader.check(row, f"{arguments.input} row {number}")
    settings = {"task": arguments.task, "extraction": arguments.extraction, "reward": arguments.reward}
    partial = PartialOutput(arguments.output, settings)
    done = partial.resume(rows)
    if done:
        print(f"going on after {len(done)} rows of an unfinished run")
    asyncio.run(_grade(grader, rows, done, partial, arguments.concurrency))
    summary = summarize(done)
    print_summary(summary)
    print(f"verdicts: {arguments.output}\nsummary:  {partial.finish(summary)}")
    return summary


def run_again(folder: Path) -> int:
    """Judge the responses of an evaluation again. Returns the exit code.

    Raises:
        RunError: see its message.
    """
    results, changed = regrade(folder)
    for name, number in changed.items():
        print(f"{name}: {number} verdicts are not what they were")
    return conclude(results, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of eval.run; everything in it is judged again")
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--input", type=Path, help="JSON Lines, .gz or not")
    parser.add_argument("--output", type=Path, help="JSON Lines with the verdicts")
    parser.add_argument("--problems", type=Path, help="JSON Lines with task_id and tests, e.g. HumanEval.jsonl.gz")
    parser.add_argument("--extraction", default="boxed", choices=STYLES, help="how math answers are found")
    parser.add_argument("--reward", default="all", choices=("all", "fraction"), help="score of a program")
    parser.add_argument("--concurrency", type=int, default=64, help="verdicts under way at the same time")
    parser.add_argument("--overwrite", action="store_true", help="grade again although the output exists")
    arguments = parser.parse_args()
    if arguments.concurrency < 1:
        parser.error(f"--concurrency={arguments.concurrency} must be at least 1")
    given = [name for name in ("task", "input", "output") if getattr(arguments, name) is not None]
    if arguments.run is not None and (given or arguments.problems is not None or arguments.overwrite):
        parser.error(f"--run judges a whole folder; leave out --{(*given, 'problems and --overwrite')[0]}")
    if arguments.run is None and len(given) < 3:
        parser.error("give --run FOLDER, or --task, --input and --output")
    try:
        if arguments.run is not None:
            return run_again(arguments.run)
        run(arguments)
    except (BadInput, RunError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
