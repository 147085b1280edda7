# SPDX-License-Identifier: Apache-2.0
"""Agreement of graders with labels, on public pair collections and on our own fixture.

    python tests/benchmarks/math_agreement.py [--verl] [--data DIR]

Collections (``gold``, ``pred``, ``label``):

- ``processbench_gsm8k``: ProcessBench's GSM8K responses joined to GSM8K by problem text; the
  prediction is the last box, else the final answer of the last step; the label is
  ``final_answer_correct``.
- ``processbench_omnimath``: answers in ProcessBench's Omni-MATH responses against that of another
  response to the same problem which is labeled correct.
- ``policies``: responses of the quickstart's warm start and policy
  (``tests/verifiers/math/policy_responses.jsonl``), labeled by the arithmetic of their problems.
- ``restyled``: gold answers of MATH, MATH-500, OlympiadBench, Minerva, AIME and AMC against
  themselves in another typography. All are right.
- ``perturbed``: the same with one number changed. All are wrong.
- ``fixture``: ``tests/verifiers/math/pairs.jsonl``, labeled by hand, one rule of ours per line.
- ``kinds``, ``blind1``, ``blind2``: ``tests/verifiers/math/*.jsonl``, pairs by kinds of faults.
  Ours was mended on ``kinds`` before the authors of the other two wrote them without seeing any
  grader; it was mended on these two afterwards.
- ``reported``: ``tests/verifiers/reported.jsonl``, answers of public bug reports of graders, none
  of which is easy; without those whose difficulty is to find the answer in the response.

Ours is compared with math-verify alone in its default settings, and with ``--verl`` with verl's
graders. The JSON next to this file has our disagreements pair by pair, and how many the others
have.
"""

import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
from math_verify import parse, verify

from prime_ext.verifiers.math import MathVerifier, extract

OURS = "prime_ext"
Pair = tuple[str, str, bool]
Grader = Callable[[str, str], bool | None]


def _lines(path: Path) -> Iterator[dict]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def processbench_gsm8k(data: Path) -> list[Pair]:
    golds = {}
    for split in ("train", "test"):
        for row in _lines(data / "gsm8k" / f"{split}.jsonl"):
            golds[row["question"].strip()] = row["answer"].split("####")[1].strip()
    pairs = []
    for row in json.loads((data / "processbench" / "gsm8k.json").read_text()):
        gold = golds.get(row["problem"].strip())
        answer = (
            extract("\n\n".join(row["steps"])).answer or extract(row["steps"][-1], "lenient").answer
        )
        if gold and answer is not None:
            pairs.append((gold, answer, bool(row["final_answer_correct"])))
    return pairs


def processbench_omnimath(data: Path) -> list[Pair]:
    answers: dict[str, list[tuple[str, bool]]] = {}
    for row in json.loads((data / "processbench" / "omnimath.json").read_text()):
        if (answer := extract("\n\n".join(row["steps"])).answer) is not None:
            pair = answer, bool(row["final_answer_correct"])
            answers.setdefault(row["problem"].strip(), []).append(pair)
    return [
        (gold, answer, label)
        for pairs in answers.values()
        for index, (gold, right) in enumerate(pairs)
        for other, (answer, label) in enumerate(pairs)
        if right and index != other
    ]


def policy_responses() -> list[Pair]:
    rows = _lines(harness.ROOT / "tests" / "verifiers" / "math" / "policy_responses.jsonl")
    return [(row["gold"], extract(row["response"]).answer or "", row["label"]) for row in rows]


def kinds(name: str) -> list[Pair]:
    """Return the pairs of a file whose answers are bare."""
    rows = _lines(harness.ROOT / "tests" / "verifiers" / "math" / f"{name}.jsonl")
    return [(row["gold"], row["pred"], row["expected"]) for row in rows if "extraction" not in row]


def gold_answers(data: Path) -> list[str]:
    """Return distinct gold answers; of the plain integers, which are easy, one in ten."""
    golds = [row["answer"] for row in _lines(data / "math" / "train.jsonl")]
    column = json.loads((data / "math500" / "math_test_cleaned.json").read_text())[
        "expected_answer"
    ]
    golds += column.values() if isinstance(column, dict) else column
    golds += [
        ", ".join(row["final_answer"]) for row in _lines(data / "olympiadbench" / "test.jsonl")
    ]
    for row in _lines(data / "minerva_math" / "test.jsonl"):
        answer = extract(row["solution"]).answer
        golds += [answer] if answer else []
    for name in ("aime", "amc"):
        golds += [
            str(row["answer"]) for row in _lines(data / name / f"aimo-validation-{name}.jsonl")
        ]
    chooser = random.Random(0)
    return [
        gold
        for gold in dict.fromkeys(golds)
        if gold.strip() and not re.fullmatch(r"-?[\d.,]+", gold) or chooser.random() < 0.1
    ]


