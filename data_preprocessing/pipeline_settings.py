# SPDX-License-Identifier: Apache-2.0
"""Settings of the pipeline from a YAML file and ``key=value`` words, all checked before anything is read or written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data_preprocessing.rl_data import system_prompt
from data_preprocessing.stage_kind import StageKind
from data_preprocessing.stage_registry import STAGES
from data_preprocessing.stage_rows import SOURCES
from prime_ext.tasks.rl_rows import OUTPUTS
from prime_ext.tasks.task_checks import Wrong, by_split, mapping, number_of, text_of, texts_of
from prime_ext.utils.rows import SourceError


@dataclass(frozen=True)
class SourceSettings:
    """A source: its name, local files by split (empty: below ``data_dir``, else the hub), and which splits."""

    name: str
    files: Mapping[str, Path] = field(default_factory=dict)
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class PipelineSettings:
    """What a pipeline does.

    Attributes:
        sources: in order; of twins the first stays.
        stages: kinds and options, in order.
        title: of the report.
        data_dir: folder with local files of sources and evaluation tasks; None: the hub.
        system: the system message; empty for none.
        seed: of generated problems.
        generated_rows: how many of them by split.
        chunk_rows: rows of a part, the unit of resuming and of the processes' work.
        tokenizer: with which the validator counts; empty: it does not.
        max_prompt_length: tokens that a prompt may have.
    """

    sources: tuple[SourceSettings, ...]
    stages: tuple[tuple[StageKind, Any], ...]
    title: str = "RL data"
    data_dir: Path | None = None
    system: str = ""
    seed: int = 0
    generated_rows: Mapping[str, int] = field(default_factory=dict)
    chunk_rows: int = 5_000
    tokenizer: str = ""
    max_prompt_length: int = 0


_KEYS = ("title", "data_dir", "sources", "system_prompt", "seed", "generated_rows", "chunk_rows", "stages", "validate")


def load_settings(path: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read and check a file, with words such as ``stages.deduplicate.threshold=0.9`` put over it.

    Raises:
        SourceError: one line with the file, the key, what it is and what would be right.
    """
    if not path.is_file():
        raise SourceError(f"no settings at {path}")
    for word in overrides:
        if "=" not in word:
            raise SourceError(f"{word!r} is no KEY=VALUE")
    try:
        merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
        content = OmegaConf.to_container(merged, resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError, ValueError) as error:
        raise SourceError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return checked_settings(content)
    except (Wrong, ValueError) as error:
        raise SourceError(f"{path.name}: {error}") from error


def checked_settings(content: Any) -> PipelineSettings:
    """Settings from what YAML holds.

    Raises:
        Wrong, SourceError: see their messages.
    """
    given = mapping(content, "settings", known=_KEYS, needed=["sources"])
    values: dict[str, Any] = {}
    if given.get("title") is not None:
        values["title"] = text_of(given["title"], "title")
    if given.get("data_dir") is not None:
        values["data_dir"] = Path(text_of(given["data_dir"], "data_dir"))
    for name, least, most in (("seed", 0, 2**32), ("chunk_rows", 1, 10**6)):
        if name in given:
            values[name] = number_of(given[name], name, least, most)
    if given.get("generated_rows"):
        values["generated_rows"] = by_split(
            mapping(given["generated_rows"], "generated_rows", known=OUTPUTS),
            "generated_rows",
            lambda n, key: number_of(n, key, 1, 10**9),
        )
    if given.get("validate"):
        checks = mapping(given["validate"], "validate", known=("tokenizer", "max_prompt_length"), needed=["tokenizer"])
        values["tokenizer"] = text_of(checks["tokenizer"], "validate.tokenizer")
        limit = checks.get("max_prompt_length")
        values["max_prompt_length"] = limit and number_of(limit, "validate.max_prompt_length", 1, 10**7)
    prompt = given.get("system_prompt")
    values["system"] = system_prompt("none" if prompt is None else text_of(prompt, "system_prompt"))
    named = mapping(given["sources"], "sources", known=list(SOURCES))
    # null leaves out what a file names.
    sources = tuple(_source(name, found) for name, found in named.items() if found is not None)
    if not sources:
        raise Wrong(f"sources needs some of {', '.join(SOURCES)}")
    return PipelineSettings(sources=sources, stages=_stages(given.get("stages") or {}), **values)


def _source(name: str, value: Any) -> SourceSettings:
    key = f"sources.{name}"
    given = mapping(value, key, known=("input", "splits")) if value != {} else {}
    files: Mapping[str, Path] = {}
    if given.get("input") is not None:
        found = {"train": given["input"]} if isinstance(given["input"], str) else given["input"]
        files = by_split(found, f"{key}.input", lambda path, at: Path(text_of(path, at)))
    splits = texts_of(given["splits"], f"{key}.splits") if given.get("splits") else ()
    for split in splits:
        if split not in OUTPUTS:
            raise Wrong(f"{key}.splits has {split!r}, which is none of {', '.join(OUTPUTS)}")
    return SourceSettings(name, files, splits)


def _stages(value: Any) -> tuple[tuple[StageKind, Any], ...]:
    if value == {}:
        return ()
    given = mapping(value, "stages", known=list(STAGES))
    return tuple((STAGES[name], _options(STAGES[name], found)) for name, found in given.items() if found is not None)


def _options(kind: StageKind, value: Any) -> Any:
    """The options of a stage; every key has the type of its default.

    Raises:
        Wrong: with the key.
    """
    at = f"stages.{kind.name}"
    defaults = {f.name: f.default for f in fields(kind.options)}
    given = mapping(value, at, known=list(defaults)) if value != {} else {}
    try:
        return kind.options(**{name: _typed(found, defaults[name], f"{at}.{name}") for name, found in given.items()})
    except Wrong:
        raise
    except ValueError as error:
        raise Wrong(f"{at}.{error}") from error


def _typed(value: Any, default: Any, key: str) -> Any:
    if isinstance(default, tuple):
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list) and all(isinstance(text, str) for text in found):
            return tuple(found)
        raise Wrong(f"{key} must be a list of texts, got {value!r}")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, float) and number:
        return float(value)
    if type(value) is not type(default):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise Wrong(f"{key} must be {words[type(default)]}, got {value!r}")
    return value
