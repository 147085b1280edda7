# SPDX-License-Identifier: Apache-2.0
"""Evaluate a model: benchmarks of mathematics, code and numeric reasoning, with one command and in one environment.

    python -m eval.run --model MODEL --tasks math500,gsm8k --output outputs/eval/MODEL
    python -m eval.run --model MODEL --tasks aime2024 --decoding recommended --output ...    16 responses per problem
    python -m eval.run --model MODEL --tasks math --limit 50 --temperature 0.6 --n 4 --output ...
    python -m eval.run --model MODEL --tasks math500 --show-prompt                           what the model sees
    python -m eval.run --list

Without --backend the model runs in vLLM where that is installed and there is a GPU, else in transformers. Interrupted
in any way, the same command goes on where it was. `python -m eval.grade --run FOLDER` judges the responses of a folder
again without a model. Exits with 1 if responses failed (the same command tries them again), with 2 and one line if
nothing can be done. See docs/evaluation.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eval.prompting import PromptError, Style, read_few_shot, read_system
from eval.run_generate import generate, open_responses
from eval.run_grade import grade, make_verifier, open_samples, write_problems
from eval.run_options import add_run_arguments, changes_of
from eval.run_plan import GROUPS, Planned, RunError, choose_tasks, plan
from eval.run_results import FORMAT, RESULTS, TIMING, add_timing, choose_ks, entry, measure, read_results, versions
from eval.run_store import Key, run_folder
from eval.run_table import conclude
from prime_ext.generate.backend import Backend, BackendError, Request
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.tasks.task_file import TaskError, load_task, task_names
from prime_ext.tasks.task_rows import NoData
from prime_ext.utils.files import write_json


def plan_tasks(options: argparse.Namespace) -> list[Planned]:
    """Everything that the options ask for.

    Raises:
        NoData, PromptError, RunError: see their messages.
    """
    few_shot = read_few_shot(options.few_shot) if options.few_shot else None
    style = Style(options.prompt, read_system(options.system_prompt), few_shot, options.raw)
    stop = (*(few_shot.stop if few_shot else ()), *options.stop)
    planned = []
    for task in choose_tasks(options.tasks):
        try:
            planned.append(
                plan(
                    task,
                    style=style,
                    data=options.data,
                    split=options.split,
                    limit=options.limit,
                    decoding=options.decoding,
                    changes=changes_of(options),
                    stop=stop,
                    seed=options.seed,
                )
            )
        except NoData as error:
            if not options.skip_missing:
                raise
            print(f"left out: {error}")
    if not planned:
        raise RunError("there are no data for any of the tasks")
    for one in planned:
        choose_ks(one.task.metrics, one.decoding.n, options.k)
    return planned


def settings_of(options: argparse.Namespace, planned: Sequence[Planned], backend: Backend) -> dict[str, Any]:
    """What the responses depend on; a folder holds a run with one such."""
    return {
        "format": FORMAT,
        "model": backend.description(),
        "versions": versions(),
        "seed": options.seed,
        "settings": {
            "tasks": [one.name for one in planned],
            "split": options.split,
            "limit": options.limit,
            "decoding": options.decoding,
            "changed": changes_of(options).given,
            "prompt": options.prompt,
            "system_prompt": options.system_prompt,
            "few_shot": options.few_shot.name if options.few_shot else None,
            "raw": options.raw,
            "stop": options.stop,
        },
        "tasks": {one.name: one.identity() for one in planned},
    }


def run(options: argparse.Namespace, planned: Sequence[Planned], backend: Backend) -> dict[str, Any]:
    """Generate, judge and measure, task by task. Returns what ``results.json`` holds.

    Raises:
        BackendError, RunError: see their messages.
    """
    settings = settings_of(options, planned, backend)
    folder = options.output
    with run_folder(folder, settings):
        # Whatever can be wrong is looked for before hours of work.
        earlier = read_results(folder) if (folder / RESULTS).exists() else {}
        verifiers = {grader: make_verifier(grader) for grader in dict.fromkeys(one.task.grader for one in planned)}
        responses = {one.name: open_responses(one, folder / one.name) for one in planned}
        for one in planned:
            open_samples(folder / one.name, one.keys)
        backend.check([request for one in planned for request in _missing(one, responses[one.name].rows)])
        results = {name: settings[name] for name in ("format", "model", "versions", "seed", "settings")}
        if "regraded_with" in earlier:
            results["regraded_with"] = earlier["regraded_with"]
        done: dict[str, Any] = dict(earlier.get("tasks", {}))
        for one in planned:
            new = generate(one, backend, responses[one.name])
            problems = write_problems(one, folder / one.name)
            samples = open_samples(folder / one.name, one.keys)
            seconds = grade(one.name, verifiers[one.task.grader], problems, responses[one.name].rows, samples)
            ks = choose_ks(one.task.metrics, one.decoding.n, options.k)
            measured = measure(one.task.grader, list(one.keys), problems, samples.rows, ks)
            done[one.name] = entry(one, ks, measured, len(new.failed))
            results["tasks"] = {task.name: done[task.name] for task in planned if task.name in done}
            add_timing(folder / TIMING, one.name, new.seconds, seconds, new.responses, new.tokens)
            write_json(folder / RESULTS, results)
    return results


def _missing(planned: Planned, rows: Mapping[Key, Any]) -> list[Request]:
    """A request for every problem that lacks a response; the others of the problem differ in their seeds only."""
    names = dict.fromkeys(key[0] for key in planned.keys if key not in rows)
    return [planned.request(name, 0) for name in names]


def show_prompts(planned: Sequence[Planned], backend: Backend, number: int) -> None:
    """Print what the model sees for the first problems of each task."""
    for one in planned:
        for name in list(one.problems)[:number]:
            request = one.request(name, 0)
            try:
                text = backend.shown(request)
                how = "exactly what the model sees"
            except BackendError as error:
                text = json.dumps(request.prompt, indent=2, ensure_ascii=False)
                how = f"the chat; {error}"
            print(f"=== {one.name}, problem {name}, prompt {one.prompt_name}: {how}\n{text}")


def list_tasks() -> None:
    """Print all tasks with what they offer."""
    for task in map(load_task, task_names()):
        group = next((name for name, ability in GROUPS.items() if ability == task.ability), "-")
        print(f"{task.name:<18} {group:<8} {task.title}")
        print(f"{'':<27} prompts {', '.join(task.prompts)}; decodings {', '.join(task.decoding)}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m eval.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_run_arguments(top)
    add_backend_arguments(top)
    return top


def main(
    words: Sequence[str] | None = None, open_backend: Callable[[argparse.Namespace], Backend] = backend_from_arguments
) -> int:
    """The command; ``open_backend`` opens what its options ask for."""
    top = parser()
    options = top.parse_args(words)
    if options.list:
        list_tasks()
        return 0
    if not options.tasks:
        top.error("--tasks is needed; --list says which there are")
    if options.output is None and options.show_prompt is None:
        top.error("--output is needed: a folder for results")
    backend = None
    try:
        planned = plan_tasks(options)
        backend = open_backend(options)
        if options.show_prompt is not None:
            show_prompts(planned, backend, options.show_prompt)
            return 0
        results = run(options, planned, backend)
    except (BackendError, NoData, PromptError, RunError, TaskError) as error:
        print(f"eval.run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        if backend is not None:
            backend.close()
    return conclude(results, options.output)


if __name__ == "__main__":
    sys.exit(main())