def restyle(gold: str) -> str:
    """Return the same answer as somebody else would have typed it."""
    text = (
        gold.replace("\\frac{", "\\dfrac{")
        .replace("\\left", "")
        .replace("\\right", "")
        .replace("\\cdot", "\\times")
    )
    text = re.sub(r"(?<=[\w}])([+=])(?=[\w\\])", r" \1 ", text)
    return f"${text}$."


def perturb(gold: str) -> str | None:
    """Return the answer with its last number larger by one, or None if it has none.

    Numbers in text, units and subscripts do not count; approximations are left out.
    """
    hidden = re.sub(
        r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}|_\{?\w+\}?|(?:cm|m|units)\}?\^\d|\[\d+\]|\\\^|\^\{?\\circ\}?",
        lambda match: "#" * len(match.group()),
        gold,
    )
    numbers = list(re.finditer(r"\d+", hidden))
    if not numbers or "\\approx" in gold:
        return None
    start, stop = numbers[-1].span()
    return gold[:start] + str(int(gold[start:stop]) + 1) + gold[stop:]


def collections(data: Path) -> dict[str, list[Pair]]:
    golds = gold_answers(data)
    fixture = _lines(harness.ROOT / "tests" / "verifiers" / "math" / "pairs.jsonl")
    return {
        "processbench_gsm8k": processbench_gsm8k(data),
        "processbench_omnimath": processbench_omnimath(data),
        "policies": policy_responses(),
        "restyled": [(gold, restyle(gold), True) for gold in golds],
        "perturbed": [
            (gold, changed, False) for gold in golds if (changed := perturb(gold)) is not None
        ],
        "fixture": [(row["gold"], row["pred"], row["label"]) for row in fixture],
        "reported": reported(),
        **{name: kinds(name) for name in ("kinds", "blind1", "blind2")},
    }


def reported() -> list[Pair]:
    rows = list(_lines(harness.ROOT / "tests" / "verifiers" / "reported.jsonl"))
    return [
        (row["gold"], row["pred"], row["expected"])
        for row in rows
        if row.keys() == {"kind", "gold", "pred", "expected"}
        and isinstance(row["expected"], bool)
        and isinstance(row["gold"], str)
        and not row["kind"].startswith("choice")
        and not row["gold"].startswith('{"')
        and "boxed" not in row["pred"]
    ]


def math_verify_alone(gold: str, pred: str) -> bool:
    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{pred}}}")))


def verl_graders() -> dict[str, Grader]:
    """Return verl's graders, in the signature of ours."""
    from verl.utils.reward_score import math_dapo, math_reward, prime_math

    return {
        "verl prime_math": lambda gold, pred: bool(
            prime_math.compute_score(rf"\boxed{{{pred}}}", gold)[0]
        ),
        "verl math_reward": lambda gold, pred: (
            math_reward.compute_score(rf"\boxed{{{pred}}}", gold) > 0
        ),
        "verl math_dapo": lambda gold, pred: bool(
            math_dapo.compute_score(f"Answer: {pred}", gold)["acc"]
        ),
    }


def measure(grader: Grader, pairs: list[Pair]) -> dict:
    """Count agreements; a grader's None does not agree, and is also listed as undecided."""
    start = time.perf_counter()
    said = [grader(gold, pred) for gold, pred, _ in pairs]
    seconds = time.perf_counter() - start
    judged = list(zip(pairs, said, strict=True))
    return {
        "pairs": len(pairs),
        "agreement": round(
            sum(answer == label for (_, _, label), answer in judged) / len(pairs), 5
        ),
        "ms_per_pair": round(1000 * seconds / len(pairs), 3),
        "false_positives": [pair[:2] for pair, answer in judged if answer and not pair[2]],
        "false_negatives": [pair[:2] for pair, answer in judged if answer is False and pair[2]],
        "undecided": [pair[:2] for pair, answer in judged if answer is None],
    }


def main() -> None:
    parser = harness.parser(__doc__, "the benchmarks of mathematics")
    parser.add_argument("--verl", action="store_true", help="verl's graders as well")
    options = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    verifier = MathVerifier()

    def ours(gold: str, pred: str) -> bool | None:
        verdict = verifier.verify_answer(pred, gold)
        return None if verdict.grader_failure else verdict.correct

    graders: dict[str, Grader] = {OURS: ours, "math-verify alone": math_verify_alone}
    graders |= verl_graders() if options.verl else {}
    results: dict[str, dict[str, dict]] = {}
    for collection, pairs in collections(options.data).items():
        results[collection] = {name: measure(grader, pairs) for name, grader in graders.items()}
        for name in graders.keys() - {OURS}:
            counts = results[collection][name]
            counts |= {key: len(value) for key, value in counts.items() if isinstance(value, list)}
    harness.record(
        options,
        {"collections": results},
        ("mpmath", "math-verify", "latex2sympy2_extended", "sympy"),
    )


if __name__ == "__main__":
    main()
