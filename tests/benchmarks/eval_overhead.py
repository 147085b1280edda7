# SPDX-License-Identifier: Apache-2.0
"""What the evaluation costs around the model: the harness beside a backend that answers at once, and the graders.

    python tests/benchmarks/eval_overhead.py [--responses 20000]

- Harness: seconds per response of planning, keeping, judging (text-equal answers, the cheapest) and measuring, with a
  backend that answers at once; beside it iterating over that backend alone, in the same run.
- Grading: verdicts per second of responses that are right, through the command's own grading, per grader; programs run
  in the sandbox, with one worker per core.

The results go into the JSON beside this file.
"""

import json
import tempfile
from pathlib import Path

import harness
from small_tasks import TASKS, planned, stated

from eval.results import key_of
from eval.run import main
from eval.verdicts import SAMPLE_FIELDS, grade, make_verifier, write_problems
from prime_ext.generate.backend import Response
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.run_store import LineFile


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


def harness_cost(folder, number):
    """Seconds per response of a whole run, and of the backend alone."""
    one = plan(folder, "sums", number)
    requests = [one.request(*key) for key in one.keys]
    _, alone = harness.timed(lambda: list(AtOnce().generate(requests)))
    words = ["--tasks", str(folder / "sums.yaml"), "--data", str(folder), "--output", str(folder / "out")]
    status, whole = harness.timed(lambda: main(words, lambda options: AtOnce()))
    assert status == 0
    timing = json.loads((folder / "out" / "timing.json").read_text())["tasks"]["sums"]["seconds"]
    return {
        "responses": number,
        "seconds_per_response": whole / number,
        "of_the_backend_alone": alone / number,
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
    samples = LineFile(folder / name / "samples.jsonl", key_of, SAMPLE_FIELDS, one.keys)
    seconds = grade(name, verifier, problems, responses, samples)
    assert all(row["score"] == 1 for row in samples.rows.values())
    return {"responses": number, "verdicts_per_second": number / seconds}


if __name__ == "__main__":
    options = harness.parser(__doc__, responses=20_000).parse_args()
    number = options.responses
    sizes = {"sums": number, "parity": number, "functions": max(8, number // 100)}
    with tempfile.TemporaryDirectory() as name:
        found = {"harness": harness_cost(Path(name), number)}
        found["grading"] = {task: grading(Path(name), task, number) for task, number in sizes.items()}
    harness.record(options, found)
