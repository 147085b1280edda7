# SPDX-License-Identifier: Apache-2.0
"""Cost of the code sandbox, measured side by side with a plain interpreter in one run.

    python tests/benchmarks/code_sandbox.py [--verl] [--scale 1]

Prints the numbers and writes them to ``code_sandbox.json`` beside this file. Ratios mean something on any machine;
milliseconds only on this one.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import harness

from prime_ext.verifiers.code import CodeVerifier, extract_program
from prime_ext.verifiers.sandbox import Sandbox, find_protection

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


RESPONSE = f"```python\n{SOLUTION}\n```"


def _plain(program: str, stdin: str = "", flags: tuple[str, ...] = ("-I",)) -> str:
    words = [sys.executable, *flags, "-c", program]
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=10, check=True).stdout


def measure_overhead(sandbox: Sandbox, rounds: int) -> dict[str, dict[str, float]]:
    """Time of one small program, the ways of running it taking turns."""
    ways: dict[str, Callable[[], object]] = {
        "sandbox": lambda: sandbox.run(SMALL),
        "python -I": lambda: _plain(SMALL),
        "python -I -S": lambda: _plain(SMALL, flags=("-I", "-S")),
    }
    return {
        name: {"p50_ms": 1e3 * statistics.median(seconds), "p95_ms": 1e3 * sorted(seconds)[int(0.95 * len(seconds))]}
        for name, seconds in harness.in_turn(ways, rounds, time.perf_counter).items()
    }


def measure_throughput(verifier: CodeVerifier, workers: int, problems: int) -> dict[str, float]:
    """Problems with ten tests each per second: the verifier, and as many plain interpreters at a time."""
    plain_problems = max(4, problems // 8)

    def plain_one(_: int) -> None:
        for given, wanted in zip(TEN_TESTS["inputs"], TEN_TESTS["outputs"], strict=True):
            assert _plain(SOLUTION, given) == wanted

    def plainly() -> None:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(plain_one, range(plain_problems)))

    def sandboxed() -> None:
        futures = [verifier.submit_program(extract_program(RESPONSE), TEN_TESTS) for _ in range(problems)]
        assert all(future.result().correct for future in futures)

    seconds = harness.in_turn({"ours": sandboxed, "plain": plainly}, 3, time.perf_counter, warm_up=False)
    ours, plain = problems / statistics.median(seconds["ours"]), plain_problems / statistics.median(seconds["plain"])
    return {"problems_per_second": ours, "plain_python_problems_per_second": plain, "ratio": ours / plain}


def measure_verl(verifier: CodeVerifier, problems: int) -> dict[str, float]:
    """Time the same problems with verl's prime_code, one after the other as its callers do."""
    from verl.utils.reward_score.prime_code import compute_score

    def verls() -> None:
        assert all(compute_score(RESPONSE, json.dumps(TEN_TESTS))[0] for _ in range(problems))

    def ours() -> None:
        assert all(verifier.verify(RESPONSE, TEN_TESTS).correct for _ in range(problems))

    compute_score(RESPONSE, TEN_TESTS)
    verl, own = (problems / harness.timed(each, time.perf_counter)[1] for each in (verls, ours))
    return {"problems_per_second": own, "verl_problems_per_second": verl, "ratio": own / verl}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--verl", action="store_true", help="time verl's prime_code as well")
    parser.add_argument("--scale", type=int, default=10, help="of the repetitions")
    options = parser.parse_args()
    workers, scale = len(os.sched_getaffinity(0)), options.scale
    with Sandbox() as sandbox:
        verifier = CodeVerifier(sandbox)
        results: dict[str, object] = {
            "kernel": platform.release().partition("-")[0],
            "workers": workers,
            "protection": find_protection().describe(),
            "program": SMALL,
            "one_run": measure_overhead(sandbox, 30 * scale),
            "ten_test_problems": measure_throughput(verifier, workers, 40 * scale),
        }
        if options.verl:
            results["verl_prime_code"] = measure_verl(verifier, 2 * scale)
    harness.record(options, results, ())


if __name__ == "__main__":
    main()
