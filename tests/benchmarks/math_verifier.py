# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the math verifier.

    python tests/benchmarks/math_verifier.py [--hostile 10000]

- Text path: responses whose boxed answer equals the gold answer as text, pairs per second on one core; target 20,000.
- Rules path: MATH answers in another typography, which rules decide, on one core.
- Algebra path: MATH answers rewritten so that only algebra can decide, half of them changed; pairs per second and core
  in a worker's function, and through the pool with all workers; target 150 per core. Beside it math-verify alone on the
  same pairs, and verl's graders, in the same run.
- Memory: resident size of the parent and of the largest worker after 1,000 and after all hostile answers.

The results go into the JSON beside this file. MATH is read from the data folder (``PRIME_EXT_DATA`` or ``--data``).
"""

import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import harness
import psutil
from hostile import hostile_answers, random_hostile_answer
from math_agreement import math_verify_alone, restyle, verl_graders

from prime_ext.verifiers.math import MathVerifier
from prime_ext.verifiers.math.symbolic import judge, warm_up
from prime_ext.verifiers.math.verifier import decide
from prime_ext.verifiers.worker_pool import WorkerPool

Pair = tuple[str, str]


def rewrite(answer: str, changed: bool) -> str | None:
    """Write an answer so that only algebra sees that it is the same, or that it is not. None if it is plain."""
    if not re.search(r"\\sqrt|\\pi|[a-z]\^|(?<![\\a-z])[xyzabcnkmt](?![a-z])", answer) or "\\text" in answer:
        return None
    if re.search(r"[,=<>]|\\[lg]e|\\in|\\cup|begin|\\pm|%", answer):
        return None
    return rf"\frac{{2({answer})}}{{{3 if changed else 2}}}"


def algebra_pairs(data: Path, limit: int) -> list[Pair]:
    with (data / "math" / "train.jsonl").open() as file:
        golds = [json.loads(line)["answer"] for line in file]
    random.Random(0).shuffle(golds)
    pairs = []
    for gold in golds:
        answer = rewrite(gold, changed=len(pairs) % 2 == 1)
        if answer is not None and decide(gold, answer)[0] == "open":
            pairs.append((gold, answer))
        if len(pairs) == limit:
            break
    return pairs


def rate(work: Callable[[Pair], object], pairs: list[Pair], seconds: float = 3.0) -> float:
    """Pairs per second of CPU time, going round for at least ``seconds``."""
    started, done = time.process_time(), 0
    while time.process_time() - started < seconds:
        for pair in pairs:
            work(pair)
        done += len(pairs)
    return done / (time.process_time() - started)


def memory(count: int) -> dict:
    generator = random.Random(0)
    golds = [r"\frac{\sqrt{x}+1}{2}", r"2-\pi x", r"\frac{1}{x^{9}+y}", r"(-\infty,3]\cup[5,\infty)", r"x^{2}+y^{2}=1"]
    fixed = hostile_answers()
    report: dict = {}
    outcomes: Counter[str] = Counter()
    me = psutil.Process()
    with WorkerPool(time_limit=6.0, preload=("prime_ext.verifiers.math.symbolic:warm_up",)) as pool:
        verifier = MathVerifier(pool)
        slowest, started = 0.0, time.perf_counter()
        for done in range(0, count, 100):
            answers = [random_hostile_answer(generator) for _ in range(99)] + [fixed[(done // 100) % len(fixed)]]
            verdicts = verifier.verify_batch(
                [(rf"\boxed{{{a}}}", golds[i % len(golds)]) for i, a in enumerate(answers)]
            )
            for verdict in verdicts:
                stage, colon, _ = verdict.detail.partition(":")
                stage = stage if colon and stage in ("too complex", "algebra") else "rules"
                outcomes[f"{verdict.outcome}, {stage}"] += 1
            slowest = max(slowest, *(verdict.seconds for verdict in verdicts))
            if done + 100 in (1000, count):
                parent, *workers = (process.memory_info().rss / 2**20 for process in (me, *me.children()))
                report[f"after {done + 100}"] = {
                    "parent_mb": round(parent, 1),
                    "largest_worker_mb": round(max(workers), 1),
                }
        report["seconds"] = round(time.perf_counter() - started, 1)
        report["slowest_verdict_seconds_with_queueing"] = round(slowest, 2)
        report["outcomes"] = outcomes
    return report


def judged(grader: Callable[[str, str], bool], pairs: list[Pair], clock: Callable[[], float]) -> tuple[float, int]:
    """Pairs per second, and how many are judged wrongly: every second one was changed."""
    said, seconds = harness.timed(lambda: [grader(*pair) for pair in pairs], clock)
    return round(len(pairs) / seconds, 1), sum(correct != (n % 2 == 0) for n, correct in enumerate(said))


def main() -> None:
    options = harness.parser(__doc__, "math", hostile=10_000).parse_args()
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    workers = len(os.sched_getaffinity(0))
    hostile = memory(options.hostile)

    pairs = algebra_pairs(options.data, 300)
    plain = [(gold, gold) for gold, _ in pairs] + [(str(n), str(n)) for n in range(300)]
    verifier = MathVerifier()
    prose = "We add the two numbers and simplify. " * 40
    speed = {
        "text, one core": round(
            rate(lambda pair: verifier.verify(rf"{prose}The answer is \boxed{{{pair[1]}}}.", pair[0]), plain)
        ),
        "rules, one core": round(rate(lambda pair: decide(pair[0], restyle(pair[0])), pairs)),
    }
    with WorkerPool(workers, preload=("prime_ext.verifiers.math.symbolic:warm_up",)) as pool:
        pooled = MathVerifier(pool)
        batch = [(rf"\boxed{{{answer}}}", gold) for gold, answer in pairs]
        pooled.verify_batch(batch[:20])
        verdicts, seconds = harness.timed(lambda: pooled.verify_batch(batch), time.perf_counter)
    speed[f"algebra, pool of {workers}"] = round(len(batch) / seconds, 1)
    wrong: dict[str, object] = {
        "pairs": len(pairs),
        "ours_wrong": [
            [*pair, str(verdict.outcome)]
            for n, (pair, verdict) in enumerate(zip(pairs, verdicts, strict=True))
            if verdict.correct != (n % 2 == 0)
        ],
    }
    warm_up()
    algebra, _ = judged(lambda gold, answer: judge((gold,), answer), pairs, time.process_time)
    alone, wrong["math_verify_wrong"] = judged(math_verify_alone, pairs, time.process_time)
    speed |= {"algebra, one core": algebra, "math-verify alone, one core": alone}
    speed["algebra / math-verify alone"] = round(algebra / alone, 2)
    for name, grader in verl_graders().items():
        # Some start a process for a pair, so wall time counts.
        speed[f"{name}, wall time"], wrong[f"{name} wrong"] = judged(grader, pairs, time.perf_counter)
    results = {"workers": workers, "memory": hostile, "pairs_per_second": speed, "algebra_pairs": wrong}
    harness.record(options, results, ("math-verify", "sympy"))


if __name__ == "__main__":
    main()
