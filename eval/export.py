# SPDX-License-Identifier: Apache-2.0
"""Hand results to tools that read those of lm-evaluation-harness.

    python -m eval.export RUN --format lm-eval --output DIR/results_NAME.json

writes the results and, beside them, ``samples_TASK_NAME.jsonl`` for every task. Names are those of release 0.4.13 of
lm-evaluation-harness (its ``result_schema.py``). Only what is true of our run is said: there is no date, no git hash
and no version of a program that did not run.

- ``acc`` is the mean score of a response, ``acc_stderr`` its standard error over problems.
- ``pass@k``, ``maj@k`` and the F1 scores keep their names; the filter is ``none``.
- The version of a task is the start of the hash of its data, which is what tells two versions of it apart here.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.results import RESULTS, FinishedRun, TaskRun, load_run
from eval.store import RunError, command
from prime_ext.tasks.choice_metrics import METRICS
from prime_ext.tasks.task_file import load_task, task_names
from prime_ext.utils.files import atomic_path, write_json

FORMATS = ("lm-eval",)
FILTER = "none"
_NOT_KNOWN = "N/A"


def lm_eval_results(run: FinishedRun, task_hashes: Mapping[str, str]) -> dict[str, Any]:
    """The results of a run in the harness' format."""
    model, versions = run.results["model"], run.results["versions"]
    seconds = [sum(task.entry["seconds"].values()) for task in run.tasks.values() if "seconds" in task.entry]
    told: dict[str, Any] = {
        "results": {},
        "group_subtasks": {name: [] for name in run.tasks},
        "configs": {},
        "versions": {name: task.entry["data_sha256"][:12] for name, task in run.tasks.items()},
        "higher_is_better": {},
        "n-samples": {},
        "config": {
            "model": model.get("backend"),
            "model_args": {key: value for key, value in model.items() if key != "backend"},
            "random_seed": run.results["seed"],
            **{f"model_{key}": model[key] for key in ("revision", "dtype") if key in model},
        },
        **({"transformers_version": versions["transformers"]} if "transformers" in versions else {}),
        "versions_of_packages": versions,
        "model_source": model.get("backend"),
        "model_name": run.model,
        "model_name_sanitized": "".join(sign if sign.isalnum() or sign in "-_." else "__" for sign in run.model),
        "task_hashes": dict(task_hashes),
        **({"total_evaluation_time_seconds": str(sum(seconds))} if len(seconds) == len(run.tasks) else {}),
    }
    for name, task in run.tasks.items():
        values, problems = _values(task), task.entry["summary"]["problems"]
        told["results"][name] = {"name": name, "alias": name, "sample_len": problems}
        for metric, (value, error) in values.items():
            told["results"][name] |= {f"{metric},{FILTER}": value, f"{metric}_stderr,{FILTER}": error}
        told["higher_is_better"][name] = dict.fromkeys(values, True)
        # Problems of the split, as far as the task file knows their number.
        published = load_task(name).source.rows.get(task.entry["split"], 0) if name in task_names() else 0
        told["n-samples"][name] = {"original": max(published, problems), "effective": problems}
        kept = ("title", "grader", "prompt", "prompt_sha256", "data_sha256", "failed_responses")
        metadata = {key: task.entry[key] for key in kept}
        told["configs"][name] = {
            "task": name,
            "test_split": task.entry["split"],
            "output_type": "generate_until",
            "repeats": task.n,
            "generation_kwargs": _generation(task),
            "metric_list": [{"metric": metric, "higher_is_better": True} for metric in values],
            "metadata": {**metadata, "grader_failures": task.entry["summary"]["grader_failures"]},
        }
    return told


def _values(task: TaskRun) -> dict[str, tuple[float, float | str]]:
    """Metrics of a task with their standard errors."""
    found: dict[str, tuple[float, float | str]] = {}
    for name, own in task.entry["summary"]["scores"].items():
        if own is not None:
            error = own["standard_error"]
            found["acc" if name == f"avg@{task.n}" else name] = own["value"], _NOT_KNOWN if error is None else error
    choice = {name: value for name, value in (task.entry["choice"] or {}).items() if name in METRICS}
    return found | {name: (value, _NOT_KNOWN) for name, value in choice.items() if name != "accuracy"}


def _generation(task: TaskRun) -> dict[str, Any]:
    """The decoding, as the harness calls its parts."""
    names = {"max_new_tokens": "max_gen_toks"}
    settings = {names.get(key, key): value for key, value in task.entry["decoding"].items()}
    for elsewhere in ("name", "n", "batch_size"):
        settings.pop(elsewhere, None)
    return {**settings, "until": task.entry.get("stop", [])}


def lm_eval_samples(task: TaskRun) -> Iterator[dict[str, Any]]:
    """One object per problem, with all its responses, as the harness logs them.

    ``acc`` is the mean score of the judged responses, and is missing where none was judged.
    """
    for place, (problem, rows) in enumerate(task.problems.items()):
        shown, gold = rows[0]["prompt"], rows[0]["gold"]
        prompt = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        doc = {"problem": problem, **rows[0]["groups"]}
        scores = [row["score"] for row in rows if row["score"] is not None]
        yield {
            "doc_id": place,
            "doc": doc,
            "target": gold,
            "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": _generation(task)}},
            "resps": [[row["response"] for row in rows]],
            "filtered_resps": [row["extracted"] for row in rows],
            "filter": FILTER,
            "metrics": ["acc"] if scores else [],
            "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _hash(prompt),
            "target_hash": _hash(gold),
            **({"acc": sum(scores) / len(scores)} if scores else {}),
        }


def _hash(text: str) -> str:
    # Halves of surrogate pairs have no UTF-8.
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def export(run: FinishedRun, output: Path) -> list[Path]:
    """Write results and samples. Returns the files, the results last."""
    name = output.stem.removeprefix("results_").replace("_", "-")
    hashes, written = {}, []
    for task in run.tasks.values():
        path = output.with_name(f"samples_{task.name}_{name}.jsonl")
        total = hashlib.sha256()
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as lines:
            for sample in lm_eval_samples(task):
                lines.write(json.dumps(sample) + "\n")
                total.update("".join(sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")).encode())
        hashes[task.name] = total.hexdigest()
        written.append(path)
    write_json(output, lm_eval_results(run, hashes))
    return [*written, output]


@command("export")
def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="eval.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder that eval.run wrote")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--output", required=True, type=Path, help="file of the results, a .json")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    arguments = parser.parse_args(words)
    output = arguments.output
    if output.suffix != ".json" or output.is_dir():
        raise RunError(f"--output must be a file that ends in .json, got {output}")
    if output.resolve() == (arguments.run / RESULTS).resolve():
        raise RunError(f"--output must not be the run's own {RESULTS}")
    if output.exists() and not arguments.overwrite:
        raise RunError(f"{output} exists already; --overwrite replaces it")
    for path in export(load_run(arguments.run), output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
