# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the rule filter and of the whole command on GSM8K and MATH, repeated under NuminaMath's columns.

    python tests/benchmarks/rule_filter.py [--data DATA] [--rows 60000]

Three measurements: rows per second of processor time of the filter alone, beside the plain substring search that the
rules refine; the same of the whole command (reading JSON Lines, filter, parquet, report) with one process and with two,
with the time on the clock; and the command's peak memory with a quarter of the rows and with all of them. Prints them
and writes rule_filter.json beside this file.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import harness

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


_PROGRAM = """
import json, resource, sys
from data_preprocessing import rl_data
rl_data.run(rl_data.parser().parse_args(sys.argv[1:]))
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps({"peak_mib": round(own), "largest_worker_mib":
    round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)}))
"""


def command(source: Path, folder: Path, count: int, workers: int) -> dict[str, object]:
    """One run of the command in a process of its own."""
    words = ["--sources", "numina", "--input", f"numina={source}", "--output-dir", str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call = [sys.executable, "-c", _PROGRAM, *words, "--workers", str(workers)]
    start = time.perf_counter()
    done = subprocess.run(call, cwd=harness.ROOT, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = json.loads(done.stdout.splitlines()[-1])
    return {
        "rows": count,
        "workers": workers,
        "cpu_seconds": round(cpu, 1),
        "rows_per_cpu_second": round(count / cpu),
        "wall_seconds": round(wall, 1),
        "rows_per_wall_second": round(count / wall),
        **({"peak_mib": memory["peak_mib"]} if workers == 1 else memory),
    }


def main() -> None:
    parser = harness.parser(__doc__, "gsm8k and math")
    parser.add_argument("--rows", type=int, default=60_000, help="of the whole command")
    parser.add_argument("--repeats", type=int, default=5, help="of both sets, for the filter alone")
    options = parser.parse_args()
    rows = problems(options.data)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for count, workers in ((options.rows // 4, 1), (options.rows, 1), (options.rows, 2)):
            source = Path(folder) / f"{count}.jsonl"
            write_source(source, rows, count)
            runs.append(command(source, Path(folder) / f"out_{count}_{workers}", count, workers))
    results = {
        "filter": filter_speed(rows, options.repeats),
        "command": runs,
        "other_work_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
    }
    harness.record(options, results, ("pyarrow",))


if __name__ == "__main__":
    main()
