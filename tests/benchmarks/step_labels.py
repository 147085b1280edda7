# SPDX-License-Identifier: Apache-2.0
"""Step labels against the truth, on the laboratory's chains, through the program itself.

    python tests/benchmarks/step_labels.py

Responses and continuations are those of the task's demonstrators, whose error rates are known. So
the probability that they reach the right answer after a step, its value, is a recursion over the
facts, and whether a step is right is known too. For each number of continuations K:

- rate: mean of rate minus value, its root mean square next to the binomial one, and the share of
  the 95 % intervals that hold the value;
- hard labels (a single success is enough): how often right steps are labeled wrong, and steps from
  the first error on right;
- first_error: how often it is exact in wrong responses, and how often one is seen in correct ones,
  by all prefixes (the first failure, or the step after the last success) and by bisection; calls
  and new tokens of both. Four responses to a problem share equal prefixes.

Judges err at known rates: how often their first error is wrong, with 1 and 5 judgements. Every
number is the mean over seeds and its standard error. Writes step_labels.json.
"""

import json
import random
import re
import tempfile
from pathlib import Path

import harness
import numpy as np
import pyarrow.parquet as pq
import torch

from data_preprocessing import model_stage, step_labels
from examples.minimal_prime import ChainTask
from prime_ext.generate.backend import Backend, Response
from prime_ext.utils.files import read_lines, write_json_lines

SAMPLES = (1, 2, 4, 8, 16)
ERROR_RATES = (0.0, 0.1, 0.3)
RESPONSES = 4
LETTERS = "abcdefghij"


class Demonstrators(Backend):
    """Demonstrators of the task, who answer ``12 ab?`` by lines like ``a 5``, ``b \\boxed{7}``."""

    def __init__(self, task: ChainTask):
        self.right, self.wrong = task.right.tolist(), task.wrong.tolist()
        self.error_rate = task.error_rate.tolist()

    def description(self):
        return {"backend": "laboratory", "model": "demonstrators"}

    def check(self, requests):
        pass

    def generate(self, requests):
        for request in requests:
            problem, begun = request.prompt[0]["content"], request.prompt[-1]["content"]
            text = self.answer(problem, begun, random.Random(request.seed))
            # A step is an operation and a value; the end is a token.
            yield Response(request.key, text, 2 * text.count(" ") + 1, len(problem), "stop")

    def answer(self, problem: str, begun: str, rng: random.Random) -> str:
        value, operations = parse_problem(problem)
        done = begun.count("\n")
        value = int(re.findall(r"\d+", begun)[-1]) if done else value
        lines = []
        for operation in operations[done:]:
            errs = rng.random() < self.error_rate[operation][value]
            value = (self.wrong if errs else self.right)[operation][value]
            lines.append(f"{LETTERS[operation]} {value}")
        lines[-1] = "{} \\boxed{{{}}}".format(*lines[-1].split())
        return "\n".join(lines)

    def solve(self, problem: str) -> list[int]:
        """Return the right value after each step."""
        value, operations = parse_problem(problem)
        return [value := self.right[operation][value] for operation in operations]

    def compute_values(self, problem: str, shown: list[int]) -> list[float]:
        """Return the probability of the right answer after each shown value."""
        _, operations = parse_problem(problem)
        chance = [float(value == self.solve(problem)[-1]) for value in range(len(self.right[0]))]
        values = [chance[shown[-1]]]
        for step in reversed(range(1, len(operations))):
            operation = operations[step]
            chance = [
                (1 - rate) * chance[right] + rate * chance[wrong]
                for rate, right, wrong in zip(
                    self.error_rate[operation],
                    self.right[operation],
                    self.wrong[operation],
                    strict=True,
                )
            ]
            values.append(chance[shown[step - 1]])
        return values[::-1]


