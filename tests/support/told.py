# SPDX-License-Identifier: Apache-2.0
"""Model stages in tests: dialogues with a function for the model, and servers' command lines."""

import json

import pyarrow.parquet as pq
from scripted_server import Answer

from data_preprocessing.dialogues import Ask
from data_preprocessing.grading import get_verdicts
from prime_ext.generate.backend import Response
from prime_ext.tasks.action_prompt import MATH_SUFFIX
from prime_ext.tasks.rl_rows import MATH_SCHEMA, write_rows

ROWS = 12


def conversed(dialogue, says):
    """Carry a dialogue on to its end; return its result and its :class:`Ask` effects.

    ``says`` makes of an :class:`Ask` the text of the answer, or a :class:`Response`.
    """
    asked = []
    given = None
    while True:
        try:
            effects = dialogue.send(given)
        except StopIteration as stop:
            return stop.value, asked
        judged = iter(get_verdicts([effect for effect in effects if not isinstance(effect, Ask)]))
        given = []
        for effect in effects:
            if not isinstance(effect, Ask):
                given.append(next(judged))
                continue
            asked.append(effect)
            said = says(effect)
            given.append(said if isinstance(said, Response) else Response("", said, 1, 1, "stop"))


def rl_row(problem, gold="7", source="numina_cn_k12", index=0, suffix="", **extra):
    """Return a math row as the data pipeline writes it."""
    return {
        "data_source": source,
        "prompt": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": problem + suffix},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": "train", "index": index, **extra},
    }


def write_problems(path):
    """Write rows whose gold answer is their number."""
    path.parent.mkdir()
    rows = (rl_row(f"Problem {n}?", gold=str(n), index=n, suffix=MATH_SUFFIX) for n in range(ROWS))
    write_rows(path, MATH_SCHEMA, rows)
    return path


def number_in(prompt):
    return int(prompt.split("Problem ")[1].split("?")[0])


def right_or_wrong(prompt, payload):
    """Answer the problems of :func:`write_problems`, right for even seeds."""
    return Answer(f"So it is \\boxed{{{number_in(prompt) + payload['seed'] % 2}}}.")


def get_rows(folder, name="train"):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def removed(folder):
    """Return what a stage or pipeline says of the rows that it removed."""
    return [json.loads(line) for line in (folder / "removed.jsonl").read_text().splitlines()]


def server_words(source, out, server, *more):
    """Return the command line of a stage that asks a server."""
    backend = [
        "--backend",
        "server",
        "--base-url",
        server.base_url,
        "--attempts",
        "3",
        "--timeout",
        "600",
    ]
    return [str(word) for word in ["--input", source, "--output-dir", out, *backend, *more]]
