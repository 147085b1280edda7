# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the rule filter and of the whole command on GSM8K and MATH, repeated under NuminaMath's columns.

    python tests/benchmarks/rule_filter.py [--data DATA] [--rows 60000]

Three measurements: rows per second of processor time of the filter alone, beside the plain substring search that the
rules refine; the same of the whole command (reading JSON Lines, filter, parquet, report) with one process and with two,
with the time on the clock; and the command's peak memory with a quarter of the rows and with all of them. Prints them
and writes rule_filter.json beside this file.
"""

import json
import math
import os
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import harness
import psutil
from machine import peak_mib

from data_preprocessing import rl_data
from data_preprocessing.math_rules import MATH_RULES, math_filter
from data_preprocessing.math_sources import MathProblem, gsm8k_row, solved_row
from prime_ext.utils.rows import BadRow, read_source


def problems(data: Path) -> list[MathProblem]:
    """GSM8K and MATH with a solution that boxes the answer."""
    found = []
    for name, parse in (("gsm8k", gsm8k_row), ("math", solved_row)):
        for number, row in read_source(data / name / "train.jsonl"):
            if not isinstance(row, BadRow):
                problem = MathProblem(name, "train", number, **parse(row))
                solution = f"{problem.solution}\nThe answer is $\\boxed{{{problem.answer}}}$."
                found.append(replace(problem, solution=solution))
    return found


def substrings(problem: MathProblem) -> str | None:
    """The rules as substrings, for comparison: what any filter has to do at least."""
    lowered = problem.problem.lower()
    if "figure" in lowered:
        return "figure"
    if "prove" in lowered or "show that" in lowered:
        return "proof"
    if any(all(form.format(letter) in problem.problem for letter in "ABC") for form in ("{}.", "{}:", "({})")):
        return "choice"
    if "\\underline{" in problem.problem:
        return "blank"
    return None if any(map(str.isdigit, problem.answer)) else "no_digit"


def filter_speed(rows: list[MathProblem], repeats: int) -> dict[str, object]:
    result: dict[str, object] = {"rows": len(rows) * repeats}
    for name, keep in (("filter", math_filter(tuple(MATH_RULES))), ("substrings", substrings)):
        removed, seconds = harness.timed(lambda keep=keep: sum(keep(row) is not None for row in rows * repeats))
        speed = round(len(rows) * repeats / seconds)
        result[name] = {"cpu_seconds": round(seconds, 2), "rows_per_cpu_second": speed, "removed": removed}
    return result


def write_source(path: Path, rows: list[MathProblem], count: int) -> None:
    """``count`` rows with NuminaMath-CoT's columns."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            row = rows[number % len(rows)]
            columns = {"source": row.data_source, "problem": f"{row.problem} ({number})", "solution": row.solution}
            file.write(json.dumps(columns) + "\n")


def command(source: Path, folder: Path, rows: int, workers: int) -> dict[str, object]:
    """One run of the command, and what this process and its workers, if there are any, took from their start."""
    words = ["--sources", "numina", "--input", f"numina={source}", "--output-dir", str(folder)]
    # The command starts no more processes than there are parts; 5,000 rows are its default.
    part = min(5_000, math.ceil(rows / workers))
    rl_data.run(rl_data.parser().parse_args([*words, "--workers", str(workers), "--chunk-rows", str(part)]))
    wall = time.time() - psutil.Process().create_time()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {"cpu_seconds": sum(each.ru_utime + each.ru_stime for each in usage), "wall_seconds": wall}
    found["peak_mib"] = round(peak_mib())
    return found | ({"largest_worker_mib": round(usage[1].ru_maxrss / 1024)} if workers > 1 else {})


def main() -> None:
    parser = harness.parser(__doc__, "gsm8k and math")
    parser.add_argument("--rows", type=int, default=60_000, help="of the whole command")
    parser.add_argument("--repeats", type=int, default=5, help="of both sets, for the filter alone")
    parser.add_argument("--measure", type=Path, help="source of one run of the command, in this process")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    if options.measure:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(command(options.measure, Path(folder) / "out", options.rows, options.workers)))
        return
    rows = problems(options.data)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for count, workers in ((options.rows // 4, 1), (options.rows, 1), (options.rows, 2)):
            source = Path(folder) / f"{count}.jsonl"
            write_source(source, rows, count)
            words = ("--measure", source, "--rows", count, "--workers", workers, "--data", options.data)
            found = harness.own_process(*words)
            cpu, wall = found["cpu_seconds"], found["wall_seconds"]
            rates = {"rows_per_cpu_second": round(count / cpu), "rows_per_wall_second": round(count / wall)}
            runs.append({"rows": count, "workers": workers, **{key: round(found[key], 1) for key in found}, **rates})
    results = {
        "filter": filter_speed(rows, options.repeats),
        "command": runs,
        "other_work_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
    }
    harness.record(options, results, ("pyarrow",))


if __name__ == "__main__":
    main()
