# SPDX-License-Identifier: Apache-2.0
"""Reader of the files of ``prime_ext/tasks/benchmarks/``, which checks every key.

A mistake is one line: file, key, what it is and what would be right.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from prime_ext.config.checks import SettingsError, guess, read
from prime_ext.tasks.benchmark_task import (
    CHOICE_METRICS,
    DEFAULT_PROMPT,
    BenchmarkSource,
    Decoding,
    Task,
)
from prime_ext.tasks.cells import PLACEHOLDER
from prime_ext.tasks.gym_problems import PREFIX, read_task
from prime_ext.tasks.last_digit_chain import GENERATED
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.sources import UnknownSource

FOLDER = Path(__file__).parent / "benchmarks"
# Key with the name of the task that a file extends.
EXTENDS = "extends"


def list_task_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_task(name: str | Path) -> Task:
    """Load a task by its name, ``reasoning_gym:`` and a task of it, or from a ``.yaml`` file.

    ``SourceError``: there is none, or it is wrong, or reasoning-gym has none, or is missing.
    """
    if str(name).startswith(PREFIX):
        text = str(name).removeprefix(PREFIX)
        task, _ = read_task(text)
        header = {
            "name": name,
            "title": f"reasoning-gym {task}",
            "data_source": f"reasoning_gym/{task}",
        }
        source = {"generated": text, "rows": {"test": 256}}
        return read(
            Task,
            {**_content(FOLDER.with_name("reasoning_gym.yaml")), **header, "source": source},
            "",
        )
    path = Path(name) if str(name).endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = list_task_names()
        raise SourceError(
            f"no task {str(name)!r}{guess(path.stem, known) or '; there are ' + ', '.join(known)}"
        )
    content = _content(path)
    try:
        if isinstance(content, dict) and EXTENDS in content:
            content = _extend(content)
        return _check(read(Task, content, ""), path.stem)
    except SettingsError as error:
        raise SourceError(f"{path.name}: {error}") from error


def _content(path: Path) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error


def _extend(content: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a file into the package's task it extends, ``source`` by key; null removes a key."""
    name = str(content[EXTENDS])
    if name not in list_task_names():
        raise SettingsError(
            f"extends must be the name of a task, got {name!r}{guess(name, list_task_names())}"
        )
    base = _content(FOLDER / f"{name}.yaml")
    if EXTENDS in base:
        base = _extend(base)
    merged = {**base, **content}
    if isinstance(content.get("source"), Mapping):
        merged["source"] = {**base["source"], **content["source"]}
        merged["source"] = {
            key: value for key, value in merged["source"].items() if value is not None
        }
    return {key: value for key, value in merged.items() if key != EXTENDS and value is not None}


# avg@16 and the like: scores of several responses per problem.
_AT_K = re.compile(r"(avg|pass|maj)@([1-9]\d{0,5})")


def _must(right: bool, message: str) -> None:
    if not right:
        raise SettingsError(message)


def _check(task: Task, stem: str) -> Task:
    """Check the keys of a task against each other; return the task."""
    _must(task.name == stem, f"name must be that of the file, {stem!r}, got {task.name!r}")
    _must(
        task.overlaps in ("", *list_task_names()),
        f"overlaps must be the name of a task, got {task.overlaps!r}",
    )
    for name in task.texts:
        _must(
            name in task.fields,
            f"texts has {name!r}, not a field; fields are {', '.join(task.fields)}",
        )
    _check_source(task.source)
    _check_grader(task)
    _must(DEFAULT_PROMPT in task.prompts, f"prompts needs the key {DEFAULT_PROMPT!r}")
    for name, prompt in task.prompts.items():
        shown = PLACEHOLDER.findall(prompt.user)
        _must(
            bool(shown),
            f"prompts.{name}.user shows no field; write e.g. {{{{{next(iter(task.fields))}}}}}",
        )
        for field in [*shown, *PLACEHOLDER.findall(prompt.system)]:
            fields = ", ".join(task.fields)
            _must(
                field in task.fields,
                f"prompts.{name} shows {{{{{field}}}}}, not a field; fields are {fields}",
            )
    for name, decoding in task.decoding.items():
        for setting in ("temperature", "top_p", "top_k"):
            same = getattr(decoding, setting) == getattr(Decoding, setting)
            _must(
                decoding.do_sample or same,
                f"decoding.{name}.{setting} has no effect without do_sample: true",
            )
    return task


def _check_source(source: BenchmarkSource) -> None:
    if source.generated:
        _must(
            source.generated in GENERATED, f"source.generated must be one of {', '.join(GENERATED)}"
        )
        _must(bool(source.rows), "source.generated needs source.rows: how many of each split")
        alone = BenchmarkSource(generated=source.generated, rows=source.rows)
        _must(source == alone, "source.generated may have rows in addition, nothing else")
        return
    _must(bool(source.files or source.local), "source needs hub and files, local, or generated")
    together = bool(source.hub) == bool(source.files) and bool(source.hub or not source.revision)
    _must(together, "source.hub, source.files and source.revision belong together")


def _check_grader(task: Task) -> None:
    """Check gold answers, options, limits and metrics against the verifier."""
    try:
        grader = task.grader
    except UnknownSource as error:
        raise SettingsError(f"data_source: {error}") from error
    _must(
        grader != "choice" or bool(task.n_options),
        f"options are missing: {task.data_source} is judged as choice",
    )
    for name, only in (("options", "choice"), ("extraction", "math"), ("limits", "code")):
        _must(
            grader == only or not getattr(task, name),
            f"{name} must be left out: it is for {only}, not {grader}",
        )
    for number, gold in enumerate(task.gold):
        key = f"gold.{number}"
        _must(
            grader == "code" or len(gold.columns) == 1, f"{key} of {grader} needs a single column"
        )
        for name in ("extract", "unit", "corrections"):
            unused = not getattr(gold, name)
            _must(
                grader == "math" or unused,
                f"{key}.{name} must be left out: it is for math, not {grader}",
            )
        _must(
            grader != "code" or not gold.values,
            f"{key}.values must be left out: the gold of code is its tests",
        )
        if task.n_options:
            numbers = {str(option) for option in range(1, task.n_options + 1)}
            problem = (
                f"{key}.values must say which option, 1 to {task.n_options}, each label stands for"
            )
            _must(bool(gold.values) and numbers.issuperset(gold.values.values()), problem)
    most = max(way.n for way in task.decoding.values())
    for metric in task.metrics:
        at_k = _AT_K.fullmatch(metric)
        known = ", ".join([*CHOICE_METRICS, "avg@K", "pass@K", "maj@K"])
        _must(
            bool(at_k) or metric in CHOICE_METRICS,
            f"metrics has {metric!r}, which is none of {known}",
        )
        if at_k:
            _must(
                int(at_k[2]) <= most,
                f"metrics has {metric!r}, but no decoding has n of {at_k[2]} or more",
            )
            _must(
                at_k[1] != "maj" or grader != "code",
                f"metrics has {metric!r}, but programs do not vote",
            )
        else:
            fits = metric == "accuracy" or grader == "choice"
            _must(fits, f"metrics has {metric!r}, which is for multiple choice, not {grader}")
