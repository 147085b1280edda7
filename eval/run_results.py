# SPDX-License-Identifier: Apache-2.0
"""``results.json``: what a run measured, on which model, with which settings; and ``timing.json``, how long it took."""

import importlib.metadata
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.majority import same_mathematics, same_text
from eval.part_scores import part_scores
from eval.run_plan import Planned, RunError
from eval.run_store import Key, Row
from eval.summary import Graded, Sample, summarize
from prime_ext.tasks.choice_metrics import METRICS
from prime_ext.tasks.votes import Same
from prime_ext.utils.files import read_json, write_json

FORMAT = 1
RESULTS = "results.json"
TIMING = "timing.json"
# Whatever responses and verdicts may depend on.
_PACKAGES = ("prime-ext", "transformers", "tokenizers", "torch", "vllm", "math-verify", "sympy", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def choose_ks(metrics: Sequence[str], n: int, asked: Sequence[int] | None) -> list[int]:
    """The k of pass@k and maj@k.

    Args:
        metrics: of the task; ``pass@16`` of a run with 4 responses becomes ``pass@4``.
        n: responses per problem.
        asked: on the command line; None for those of the task.

    Raises:
        RunError: one that was asked for is above ``n``.
    """
    if asked is not None:
        for k in asked:
            if k > n:
                raise RunError(f"--k {k} is larger than the number of responses per problem, {n}; give --n {k}")
        return sorted(set(asked))
    of_task = {int(metric.partition("@")[2]) for metric in metrics if metric.startswith(("pass@", "maj@"))}
    # One of one says no more than the mean.
    return sorted({min(k, n) for k in of_task} - {1})


def same_answers(grader: str) -> Same | None:
    """Equality of answers for maj@k; programs do not vote."""
    return {"math": same_mathematics, "choice": lambda: same_text, "code": lambda: None}[grader]()


def measure(
    grader: str, keys: Sequence[Key], problems: Mapping[str, Row], samples: Mapping[Key, Row], ks: Sequence[int]
) -> dict[str, Any]:
    """``summary``, ``choice`` and ``parts`` of a task.

    Args:
        grader: math, code or choice.
        keys: of all responses, in order, also of those that failed.
        problems: by id.
        samples: lines with verdicts, by key.
        ks: the k of pass@k and maj@k.
    """
    by_problem: dict[str, list[Sample]] = defaultdict(list)
    for key in keys:
        row = samples.get(key)
        by_problem[key[0]].append(
            Sample(None, None, 0, False, failed=True)
            if row is None
            else Sample(row["score"], row["extracted"], row["tokens"], row["truncated"])
        )
    graded = [Graded(name, own, problems[name]["groups"]) for name, own in by_problem.items()]
    return {
        "summary": summarize(graded, ks, same_answers(grader) if ks else None),
        "choice": _choice(keys, problems, samples) if grader == "choice" else None,
        "parts": part_scores([samples[key] for key in keys if key in samples]),
    }


def _choice(keys: Sequence[Key], problems: Mapping[str, Row], samples: Mapping[Key, Row]) -> dict[str, float] | None:
    """Metrics of multiple choice: the mean over the first, second ... responses to all problems."""
    rounds: dict[int, tuple[list[int | None], list[int]]] = defaultdict(lambda: ([], []))
    for key in keys:
        row = samples.get(key)
        if row is None or row["grader_failure"]:
            continue
        answers, golds = rounds[key[1]]
        answers.append(None if row["extracted"] is None else int(row["extracted"]))
        golds.append(int(row["gold"]))
    if not rounds:
        return None
    return {name: sum(metric(*one) for one in rounds.values()) / len(rounds) for name, metric in METRICS.items()}


def entry(planned: Planned, ks: Sequence[int], measured: Mapping[str, Any], failed: int) -> dict[str, Any]:
    """A task in ``results.json``.

    Args:
        planned: the task.
        ks: of pass@k and maj@k.
        measured: see :func:`measure`.
        failed: number of responses that failed.
    """
    task = planned.task
    identity = planned.identity()
    return {
        "title": task.title,
        "grader": task.grader,
        "split": identity["split"],
        "prompt": planned.prompt_name,
        "prompt_sha256": identity["prompt_sha256"],
        "data_sha256": identity["data_sha256"],
        "decoding": identity["decoding"],
        "stop": identity["stop"],
        "metrics": list(task.metrics),
        "ks": list(ks),
        **measured,
        "failed_responses": failed,
        "references": [asdict(reference) for reference in task.references],
        "notes": task.notes,
    }


def read_results(folder: Path) -> dict[str, Any]:
    """What a run has left in its folder.

    Raises:
        RunError: nothing, or something else.
    """
    path = folder / RESULTS
    try:
        results = read_json(path)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist; is {folder} the folder of a run that has finished a task?") from error
    except ValueError as error:
        raise RunError(f"{path} is broken ({error}); move it away, and the same command makes it anew") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise RunError(f"{path} is not of format {FORMAT}; choose another folder")
    return results


def add_timing(
    path: Path, name: str, generation: float = 0.0, grading: float = 0.0, responses: int = 0, tokens: int = 0
) -> None:
    """Add a session's seconds and tokens to those of a task in ``timing.json``.

    They are not in ``results.json``, which is the same for the same responses. A session that did nothing has no time.
    """
    content = read_json(path) if path.exists() else {"tasks": {}}
    task = content["tasks"].setdefault(name, {"seconds": {"generation": 0.0, "grading": 0.0}})
    task["seconds"]["generation"] += generation
    task["seconds"]["grading"] += grading
    for key, number in (("responses", responses), ("response_tokens", tokens)):
        task[key] = task.get(key, 0) + number
    spent = task["seconds"]["generation"]
    task["response_tokens_per_second"] = task["response_tokens"] / spent if spent else None
    write_json(path, content)