class KnownJudge(Backend):
    """A judge that names another step than the first wrong one, or 0, at a known rate."""

    def __init__(self, demonstrators: Demonstrators, error_rate: float):
        self.demonstrators = demonstrators
        self.error_rate = error_rate

    def description(self):
        return {"backend": "laboratory", "model": f"judge {self.error_rate}"}

    def check(self, requests):
        pass

    def generate(self, requests):
        for request in requests:
            rng = random.Random(request.seed)
            question = request.prompt[0]["content"]
            solution = json.JSONDecoder().raw_decode(question, question.index("{"))[0]
            shown = read_values("\n".join(solution["steps"].values()))
            number = find_error(self.demonstrators.solve(solution["problem"]), shown) + 1
            if rng.random() < self.error_rate:
                number = rng.choice([n for n in range(len(shown) + 1) if n != number])
            text = f'I checked all. {{"first_error": {number}}}'
            yield Response(request.key, text, 8, len(question) // 4, "stop")


def parse_problem(problem: str) -> tuple[int, list[int]]:
    value, letters = problem.removesuffix("?").split()
    return int(value), [LETTERS.index(letter) for letter in letters]


def read_values(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def find_error(right: list[int], shown: list[int]) -> int:
    """Return the first step whose value is not the right one, -1 for none."""
    pairs = zip(right, shown, strict=True)
    return next((step for step, (value, other) in enumerate(pairs) if value != other), -1)


def find_failure(row: dict) -> int:
    """Return the first step without a success, -1 for none."""
    return next((step for step, rate in enumerate(row["rates"]) if rate == 0), -1)


def find_success(row: dict) -> int:
    """Return the step after the last one with a success, -1 if that is the last step."""
    last = max((step for step, rate in enumerate(row["rates"]) if rate > 0), default=-1)
    return last + 1 if last + 1 < len(row["rates"]) else -1


def write_responses(path: Path, task: ChainTask, model: Demonstrators, count: int, seed: int):
    """Write :data:`RESPONSES` to each problem; return problems and shown values by id."""
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    rows = {}
    for value, *chain in task.draw(count, generator):
        problem = f"{value} {''.join(LETTERS[operation] for operation in chain)}?"
        gold = str(model.solve(problem)[-1])
        for _ in range(RESPONSES):
            row = {"id": str(len(rows)), "prompt": problem, "gold": gold, "data_source": "math500"}
            rows[row["id"]] = {**row, "response": model.answer(problem, "", rng)}
    write_json_lines(path, rows.values())
    return {name: (row["prompt"], read_values(row["response"])) for name, row in rows.items()}


def label(folder: Path, name: str, backend: Backend, seed: int, *words: object) -> dict:
    """Run the program; return its rows by id."""
    model_stage.backend_from_arguments = lambda options: backend
    paths = ["--input", folder / "responses.jsonl", "--output-dir", folder / name]
    words = [*paths, "--delimiters", "\\n", "--seed", seed, *words]
    assert step_labels.main([str(word) for word in words]) == 0
    rows = pq.read_table(folder / name / "responses.parquet").to_pylist()
    return {row["id"]: row for row in rows}


def count_tokens(path: Path) -> tuple[int, int]:
    """Return the calls of a run, and the tokens that they wrote."""
    tokens = [json.loads(line)["tokens"] for _, line in read_lines(path)]
    return len(tokens), sum(tokens)


def measure(task: ChainTask, count: int, seed: int) -> dict[str, float]:
    """Return all numbers of a seed."""
    numbers: dict[str, float] = {}
    model = Demonstrators(task)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        responses = write_responses(folder / "responses.jsonl", task, model, count, seed)
        values = {key: model.compute_values(*response) for key, response in responses.items()}
        errors = {
            key: find_error(model.solve(problem), shown)
            for key, (problem, shown) in responses.items()
        }
        wrong = [key for key in responses if values[key][-1] == 0]
        numbers["accuracy"] = 1 - len(wrong) / len(responses)
        for samples in SAMPLES:
            runs = {
                search: label(
                    folder, f"{search}{samples}", model, seed, "--samples", samples, *words
                )
                for search, words in (("all", ()), ("bisection", ("--search", "bisection")))
            }
            # The last step is graded, not continued.
            steps = [
                (row["rates"][t], row["low"][t], row["high"][t], row["labels"][t], value, error)
                for key, row in runs["all"].items()
                for t, value in enumerate(values[key][:-1])
                for error in [errors[key] >= 0 and t >= errors[key]]
            ]
            rate, low, high, hard, value, is_wrong = np.array(steps, dtype=float).T
            guesses = {
                "the first failure": {k: find_failure(row) for k, row in runs["all"].items()},
                "the last success": {k: find_success(row) for k, row in runs["all"].items()},
                "bisection": {k: row["label"] for k, row in runs["bisection"].items()},
            }
            cost = {
                search: count_tokens(folder / f"{search}{samples}/answers.jsonl") for search in runs
            }
            numbers |= {
                f"K={samples} rate: bias": np.mean(rate - value),
                f"K={samples} rate: root mean square error": np.mean((rate - value) ** 2) ** 0.5,
                f"K={samples} rate: binomial": np.mean(value * (1 - value) / samples) ** 0.5,
                f"K={samples} rate: interval holds the value": np.mean(
                    (low <= value) & (value <= high)
                ),
                f"K={samples} hard: right steps labeled wrong": 1 - hard[is_wrong == 0].mean(),
                f"K={samples} hard: wrong steps labeled right": hard[is_wrong == 1].mean(),
            }
            for way, guess in guesses.items():
                prefix = f"K={samples} first_error by {way}"
                numbers[f"{prefix}: exact"] = np.mean([guess[k] == errors[k] for k in wrong])
                seen = [guess[k] >= 0 for k in responses if k not in wrong]
                numbers[f"{prefix}: seen in correct responses"] = np.mean(seen)
            for search, (calls, tokens) in cost.items():
                numbers[f"K={samples} {search}: calls per response"] = calls / len(responses)
                numbers[f"K={samples} {search}: tokens per response"] = tokens / len(responses)
        # Equal responses share a judgement.
        distinct = {(problem, *shown): key for key, (problem, shown) in responses.items()}.values()
        for error_rate in ERROR_RATES:
            for samples in (1, 5):
                judge = KnownJudge(model, error_rate)
                words = ("--judge", "http://127.0.0.1:1", "--samples", samples)
                rows = label(folder, f"judge{error_rate}-{samples}", judge, seed, *words)
                faults = [rows[key]["label"] != errors[key] for key in distinct]
                numbers[f"judge errs at {error_rate}: {samples} judgements"] = np.mean(faults)
    return numbers


def main() -> None:
    options = harness.parser(__doc__, seeds=6, problems=100).parse_args()
    task = ChainTask()
    runs = [measure(task, options.problems, seed) for seed in range(options.seeds)]
    results = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs], dtype=float)
        error = values.std(ddof=1) / len(values) ** 0.5
        digits = 1 if "per response" in name else 3
        results[name] = f"{values.mean():.{digits}f} ± {error:.{digits}f}"
    harness.record(options, {"results": results})


if __name__ == "__main__":
    main()
