# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Reads the files of ``eval/tasks/`` and checks every key.

    python -m eval.task_file                 names of all tasks
    python -m eval.task_file awpnli          what one says
    python -m eval.task_file my_task.yaml    checks a file of your own

A mistake is one line: file, key, what it is and what would be right.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from data_preprocessing.math_sources import SOURCES
from eval.task import DEFAULT_PROMPT, Decoding, Prompt, Source, Task, check_placeholders
from eval.task_checks import Wrong, by_split, mapping, number_of, pattern_of, text_of, texts_of
from eval.task_scoring import gold_of, groups_of, metrics_of, references_of
from prime_ext.verifiers.math.extraction import STYLES
from prime_ext.verifiers.multiple_choice import ChoiceError, MultipleChoiceVerifier
from prime_ext.verifiers.sources import UnknownSource, source_of

FOLDER = Path(__file__).parent / "tasks"
_TEXTS = ("name", "title", "description", "licence", "data_source", "ability")
_KEYS = (*_TEXTS, "source", "fields", "texts", "gold", "options", "extraction", "prompts", "metrics", "decoding")
_OPTIONAL = ("options", "extraction", "id", "groups", "references", "notes")


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
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return _task(content, path.stem)
    except Wrong as error:
        raise TaskError(f"{path.name}: {error}") from error


def _source(value: Any) -> Source:
    given = mapping(value, "source", known=[f.name for f in fields(Source)])
    if "generated" in given:
        return _generated(given)
    if not ("hub" in given and "files" in given) and "local" not in given:
        raise Wrong("source needs hub and files, or local, or generated")
    if ("hub" in given) != ("files" in given) or ("revision" in given and "hub" not in given):
        raise Wrong("source.hub, source.files and source.revision belong together")
    parts: dict[str, Any] = {key: text_of(given[key], f"source.{key}") for key in ("hub", "revision") if key in given}
    for key in ("files", "local"):
        if key in given:
            parts[key] = by_split(given[key], f"source.{key}", text_of)
    if "where" in given:
        where = mapping(given["where"], "source.where")
        parts["where"] = {column: pattern_of(found, f"source.where.{column}") for column, found in where.items()}
    if "origin" in given:
        parts["origin"] = text_of(given["origin"], "source.origin")
    if "rows" in given:
        parts["rows"] = by_split(given["rows"], "source.rows", lambda n, key: number_of(n, key, 1, 1e9))
    for split in parts.get("local", {}):
        name = parts["local"][split]
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Wrong(f"source.local.{split} must be a path below the data folder, got {name!r}")
    return Source(**parts)


def _generated(given: Mapping[str, Any]) -> Source:
    mapping(given, "source", known=("generated", "rows"), needed=("rows",))
    known = [name for name, source in SOURCES.items() if source.generate is not None]
    if given["generated"] not in known:
        raise Wrong(f"source.generated must be one of {', '.join(known)}, got {given['generated']!r}")
    rows = by_split(given["rows"], "source.rows", lambda n, key: number_of(n, key, 1, 1e9))
    return Source(generated=given["generated"], rows=rows)


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
    columns = {name: texts_of(item, f"fields.{name}") for name, item in mapping(given["fields"], "fields").items()}
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
        source=_source(given["source"]),
        fields=columns,
        texts=problem_texts,
        gold=gold_of(given["gold"], n_options, grader),
        prompts=_prompts(given["prompts"], list(columns)),
        metrics=metrics,
        decoding=decoding,
        option_names=option_names,
        n_options=n_options,
        extraction=extraction,
        id=texts_of(given["id"], "id") if "id" in given else (),
        groups=groups_of(given["groups"]) if "groups" in given else {},
        references=references_of(given["references"], metrics) if "references" in given else (),
        notes=text_of(given["notes"], "notes") if "notes" in given else "",
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
