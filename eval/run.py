# SPDX-License-Identifier: Apache-2.0
"""Evaluate a model with one command, on benchmarks of math, code and numeric reasoning, and games.

    prime-ext eval --model MODEL --tasks math500,gsm8k --output outputs/eval/MODEL
    prime-ext eval --model MODEL --tasks aime2024 --decoding recommended --output ...
    prime-ext eval --model MODEL --tasks math --limit 50 --temperature 0.6 --n 4 --output ...
    prime-ext eval --model MODEL --tasks math500 --show-prompt
    prime-ext eval --model MODEL --tasks reasoning_gym:chain_sum:max_terms=3 --output ...
    prime-ext eval --model MODEL --tasks data/mine/test.parquet --output ...
    prime-ext eval --model MODEL --tasks environment:number_path --max-turns 8 --output ...
    prime-ext eval --list

Episodes of an environment are played whole, all of them turn by turn together.
Without --backend the model runs in vLLM where that is installed and there is a GPU, else in
transformers. Interrupted in any way, the same command continues from there.
`prime-ext eval-grade --run FOLDER` judges the responses of a folder again without a model. Exits
with 1 if responses failed (the same command tries them again), with 2 and one line if nothing can
be done. See docs/reference/evaluation.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError, unescape
from prime_ext.config.modules import add_modules_argument, import_modules
from prime_ext.generate.backend import Backend, BackendError, Response, generate_with_progress
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.tasks.rl_rows import find_idle_verifiers
from prime_ext.tasks.task_file import list_task_names, load_task
from prime_ext.utils.arguments import (
    COUNT,
    WHOLE,
    add_data_argument,
    add_output_argument,
    add_prompt_argument,
    add_sampling_arguments,
    add_seed_argument,
    add_tasks_argument,
    build_parser,
)
from prime_ext.utils.files import write_json, write_json_lines
from prime_ext.utils.run_store import LineFile, Row, command, run_folder

from .environment_task import MAX_TURNS
from .episodes import clean_first_texts, make_verifier, play
from .evaluation_plan import ALL, GROUPS, TaskPlan, plan_tasks, read_changes
from .published import read_references
from .report import format_summary, list_episode_facts, write_report
from .results import (
    FAILED,
    FORMAT,
    RESPONSES,
    RESULTS,
    SAMPLES,
    add_timing,
    get_key,
    load_run,
    read_results,
    versions,
)
from .summary import measure
from .verdicts import grade, list_fields, write_problems


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    top = build_parser("eval", __doc__)
    measured = top.add_argument_group("what is measured")
    add = measured.add_argument
    names = (
        "names, reasoning_gym:TASK, environment:NAME, files of tasks (.yaml) or of RL rows"
        f" (.parquet, .jsonl), or {', '.join([*GROUPS, ALL])}"
    )
    add_tasks_argument(measured, names)
    add_modules_argument(measured)
    add("--list", action="store_true", help="list all tasks and end")
    add_data_argument(measured)
    add("--split", help="of the data; default: the one that is evaluated")
    add("--limit", type=COUNT, help="only the first problems of each task")
    add("--skip-missing", action="store_true", help="leave out tasks without data, and say so")
    add_output_argument(measured, "of the run; an interrupted run goes on there", required=False)
    add_seed_argument(measured, "sampling")
    ks = "of pass@k and maj@k; default: those of the task"
    add("--k", type=lambda text: [COUNT(word) for word in text.split(",")], metavar="K,K", help=ks)
    group = top.add_argument_group("what the model is shown")
    add = group.add_argument
    add_prompt_argument(group)
    system = "default: the task's own; none; actions: that of the RL data; or a text file"
    add("--system-prompt", default="default", metavar="WHICH", help=system)
    add("--few-shot", type=Path, metavar="FILE", help="worked examples, as YAML")
    add("--raw", action="store_true", help="plain text for base models, no chat template")
    shown = "print what the model sees for the first N problems of each task (default: 1), and end"
    add("--show-prompt", type=COUNT, nargs="?", const=1, metavar="N", help=shown)
    group = top.add_argument_group("how responses are made")
    add = group.add_argument
    add("--decoding", help="name in the task files, or greedy; default: the first of each task")
    add("--n", type=COUNT, help="responses per problem")
    add_sampling_arguments(group)
    add("--top-k", type=WHOLE, help="0 for all tokens")
    add("--min-new-tokens", type=WHOLE)
    add(
        "--stop",
        type=unescape,
        action="append",
        default=[],
        metavar="TEXT",
        help="a response ends there; repeatable",
    )
    turns = f"of an episode of an environment (default: {MAX_TURNS})"
    add("--max-turns", type=COUNT, help=turns)
    tokens = "of an episode's responses together; default: only those of each response are limited"
    add("--max-episode-tokens", type=COUNT, help=tokens)
    add_backend_arguments(top)
    return top


def collect_settings(
    options: argparse.Namespace, planned: Sequence[TaskPlan], backend: Backend
) -> dict[str, Any]:
    """Return all settings that responses depend on; a folder holds one run with one such set."""
    return {
        "format": FORMAT,
        "model": backend.description(),
        "versions": versions(),
        "seed": options.seed,
        "settings": {
            "tasks": [plan.name for plan in planned],
            "split": options.split,
            "limit": options.limit,
            "decoding": options.decoding,
            "changed": read_changes(options),
            "prompt": options.prompt,
            "system_prompt": options.system_prompt,
            "few_shot": options.few_shot.name if options.few_shot else None,
            "raw": options.raw,
            "stop": options.stop,
        },
        "tasks": {plan.name: plan.identity() for plan in planned},
    }


def build_entry(planned: TaskPlan, measured: Mapping[str, Any], failed: int) -> dict[str, Any]:
    """Return the entry of a task in ``results.json``."""
    task = planned.task
    return {
        "title": task.title,
        "grader": task.grader,
        "split": planned.split,
        "prompt": planned.prompt_name,
        **planned.identity(),
        "metrics": list(task.metrics),
        "ks": list(planned.ks),
        **measured,
        "failed_responses": failed,
        "references": read_references(task.name),
        "notes": task.notes,
    }


def run(
    options: argparse.Namespace, planned: Sequence[TaskPlan], backend: Backend
) -> dict[str, Any]:
    """Generate, judge and measure by task; return ``results.json``'s content. Raises RunError."""
    settings = collect_settings(options, planned, backend)
    folder = options.output
    with run_folder(folder, settings):
        # Whatever can be wrong is looked for before hours of work.
        earlier = read_results(folder) if (folder / RESULTS).exists() else {}
        verifiers = {plan.task.grader: make_verifier(plan.task.grader) for plan in planned}
        responses = {}
        samples = {}
        for plan in planned:
            task_folder = folder / plan.name
            fields = list_fields(plan.task.grader)
            responses[plan.name] = LineFile(task_folder / RESPONSES, get_key, fields[0], plan.keys)
            samples[plan.name] = LineFile(task_folder / SAMPLES, get_key, fields[1], plan.keys)
        # The other responses to a problem differ in their seeds only.
        missing = {
            (plan.name, key[0]): plan
            for plan in planned
            for key in plan.keys
            if key not in responses[plan.name].rows
        }
        backend.check([plan.request(problem, 0) for (_, problem), plan in missing.items()])
        results = {
            name: settings[name] for name in ("format", "model", "versions", "seed", "settings")
        }
        if "regraded_with" in earlier:
            results["regraded_with"] = earlier["regraded_with"]
        done: dict[str, Any] = dict(earlier.get("tasks", {}))
        for plan in planned:
            stored = responses[plan.name]
            before = set(stored.rows)
            started = time.perf_counter()
            failed = generate(plan, backend, stored)
            new = [row for key, row in stored.rows.items() if key not in before]
            generation = time.perf_counter() - started if new or failed else 0.0
            problems = write_problems(plan, folder / plan.name)
            grading = grade(
                plan.name, verifiers[plan.task.grader], problems, stored.rows, samples[plan.name]
            )
            groups = {name: problem.groups for name, problem in plan.problems.items()}
            measured = measure(
                plan.task.grader, plan.decoding.n, groups, samples[plan.name].rows, plan.ks
            )
            done[plan.name] = build_entry(plan, measured, failed)
            results["tasks"] = {task.name: done[task.name] for task in planned if task.name in done}
            tokens = sum(row["tokens"] for row in new)
            add_timing(folder, plan.name, generation, grading, len(new), tokens)
            write_json(folder / RESULTS, results)
    return results


