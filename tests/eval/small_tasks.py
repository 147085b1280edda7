# SPDX-License-Identifier: Apache-2.0
"""Three small benchmarks, one per grader, and a backend that answers by a function."""

import hashlib
import json
import time

from eval.evaluation_plan import plan_tasks
from eval.run import main, parser
from prime_ext.generate.backend import BackendError, Response


def _task(name, source, ability, metrics, rest):
    return f"""\
title: {name.capitalize()}
description: Small.
license: Apache-2.0
data_source: {source}
ability: {ability}
source: {{local: {{test: {name}.jsonl}}}}
texts: [problem]
fields: {{problem: [problem]}}
id: id
metrics: [{metrics}]
decoding:
  paper: {{max_new_tokens: 32}}
  several: {{n: 4, do_sample: true, temperature: 0.7, max_new_tokens: 32}}
{rest}"""


_SUMS = """\
groups: {level: level}
gold: [{column: answer}]
prompts:
  default: {user: "{{problem}}\\nBox it."}
  strict: {user: "{{problem}}", system: "You are strict."}
"""
_PARITY = """\
options: [even, odd]
gold: [{column: answer, values: {even: 1, odd: 2}}]
prompts: {default: {user: "{{problem}}: even or odd?"}}
"""
_FUNCTIONS = """\
gold: [{columns: [test_list]}]
prompts: {default: {user: "Write {{problem}}."}}
"""
TASKS = {
    "sums": _task("sums", "math500", "math", "accuracy, avg@4, pass@4, maj@4", _SUMS),
    "parity": _task("parity", "awpnli", "numeric_reasoning", "accuracy, micro_f1, macro_f1",
     _PARITY),
    "functions": _task("functions", "mbpp", "code", "accuracy, pass@4", _FUNCTIONS),
}  # fmt: skip
ROWS = {
    "sums": [
        {"id": f"s{i}", "problem": f"{i}+{i + 1}?", "answer": 2 * i + 1, "level": 1 + i // 6}
        for i in range(12)
    ],
    "parity": [
        {"id": f"p{i}", "problem": str(i), "answer": "odd" if i % 3 else "even"} for i in range(9)
    ],
    "functions": [
        {"id": f"f{i}", "problem": f"add{i}(x)", "test_list": [f"assert add{i}(2) == {2 + i}"]}
        for i in range(4)
    ],
}


def write_tasks(folder):
    """Write the task files and their data; return the command-line words that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\n{text}")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    return [
        "--tasks",
        ",".join(str(folder / f"{name}.yaml") for name in TASKS),
        "--data",
        str(folder),
    ]


def stated(task, gold):
    """Return a response that states this gold answer of a task."""
    if task == "functions":
        (test,) = json.loads(gold)["test_list"]
        name, number = test.removeprefix("assert add").split("(2) == ")
        return f"So:\n```python\ndef add{name}(x):\n    return x + {int(number) - 2}\n```"
    return (
        f"Thus, the answer is option {gold}. #### {gold}"
        if task == "parity"
        else f"Thus \\boxed{{{gold}}}."
    )


def planned(words):
    """Return what ``eval.run`` plans, by task."""
    return {
        plan.name: plan for plan in plan_tasks(parser().parse_args([str(word) for word in words]))
    }


def gold_by_prompt(words, shift=0):
    """Map each prompt to a response with the gold answer of the problem ``shift`` further."""
    responses = {}
    for name, plan in planned(words).items():
        golds = [problem.gold for problem in plan.problems.values()]
        texts = [stated(name, gold) for gold in golds[shift:] + golds[:shift]]
        responses |= dict(zip(map(last_message, plan.shown.values()), texts, strict=True))
    return responses


def last_message(prompt):
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def some_answer(request):
    """Answer right, wrong or not at all, by the seed."""
    number = request.seed % 5
    return "I do not know." if number == 4 else f"#### {number}\n\\boxed{{{number}}}"


class ScriptedBackend:
    """A backend whose responses are ``answer(request)``, in an order of its own.

    ``answer`` returns a text, or None for a response that fails. ``context`` is the longest prompt
    in characters. ``asked`` has (prompt, seed) of the requests in their order.
    """

    tokenizer = None

    def __init__(
        self, answer=some_answer, seconds=0.0, template=True, context=10**6, name="scripted"
    ):
        self.answer = answer
        self.seconds = seconds
        self.template = template
        self.context = context
        self.name = name
        self.asked = []
        self.closed = False

    def description(self):
        return {"backend": "scripted", "model": self.name}

    def check(self, requests):
        for request in requests:
            if not self.template and not isinstance(request.prompt, str):
                raise BackendError(f"{self.name} has no chat template; use a raw prompt")
            if len(last_message(request.prompt)) > self.context:
                raise BackendError(
                    f"request {request.key} leaves no room in the context of {self.context}"
                )

    def render_prompt(self, request):
        if isinstance(request.prompt, str):
            return request.prompt
        return (
            "".join(f"<{turn['role']}>{turn['content']}" for turn in request.prompt) + "<assistant>"
        )

    def generate(self, requests):
        for request in sorted(
            requests, key=lambda request: hashlib.sha256(request.key.encode()).digest()
        ):
            self.asked.append((request.prompt, request.seed))
            time.sleep(self.seconds)
            text = self.answer(request)
            if text is None:
                yield Response(request.key, "", 0, 0, "failed", "the server is down")
            else:
                finish = "length" if len(text) > 200 else "stop"
                yield Response(request.key, text, len(text.split()) + 1, 5, finish)

    def close(self):
        self.closed = True


def run(*words, backend=None):
    """Run ``eval.run`` with a scripted backend."""
    return main([str(word) for word in words], lambda options: backend or ScriptedBackend())


SAME = ("settings.json", "results.json") + tuple(
    f"{name}/{file}.jsonl" for name in TASKS for file in ("responses", "samples", "problems")
)


def get_results(out):
    return json.loads((out / "results.json").read_text())


def get_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def get_bytes(out):
    return {name: (out / name).read_bytes() for name in SAME}


def get_score(out, task, metric):
    return get_results(out)["tasks"][task]["summary"]["scores"][metric]["value"]


if __name__ == "__main__":
    import sys

    sys.exit(run(*sys.argv[1:], backend=ScriptedBackend(seconds=0.2)))
