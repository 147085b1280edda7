# SPDX-License-Identifier: Apache-2.0
"""Judge the responses of a run again, without a model and without the data; for verifiers that have changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.run_generate import FIELDS, RESPONSES
from eval.run_grade import FIELDS as SAMPLE_FIELDS
from eval.run_grade import SAMPLES, grade, make_verifier, read_problems
from eval.run_plan import RunError
from eval.run_results import RESULTS, TIMING, add_timing, choose_ks, measure, read_results, versions
from eval.run_store import LineFile, locked
from prime_ext.utils.files import write_json
from prime_ext.verifiers.sources import TaskVerifier


def regrade(folder: Path, ks: Sequence[int] | None = None) -> tuple[dict[str, Any], dict[str, int]]:
    """Judge all responses of a run's folder again, and measure again.

    A task's old verdicts are replaced when all of its new ones are there.

    Args:
        folder: of the run.
        ks: the k of pass@k and maj@k; None for those of the tasks.

    Returns:
        What ``results.json`` now holds, and by task how many verdicts are not what they were.

    Raises:
        RunError: the folder holds no results, or something in it is broken.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder")
    with locked(folder):
        results = read_results(folder)
        for task in results["tasks"].values():
            choose_ks(task["metrics"], task["decoding"]["n"], ks)
        verifiers = {grader: make_verifier(grader) for grader in {task["grader"] for task in results["tasks"].values()}}
        changed = {}
        results["regraded_with"] = versions()
        for name, task in results["tasks"].items():
            changed[name] = _regrade(folder, name, task, verifiers[task["grader"]], ks)
            write_json(folder / RESULTS, results)
    return results, changed


def _regrade(folder: Path, name: str, task: dict[str, Any], verifier: TaskVerifier, ks: Sequence[int] | None) -> int:
    """Judge a task and change its results. Returns how many verdicts are not what they were."""
    problems = read_problems(folder / name)
    keys = [(problem, sample) for problem in problems for sample in range(task["decoding"]["n"])]
    responses = LineFile(folder / name / RESPONSES, FIELDS, keys)
    old = LineFile(folder / name / SAMPLES, SAMPLE_FIELDS, keys)
    path = folder / name / f".{SAMPLES}"
    path.unlink(missing_ok=True)
    new = LineFile(path, SAMPLE_FIELDS, keys)
    seconds = grade(name, verifier, problems, responses.rows, new)
    path.replace(old.path)
    task["ks"] = choose_ks(task["metrics"], task["decoding"]["n"], ks)
    task |= measure(task["grader"], keys, problems, new.rows, task["ks"])
    add_timing(folder / TIMING, name, grading=seconds)
    judged = ("verdict", "score", "extracted")
    return sum(
        key not in old.rows or any(old.rows[key][field] != row[field] for field in judged)
        for key, row in new.rows.items()
    )