def generate(planned: TaskPlan, backend: Backend, responses: LineFile) -> int:
    """Generate the missing responses, or play episodes; put those that failed into another file.

    New ones are kept where the backend cannot go on. Returns how many failed; the next session
    tries them again.
    """
    keys = {planned.request(*key).key: key for key in planned.keys if key not in responses.rows}
    requests = [planned.request(*key) for key in keys.values()]
    failed: dict[Any, Row] = {}
    made: Iterable[Response] = ()
    if requests and planned.limits:
        made = play(planned, backend, [*keys.values()], len(responses.rows))
    elif requests:
        made = generate_with_progress(backend, requests, planned.name, len(responses.rows))
    with responses:
        for response in made:
            problem, sample = keys.pop(response.key)
            values = {key: value for key, value in asdict(response).items() if key != "key"}
            row = {
                "problem": problem,
                "sample": sample,
                "seed": planned.derive_seed(problem, sample),
                **values,
            }
            if response.finish == "failed":
                failed[problem, sample] = row
            else:
                responses.append(row)
    if keys:
        raise RuntimeError(
            f"the backend left {len(keys)} requests without a response, e.g. {min(keys)}"
        )
    path = responses.path.with_name(FAILED)
    if failed:
        write_json_lines(path, [failed[key] for key in planned.keys if key in failed])
    else:
        path.unlink(missing_ok=True)
    return len(failed)


