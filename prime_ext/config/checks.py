# SPDX-License-Identifier: Apache-2.0
"""How a section of the configuration becomes settings: types, choices, ranges and keys are checked by pydantic, whose
errors become one line each here. Nothing here imports verl or torch.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, StrictBool, TypeAdapter, ValidationError
from typing_extensions import Self

T = TypeVar("T")

# Of every settings class: a key that it does not have is an error. What a key means stands above it in its YAML file.
STRICT = ConfigDict(extra="forbid")

Switch = StrictBool
Text = Annotated[str, Field(strict=True, min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
PositiveOrZero = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
PositiveShare = Annotated[Number, Field(gt=0, le=1)]


class SettingsError(ValueError):
    """Configuration values that cannot work; one line for each of ``problems``, which says what would."""

    def __init__(self, *problems: str):
        super().__init__("; ".join(problems))
        self.problems = problems


def refuse(problems: Iterable[str]) -> None:
    """Raises :class:`SettingsError` if there are problems."""
    found = tuple(problems)
    if found:
        raise SettingsError(*found)


def read(kind: type[T], values: Any, prefix: str) -> T:
    """A value of a type, a settings class with its sections above all.

    Args:
        kind: a pydantic dataclass, or any type with pydantic's constraints.
        values: the resolved section.
        prefix: its name, for messages.

    Raises:
        SettingsError: with one line for each key that is unknown, is missing or has a value that cannot work.
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        schema = adapter.json_schema()
        # A value that fits no member of a union has an error for each of them, and all say the same here.
        raise SettingsError(*dict.fromkeys(_line(one, schema, prefix, values) for one in error.errors())) from error


class Section:
    """The settings of a whole section, with rules that types cannot say."""

    section: ClassVar[str]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from the resolved section. Raises :class:`SettingsError`."""
        settings = read(cls, values, cls.section)
        refuse(settings.problems())
        return settings

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """Build from the whole configuration. Raises :class:`SettingsError`."""
        values: Any = config.get(cls.section)
        return cls.from_mapping(OmegaConf.to_container(values, resolve=True) if values else values)

    def problems(self) -> Iterable[str]:
        """What does not go together. May raise :class:`SettingsError`, too."""
        raise NotImplementedError


def wrong_values(config: DictConfig, kinds: Mapping[str, Any]) -> Iterable[str]:
    """One line for each of these keys of a whole configuration whose value is not of its type."""
    for key, kind in kinds.items():
        try:
            read(kind, OmegaConf.select(config, key), key)
        except SettingsError as error:
            yield str(error)


@functools.cache
def defaults_of(file: str) -> Any:
    """What a YAML file of this folder says, ``prm/implicit_prm.yaml``; not to be changed."""
    return OmegaConf.to_container(OmegaConf.load(Path(__file__).parent / file))


# Keys or sections of keys, whether they are read, and with or without which other value they are not.
Reading = tuple[Sequence[str], bool, str]


def unread(settings: Any, defaults: Mapping[str, Any], prefix: str, readings: Iterable[Reading]) -> Iterable[str]:
    """One line for each key of a section that has another value than its default, and that nothing reads.

    Args:
        settings: those of the section.
        defaults: the section, or the part of it that is asked about, as it stands in its file.
        prefix: its name.
        readings: keys with dots, below it.
    """
    without = [
        (tuple(f"{prefix}.{name}." for name in names), where) for names, is_read, where in readings if not is_read
    ]
    for key, value, default in _changed(asdict(settings), defaults, prefix):
        where = next((where for names, where in without if f"{key}.".startswith(names)), None)
        if where is not None:
            yield f"{key}={value} has no effect {where}; leave it at {default}"


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, str, str]]:
    """Name, value and default of the keys that have another value than their default."""
    for name, default in defaults.items():
        if isinstance(default, Mapping) and isinstance(values.get(name), Mapping):
            yield from _changed(values[name], default, f"{prefix}.{name}")
        elif name in values and values[name] != default:
            yield f"{prefix}.{name}", _shown(values[name]), _shown(default)


def _shown(value: Any) -> str:
    """As it stands in YAML and on the command line."""
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def _line(error: Any, schema: dict[str, Any], key: str, value: Any) -> str:
    node = schema
    for name in error["loc"]:
        if name not in node.get("properties", {}):
            # An unknown key, or a member of a union.
            break
        key, node, value = f"{key}.{name}", node["properties"][name], value.get(name)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown key {key}.{error['loc'][-1]}; known keys: {', '.join(sorted(node['properties']))}"
    if error["type"] == "missing":
        return f"key {key} is missing"
    wanted = str(error["ctx"]["error"]) if error["type"] == "value_error" else _wanted(node)
    return f"{key}={value!r} {wanted}"


_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "string": "a non-empty text",
    "object": "a section with keys",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _wanted(node: Mapping[str, Any]) -> str:
    """What a value with this JSON schema has to be; null is left out."""
    if "description" in node and node.get("type") != "object":
        return f"must be {node['description']}"
    options = [option for option in node.get("anyOf", [node]) if option.get("type") != "null"]
    if "enum" in options[0]:
        return f"is not one of {', '.join(options[0]['enum'])}"
    return f"must be {' or '.join(map(_described, options))}"


def _described(node: Mapping[str, Any]) -> str:
    bounds = " and ".join(f"{sign} {node[name]:g}" for name, sign in _BOUNDS.items() if name in node)
    return f"{_TYPES[node['type']]} {bounds}".rstrip()
