# SPDX-License-Identifier: Apache-2.0
"""Reads the files of ``prime_ext/tasks/benchmarks/`` and checks every key.

    python -m prime_ext.tasks.task_file                 names of all tasks
    python -m prime_ext.tasks.task_file awpnli          what one says
    python -m prime_ext.tasks.task_file my_task.yaml    checks a file of your own

A mistake is one line: file, key, what it is and what would be right.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from prime_ext.tasks.task import DEFAULT_PROMPT, Decoding, Prompt, Task, check_placeholders
from prime_ext.tasks.task_checks import Wrong, mapping, number_of, text_of, texts_of
from prime_ext.tasks.task_scoring import gold_of, groups_of, metrics_of, references_of
from prime_ext.tasks.task_source import fields_of, source_keys
from prime_ext.verifiers.math.extraction import STYLES
from prime_ext.verifiers.multiple_choice import ChoiceError, MultipleChoiceVerifier
from prime_ext.verifiers.sources import UnknownSource, source_of

FOLDER = Path(__file__).parent / "benchmarks"
_TEXTS = ("name", "title", "description", "licence", "data_source", "ability")
_KEYS = (*_TEXTS, "source", "fields", "texts", "gold", "options", "extraction", "prompts", "metrics", "decoding")
_OPTIONAL = ("options", "extraction", "limits", "id", "groups", "references", "notes", "overlaps")
# The key of a file that says only in what it differs from another.
EXTENDS = "extends"


class TaskError(ValueError):
    """A task that does not exist, or a file that defines none; the message is one line."""


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def task_names() -> list[str]:
    """Names of all tasks."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_task(name: str | Path) -> Task:
    """A task by its name, or from a file that ends in ``.yaml``.

    Raises:
        TaskError: see there.
    """
    path = Path(name) if str(name).endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = task_names()
        near = difflib.get_close_matches(path.stem, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise TaskError(f"no task {str(name)!r}; {hint}")
    content = _content(path)
    try:
        return _task(_extended(content) if isinstance(content, Mapping) and EXTENDS in content else content, path.stem)
    except Wrong as error:
        raise TaskError(f"{path.name}: {error}") from error


def _content(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error


def _extended(content: Mapping[str, Any], before: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of a file on top of those of the task that it extends; those of ``source`` one by one.

    A key that is null is left out. The other task may extend one itself; ``before`` are those on the way.
    """
    name = text_of(content[EXTENDS], EXTENDS)
    path = FOLDER / f"{name}.yaml"
    if name not in task_names():
        near = difflib.get_close_matches(name, task_names(), n=1)
        raise Wrong(f"extends must be the name of a task, got {name!r}{f'; did you mean {near[0]}?' if near else ''}")
    base = mapping(_content(path), name)
    if name in before:
        raise Wrong(f"extends goes round in a circle: {', '.join((*before, name))}")
    if EXTENDS in base:
        base = _extended(base, (*before, name))
    merged = {**base, **content}
    if isinstance(content.get("source"), Mapping):
        merged["source"] = {**base["source"], **content["source"]}
        merged["source"] = {key: value for key, value in merged["source"].items() if value is not None}
    return {key: value for key, value in merged.items() if key != EXTENDS and value is not None}


def _overlaps(value: Any) -> str:
    name = text_of(value, "overlaps")
    if name not in task_names():
        raise Wrong(f"overlaps must be the name of a task, got {name!r}")
    return name


_LIMITS = {"seconds": (0.01, 3600.0), "seconds_per_problem": (0.01, 86400.0)}


def _limits(value: Any, grader: str) -> dict[str, float]:
    given = mapping(value, "limits", known=tuple(_LIMITS))
    if grader != "code":
        raise Wrong(f"limits must be left out: they are for programs, not {grader}")
    return {key: number_of(item, f"limits.{key}", *_LIMITS[key], whole=False) for key, item in given.items()}


def _options(value: Any) -> tuple[tuple[str, ...], int]:
    if isinstance(value, int):
        return (), number_of(value, "options", 2, 10)
    names = texts_of(value, "options")
    if len(names) < 2:
        raise Wrong(f"options must be at least two names or a number of options, got {value!r}")
    return names, len(names)


def _prompts(value: Any, field_names: Sequence[str]) -> dict[str, Prompt]:
    prompts = {}
    for name, item in mapping(value, "prompts", needed=[DEFAULT_PROMPT]).items():
        key = f"prompts.{name}"
        given = mapping(item, key, known=("user", "system"), needed=["user"])
        prompt = Prompt(**{role: text_of(text, f"{key}.{role}") for role, text in given.items()})
        unknown = check_placeholders(prompt, field_names)
        if unknown:
            raise Wrong(f"{key} shows {{{{{unknown[0]}}}}}, which is no field; fields are {', '.join(field_names)}")
        if not any(f"{{{{{field}}}}}" in prompt.user for field in field_names):
            raise Wrong(f"{key}.user shows no field; write e.g. {{{{{field_names[0]}}}}}")
        prompts[name] = prompt
    return prompts


_RANGES: dict[str, tuple[float, float, bool]] = {
    "n": (1, 1e6, True),
    "temperature": (1e-6, 100, False),
    "top_p": (1e-6, 1, False),
    "top_k": (0, 1e9, True),
    "num_beams": (1, 1000, True),
    "min_new_tokens": (0, 1e9, True),
    "max_new_tokens": (1, 1e9, True),
    "batch_size": (1, 1e9, True),
}


def _decoding(value: Any) -> dict[str, Decoding]:
    found = {}
    for name, item in mapping(value, "decoding").items():
        key = f"decoding.{name}"
        given = mapping(item, key, known=("do_sample", *_RANGES))
        if not isinstance(given.get("do_sample", False), bool):
            raise Wrong(f"{key}.do_sample must be true or false, got {given['do_sample']!r}")
        for setting, number in given.items():
            if setting in _RANGES:
                low, high, whole = _RANGES[setting]
                number_of(number, f"{key}.{setting}", low, high, whole)
        decoding = Decoding(**given)
        if decoding.min_new_tokens > decoding.max_new_tokens:
            raise Wrong(f"{key}: min_new_tokens {decoding.min_new_tokens} is above {decoding.max_new_tokens}")
        for setting in ("temperature", "top_p", "top_k"):
            if setting in given and not decoding.do_sample:
                raise Wrong(f"{key}.{setting} has no effect without do_sample: true")
        if decoding.n > 1 and not decoding.do_sample:
            raise Wrong(f"{key}.n {decoding.n} responses are all the same without do_sample: true")
        found[name] = decoding
    return found


def _grader(given: Mapping[str, Any], option_names: tuple[str, ...], n_options: int) -> str:
    """Check the verifier of the task; returns the style of extraction."""
    try:
        grader = source_of(given["data_source"]).task
    except UnknownSource as error:
        raise Wrong(f"data_source: {error}") from error
    if (grader == "choice") != bool(n_options):
        fault = "are missing" if grader == "choice" else "must be left out"
        raise Wrong(f"options {fault}: {given['data_source']} is judged as {grader}")
    if n_options:
        try:
            for number in range(1, n_options + 1):
                MultipleChoiceVerifier(option_names, None if option_names else n_options).gold_option(number)
        except ChoiceError as error:
            raise Wrong(f"options: {error}") from error
    style = given.get("extraction", "")
    if style and (grader != "math" or style not in STYLES):
        raise Wrong(f"extraction {style!r} must be left out, or for math be one of {', '.join(sorted(STYLES))}")
    return style


def _task(content: Any, stem: str) -> Task:
    known = (*_KEYS, *(key for key in _OPTIONAL if key not in _KEYS))
    given = mapping(content, "the file", known=known, needed=[key for key in known if key not in _OPTIONAL])
    texts = {key: text_of(given[key], key) for key in _TEXTS}
    if texts["name"] != stem:
        raise Wrong(f"name must be that of the file, {stem!r}, got {texts['name']!r}")
    columns = fields_of(given["fields"])
    option_names, n_options = _options(given["options"]) if "options" in given else ((), 0)
    extraction = _grader(given, option_names, n_options)
    problem_texts = texts_of(given["texts"], "texts")
    for name in problem_texts:
        if name not in columns:
            raise Wrong(f"texts has {name!r}, which is no field; fields are {', '.join(columns)}")
    grader = source_of(texts["data_source"]).task
    decoding = _decoding(given["decoding"])
    metrics = metrics_of(given["metrics"], grader, decoding)
    return Task(
        **texts,
        source=source_keys(given["source"]),
        fields=columns,
        texts=problem_texts,
        gold=gold_of(given["gold"], n_options, grader),
        prompts=_prompts(given["prompts"], list(columns)),
        metrics=metrics,
        decoding=decoding,
        option_names=option_names,
        n_options=n_options,
        extraction=extraction,
        limits=_limits(given["limits"], grader) if "limits" in given else {},
        id=texts_of(given["id"], "id") if "id" in given else (),
        groups=groups_of(given["groups"]) if "groups" in given else {},
        references=references_of(given["references"], metrics) if "references" in given else (),
        notes=text_of(given["notes"], "notes") if "notes" in given else "",
        overlaps=_overlaps(given["overlaps"]) if "overlaps" in given else "",
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", help="name, or a file that ends in .yaml")
    arguments = parser.parse_args(words)
    try:
        if arguments.task is None:
            print("\n".join(task_names()))
        else:
            print(json.dumps(asdict(load_task(arguments.task)), indent=2, ensure_ascii=False))
    except TaskError as error:
        print(f"task: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
