# SPDX-License-Identifier: Apache-2.0
"""Cost and correctness of the code sandbox, measured side by side with a plain interpreter in one run.

    python tests/benchmarks/code_sandbox.py [--verl] [--quick]

Prints the numbers and writes them to ``code_sandbox.json`` beside this file. Ratios mean something on any machine;
milliseconds only on this one.
"""

import argparse
import asyncio
import gzip
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from whole_sets import add_data_argument  # noqa: E402

from prime_ext.utils.files import write_text  # noqa: E402
from prime_ext.verifiers.code import CodeVerifier  # noqa: E402
from prime_ext.verifiers.sandbox import Limits, Sandbox  # noqa: E402

SMALL = "print(sum(range(10)))"
SOLUTION = """
import sys
def main():
    data = sys.stdin.read().split()
    n, rest = int(data[0]), list(map(int, data[1:]))
    best = current = rest[0]
    for value in rest[1:n]:
        current = max(value, current + value)
        best = max(best, current)
    print(best)
main()
"""
TEN_TESTS = {
    "inputs": [f"5\n{n} -3 {n} -{2 * n} 4\n" for n in range(1, 11)],
    "outputs": [f"{max(2 * n - 3, n, 4)}\n" for n in range(1, 11)],
}


def _module(path: Path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _plain(program: str, stdin: str = "", flags: tuple[str, ...] = ("-I",)) -> str:
    words = [sys.executable, *flags, "-c", program]
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=10, check=True).stdout


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50_ms": 1e3 * statistics.median(ordered), "p95_ms": 1e3 * ordered[int(0.95 * len(ordered))]}


def measure_overhead(sandbox: Sandbox, rounds: int) -> dict[str, dict[str, float]]:
    """Time one small program after the other, the ways of running it taking turns."""
    ways: dict[str, Callable[[], object]] = {
        "sandbox": lambda: sandbox.run(SMALL),
        "python -I": lambda: _plain(SMALL),
        "python -I -S": lambda: _plain(SMALL, flags=("-I", "-S")),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: _percentiles(seconds) for name, seconds in times.items()}