def show_prompts(planned: Sequence[TaskPlan], backend: Backend, number: int) -> None:
    """Print what the model sees for the first problems of each task."""
    for plan in planned:
        for name in list(plan.problems)[:number]:
            request = plan.request(name, 0)
            try:
                text = backend.render_prompt(request)
                how = "exactly what the model sees"
            except BackendError as error:
                text = json.dumps(request.prompt, indent=2, ensure_ascii=False)
                how = f"the chat; {error}"
            print(f"=== {plan.name}, problem {name}, prompt {plan.prompt_name}: {how}\n{text}")


def list_tasks() -> None:
    """Print all tasks with what they offer."""
    for task in map(load_task, list_task_names()):
        group = next((name for name, ability in GROUPS.items() if ability == task.ability), "-")
        print(f"{task.name:<18} {group:<8} {task.title}")
        print(f"{'':<27} prompts {', '.join(task.prompts)}; decodings {', '.join(task.decoding)}")


def conclude(results: Mapping[str, Any], folder: Path) -> int:
    """Write the report, print the summary and the files' places; return 1 if responses failed."""
    report = write_report(folder)
    print(format_summary(load_run(folder)))
    for task in results["tasks"].values():
        if facts := list_episode_facts(task):
            print(f"{task['title']}: {'; '.join(f'{name} {value}' for name, value in facts)}")
    failed = sum(task["failed_responses"] for task in results["tasks"].values())
    if failed:
        print(f"{failed} responses FAILED and are in no mean; the same command tries them again")
    print(f"results: {folder / RESULTS}; every response and verdict: {folder}/TASK/{SAMPLES}")
    print(f"report:  {report}")
    return 1 if failed else 0


@command("eval.run", SettingsError)
def main(
    words: Sequence[str] | None = None,
    open_backend: Callable[[argparse.Namespace], Backend] = backend_from_arguments,
) -> int:
    """Run the command; ``open_backend`` opens the backend of its options."""
    top = parser()
    options = top.parse_args(words)
    import_modules(options.modules)
    if options.list:
        list_tasks()
        return 0
    if not options.tasks:
        top.error("--tasks is needed; --list says which there are")
    if options.output is None and options.show_prompt is None:
        top.error("--output is needed: a folder for results")
    if options.raw and options.chat_template_kwargs:
        top.error("--chat-template-kwargs has no effect with --raw; leave out one of them")
    planned = plan_tasks(options)
    if options.modules:
        for line in find_idle_verifiers(plan.task.data_source for plan in planned):
            print(line, file=sys.stderr)
    with closing(open_backend(options)) as backend:
        planned = clean_first_texts(planned, backend)
        if options.show_prompt is not None:
            show_prompts(planned, backend, options.show_prompt)
            return 0
        results = run(options, planned, backend)
    return conclude(results, options.output)


if __name__ == "__main__":
    sys.exit(main())
