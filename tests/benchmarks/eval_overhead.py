# SPDX-License-Identifier: Apache-2.0
"""What the evaluation costs around the model: the harness beside a backend that answers at once, and the graders.

    python tests/benchmarks/eval_overhead.py [--responses 20000]

- Harness: seconds per response of planning, keeping, judging (text-equal answers, the cheapest) and measuring, with a
  backend that answers at once; beside it iterating over that backend alone, in the same run.
- Grading: verdicts per second of responses that are right, through the command's own grading, per grader; programs run
  in the sandbox, with one worker per core.

The results go into the JSON beside this file.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks"), str(ROOT / "tests" / "eval")]

from machine import describe  # noqa: E402
from small_tasks import TASKS, planned, stated  # noqa: E402

from eval.run import main  # noqa: E402
from eval.store import LineFile  # noqa: E402
from eval.verdicts import SAMPLE_FIELDS, grade, make_verifier, write_problems  # noqa: E402
from prime_ext.generate.backend import Response  # noqa: E402
from prime_ext.utils.files import write_json, write_json_lines  # noqa: E402


class AtOnce:
    """Answers with a text of about 1,000 characters that boxes what its prompt asks for."""

    def description(self):
        return {"backend": "at once", "model": "none"}

    def check(self, requests):
        """Whatever is asked."""

    def generate(self, requests):
        for request in requests:
            number = int(request.prompt[-1]["content"].partition("+")[0])
            text = "Let us think about it. " * 40 + f"\\boxed{{{2 * number + 1}}}"
            yield Response(request.key, text, 250, 20, "stop")

    def close(self):
        """Nothing is held."""


ROW = {
    "sums": lambda i: {"id": f"s{i}", "problem": f"{i}+{i + 1}?", "answer": 2 * i + 1, "level": 1 + i % 5},
    "parity": lambda i: {"id": f"p{i}", "problem": str(i), "answer": "odd" if i % 2 else "even"},
    "functions": lambda i: {"id": f"f{i}", "problem": f"add{i}(x)", "test_list": [f"assert add{i}(2) == {2 + i}"]},
}


def plan(folder, name, number):
    """A task with as many problems."""
    (folder / f"{name}.yaml").write_text(f"name: {name}\n{TASKS[name]}")
    write_json_lines(folder / f"{name}.jsonl", map(ROW[name], range(number)))
    return planned(["--tasks", folder / f"{name}.yaml", "--data", folder])[name]


def harness(folder, number):
    """Seconds per response of a whole run, and of the backend alone."""
    one = plan(folder, "sums", number)
    requests = [one.request(*key) for key in one.keys]
    started = time.process_time()
    for _ in AtOnce().generate(requests):
        pass
    alone = (time.process_time() - started) / number
    words = ["--tasks", str(folder / "sums.yaml"), "--data", str(folder), "--output", str(folder / "out")]
    started = time.process_time()
    assert main(words, lambda options: AtOnce()) == 0
    whole = (time.process_time() - started) / number
    timing = json.loads((folder / "out" / "timing.json").read_text())["tasks"]["sums"]["seconds"]
    return {
        "responses": number,
        "seconds_per_response": whole,
        "of_the_backend_alone": alone,
        "wall_seconds_keeping": timing["generation"],
        "wall_seconds_judging": timing["grading"],
    }


def grading(folder, name, number):
    """Verdicts per second of wall time."""
    one = plan(folder, name, number)
    problems = write_problems(one, folder / name)
    responses = {
        key: {
            "problem": key[0],
            "sample": key[1],
            "text": stated(name, one.problems[key[0]].gold),
            "tokens": 1,
            "prompt_tokens": 1,
            "finish": "stop",
        }
        for key in one.keys
    }
    verifier = make_verifier(one.task.grader)
    samples = LineFile(folder / name / "samples.jsonl", SAMPLE_FIELDS, one.keys)
    seconds = grade(name, verifier, problems, responses, samples)
    assert all(row["score"] == 1 for row in samples.rows.values())
    return {"responses": number, "verdicts_per_second": number / seconds}


def run(responses):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {"machine": describe(), "harness": harness(folder, responses)}
        sizes = {"sums": responses, "parity": responses, "functions": max(8, responses // 100)}
        result["grading"] = {task: grading(folder, task, number) for task, number in sizes.items()}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=20_000)
    found = run(parser.parse_args().responses)
    write_json(Path(__file__).with_suffix(".json"), found)
    print(json.dumps(found, indent=2))