def measure_throughput(verifier: CodeVerifier, workers: int, problems: int) -> dict[str, float]:
    """Problems with ten tests each per second: the verifier, and as many plain interpreters at a time."""
    response = f"```python\n{SOLUTION}\n```"

    def plainly(_: int) -> None:
        for given, wanted in zip(TEN_TESTS["inputs"], TEN_TESTS["outputs"], strict=True):
            assert _plain(SOLUTION, given) == wanted

    def sandboxed(number: int) -> float:
        started = time.perf_counter()
        verdicts = verifier.verify_batch([(response, TEN_TESTS)] * number)
        assert all(verdict.correct for verdict in verdicts), verdicts[0]
        return number / (time.perf_counter() - started)

    # Three rounds, taking turns; the median of each.
    rates, plain_rates = [], []
    for _ in range(3):
        rates.append(sandboxed(problems))
        started = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(plainly, range(max(4, problems // 8))))
        plain_rates.append(max(4, problems // 8) / (time.perf_counter() - started))
    ours, plain = statistics.median(rates), statistics.median(plain_rates)
    return {"problems_per_second": ours, "plain_python_problems_per_second": plain, "ratio": ours / plain}


def measure_concurrency(verifier: CodeVerifier, requests: int) -> dict[str, float]:
    case = {"inputs": [""], "outputs": ["45\n"]}

    async def many() -> list:
        return await asyncio.gather(*(verifier.averify(f"```python\n{SMALL}\n```", case) for _ in range(requests)))

    started = time.perf_counter()
    verdicts = asyncio.run(many())
    seconds = time.perf_counter() - started
    assert all(verdict.correct for verdict in verdicts)
    return {"requests": requests, "requests_per_second": requests / seconds}


def measure_data_sets(verifier: CodeVerifier, data: Path) -> dict[str, object]:
    mutated = _module(ROOT / "tests" / "verifiers" / "code" / "test_verifier.py").mutated
    human_eval = [json.loads(line) for line in gzip.open(data / "humaneval" / "HumanEval.jsonl.gz", "rt")]
    mbpp = json.loads((data / "mbpp" / "new_mbpp.json").read_text())
    leetcode = [json.loads(line) for line in (data / "leetcode" / "leetcode-test.json").read_text().splitlines()]
    stubs = [row["prompt"].rpartition('"""')[2].rstrip() + "\n        return None\n" for row in leetcode]
    changed = [(mutated(row["prompt"] + row["canonical_solution"], i), row) for i, row in enumerate(human_eval)]
    batches = {
        "HumanEval canonical": [(row["prompt"] + row["canonical_solution"], row) for row in human_eval],
        "HumanEval stubs": [(row["prompt"] + "\n    pass", row) for row in human_eval],
        "HumanEval one change": [(program, row) for program, row in changed if program is not None],
        "MBPP reference": [(row["code"], row) for row in mbpp],
        "LeetCode stubs": [(stub, {"test": row["test"]}) for stub, row in zip(stubs, leetcode, strict=True)],
    }
    results = {}
    for name, pairs in batches.items():
        started = time.perf_counter()
        verdicts = verifier.verify_batch([(f"```python\n{program}\n```", cases) for program, cases in pairs])
        results[name] = {
            "problems": len(verdicts),
            "passed": sum(verdict.correct for verdict in verdicts),
            "grader_failures": sum(verdict.grader_failure for verdict in verdicts),
            "in_one_process": sum("one process" in verdict.detail for verdict in verdicts),
            "seconds": time.perf_counter() - started,
        }
    return results


def measure_attacks(sandbox: Sandbox) -> dict[str, int]:
    attacks = _module(ROOT / "tests" / "verifiers" / "sandbox" / "attacks.py")
    verifier = CodeVerifier(sandbox, limits=Limits(seconds=1.0, memory_bytes=512 << 20))
    suite = {"test": "def check(candidate):\n    assert candidate(1) == 31415926\n", "entry_point": "answer"}
    breaches = rewarded = failures = 0
    pid = sandbox.server_pid
    with tempfile.TemporaryDirectory() as directory:
        marker, secret = Path(directory, "marker"), Path(directory, "secret")
        secret.write_text("SECRET")
        values = {"MARKER": marker, "SECRET": secret, "PARENT": os.getpid(), "SERVER": pid, "BASE": directory}
        for program in attacks.ALL.values():
            filled = attacks.filled(program, **values)
            execution = sandbox.run(filled, "1\n", Limits(seconds=1.0, memory_bytes=512 << 20))
            breaches += b"BREACH" in execution.stdout or marker.exists() or secret.read_text() != "SECRET"
            verdict = verifier.verify_program(filled, {"inputs": ["1\n"], "outputs": ["31415926\n"]})
            rewarded += verdict.score != 0.0
            failures += verdict.grader_failure
        for program in attacks.CHEATS.values():
            rewarded += verifier.verify_program(program, suite).score != 0.0
    return {
        "attacks": len(attacks.ALL),
        "cheats": len(attacks.CHEATS),
        "breaches": breaches,
        "rewarded": rewarded,
        "grader_failures": failures,
        "server_restarts": int(sandbox.server_pid != pid),
    }


def measure_verl(verifier: CodeVerifier, problems: int) -> dict[str, float]:
    """Time the same problems with verl's prime_code, one after the other as its callers do."""
    from verl.utils.reward_score.prime_code import compute_score

    response = f"```python\n{SOLUTION}\n```"
    compute_score(response, TEN_TESTS)
    started = time.perf_counter()
    for _ in range(problems):
        assert compute_score(response, json.dumps(TEN_TESTS))[0]
    verl = problems / (time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(problems):
        assert verifier.verify(response, TEN_TESTS).correct
    ours = problems / (time.perf_counter() - started)
    return {"problems_per_second": ours, "verl_problems_per_second": verl, "ratio": ours / verl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verl", action="store_true", help="time verl's prime_code as well")
    add_data_argument(parser, "humaneval, mbpp and leetcode")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions, and no file")
    arguments = parser.parse_args()
    scale = 1 if arguments.quick else 10
    workers = len(os.sched_getaffinity(0))
    with Sandbox() as sandbox:
        verifier = CodeVerifier(sandbox)
        results: dict[str, object] = {
            "settings": {
                "python": platform.python_version(),
                "kernel": platform.release().partition("-")[0],
                "workers": workers,
                "protection": sandbox.protection.describe(),
                "program": SMALL,
            },
            "one_run": measure_overhead(sandbox, 30 * scale),
            "ten_test_problems": measure_throughput(verifier, workers, 40 * scale),
            "asyncio": measure_concurrency(verifier, 100 * scale),
        }
        if arguments.verl:
            results["verl_prime_code"] = measure_verl(verifier, 2 * scale)
        results["data_sets"] = measure_data_sets(verifier, arguments.data)
        results["attacks"] = measure_attacks(sandbox)
    text = json.dumps(results, indent=2)
    print(text)
    if not arguments.quick:
        write_text(Path(__file__).with_suffix(".json"), text + "\n")


if __name__ == "__main__":
    main()
