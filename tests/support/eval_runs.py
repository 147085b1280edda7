# SPDX-License-Identifier: Apache-2.0
"""Makes folders such as ``python -m eval.run`` leaves, with numbers from ``eval.summary``."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.published import read_references
from eval.summary import measure
from prime_ext.tasks.task_file import load_task
from prime_ext.utils.files import write_json, write_json_lines

Row = dict[str, Any]


def make_run(
    folder: Path,
    tasks: Sequence[str] = ("aime2024",),
    *,
    model: str = "some/model",
    seed: int = 0,
    skill: float = 0.5,
    problems: int = 12,
    decoding: str = "paper",
    n: int | None = None,
    ks: Sequence[int] = (),
    change: Callable[[Row], None] = lambda row: None,
    failed: Sequence[tuple[str, int]] = (),
    entry: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished run; ``skill`` is how often responses are right in the mean.

    ``n``: responses per problem, None for the decoding's. ``ks``: the k of pass@k and maj@k.
    ``change`` is given every line of ``samples.jsonl`` and may change it before numbers are made
    from it. ``failed``: problems and numbers of responses that failed. ``entry``: overrides of what
    ``results.json`` says of every task.
    """
    results: Row = {
        "format": 1,
        "model": {
            "backend": "transformers",
            "model": model,
            "revision": "abc123",
            "dtype": "float32",
        },
        "versions": {"python": "3.11.7", "transformers": "5.5.3", "mpmath": "1.3.0"},
        "seed": seed,
        "settings": {"tasks": list(tasks), "limit": None, "decoding": decoding, "stop": []},
        "tasks": {},
    }
    for name in tasks:
        results["tasks"][name] = _task(
            folder, name, seed, skill, problems, decoding, n, ks, change, failed
        )
        results["tasks"][name] |= entry or {}
    write_json(folder / "settings.json", results["settings"])
    write_json(folder / "results.json", results)
    seconds = {"generation": 61.5, "grading": 2.25}
    timing = {name: {"seconds": seconds, "response_tokens_per_second": 123.4} for name in tasks}
    write_json(folder / "timing.json", {"tasks": timing})
    return folder


def _task(folder, name, seed, skill, problems, decoding, n, ks, change, failed) -> Row:
    task = load_task(name)
    chosen = asdict(task.decoding[decoding]) | ({} if n is None else {"n": n})
    chance = random.Random(f"{seed} {name}")
    levels = random.Random(name)
    rows = []
    groups = {}
    for number in range(problems):
        problem = f"{name}/{number:03d}"
        groups[problem] = {key: str(levels.randrange(1, 5)) for key in task.groups}
        difficulty = levels.betavariate(1.2, 1.2)
        gold = "1" if task.grader == "choice" else str(levels.randrange(100))
        for sample in range(chosen["n"]):
            ease = skill / (skill + difficulty)
            row = _row(
                chance, problem, sample, groups[problem], gold, ease, chosen["max_new_tokens"]
            )
            change(row)
            if (problem, sample) not in failed:
                rows.append(row)
    write_json_lines(folder / name / "samples.jsonl", rows)
    # Nothing here reads responses: that there are some says that the run was begun.
    write_json_lines(folder / name / "responses.jsonl", rows)
    samples = {(row["problem"], row["sample"]): row for row in rows}
    return {
        "title": task.title,
        "grader": task.grader,
        "split": "test",
        "prompt": "default",
        "prompt_sha256": _digest([name, "prompts"]),
        "data_sha256": _digest([name, "data", problems]),
        "decoding": {"name": decoding, **chosen},
        "stop": [],
        "metrics": list(task.metrics),
        **measure(task.grader, chosen["n"], groups, samples, ks),
        "failed_responses": len([key for key in failed if key[0].startswith(f"{name}/")]),
        "references": read_references(task.name),
        "notes": task.notes,
    }


def _row(chance, problem, sample, groups, gold, ease, longest) -> Row:
    right = chance.random() < ease
    truncated = not right and chance.random() < 0.2
    answer = gold if right else None if truncated else str(int(gold) + 1)
    tokens = (
        longest if truncated else int(chance.lognormvariate(6 if right else 6.4, 0.5)) % longest + 1
    )
    end = "" if truncated else f" So the answer is \\boxed{{{answer}}}."
    return {
        "problem": problem,
        "sample": sample,
        "groups": groups,
        "prompt": [
            {"role": "user", "content": f"Solve problem {problem}.\nGive the answer in a box."}
        ],
        "response": "\n".join(
            f"Step {k}: we add {chance.randrange(100)}." for k in range(tokens // 12)
        )
        + end,
        "gold": gold,
        "verdict": "correct" if right else "no_answer" if truncated else "wrong",
        "score": float(right),
        "extracted": answer,
        "grader_failure": False,
        "detail": "",
        "tokens": tokens,
        "prompt_tokens": 42,
        "truncated": truncated,
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
