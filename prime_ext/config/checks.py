# SPDX-License-Identifier: Apache-2.0
"""Reading of configuration sections as settings by pydantic, without importing verl or torch."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

T = TypeVar("T")

# For all settings classes: an unknown key is an error, and the docstring below a field is its help,
# from which the comments of the YAML files and the reference page are written.
STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def interpolate(reference: str) -> Any:
    """Return a default that Hydra takes from another key, such as ``${actor_rollout_ref...}``."""
    return reference


Switch = StrictBool
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def unescape(text: str) -> str:
    r"""Replace ``\n``, ``\t`` and ``\\``, which a shell leaves as two characters."""
    return re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text)


Text = Annotated[str, Field(strict=True, min_length=1)]
# Types of separators, which users write in a shell.
Escaped = Annotated[str, Field(strict=True), AfterValidator(unescape)]
EscapedText = Annotated[Text, AfterValidator(unescape)]
Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
PositiveOrZero = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]


class SettingsError(ValueError):
    """Configuration values that cannot work; ``problems`` are one line each."""

    def __init__(self, *problems: str):
        super().__init__("; ".join(problems))
        self.problems = problems


def refuse(problems: Iterable[str]) -> None:
    """Raise :class:`SettingsError` if there are problems."""
    lines = tuple(problems)
    if lines:
        raise SettingsError(*lines)


def read(kind: type[T], values: Any, prefix: str) -> T:
    """Read a resolved section, or a value, as a type that pydantic can check.

    Raises SettingsError, with a line for each key, ``prefix`` before it, that is unknown, missing
    or has a wrong value.
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        raise SettingsError(*explain(error, adapter, prefix)) from error


def find_omitted(settings: Any, values: Any, key: str) -> Iterable[str]:
    """Yield a line for each key of a section that a command line takes away by ``~``."""
    if not is_dataclass(settings) or not isinstance(values, Mapping):
        return
    if getattr(settings, "may_omit", False):
        return
    for each in fields(settings):
        if each.name not in values:
            yield f"{key} needs the key {each.name!r}"
        else:
            yield from find_omitted(
                getattr(settings, each.name), values[each.name], f"{key}.{each.name}"
            )


def explain(
    error: ValidationError, adapter: TypeAdapter[Any], prefix: str = "", top: str = "the file"
) -> list[str]:
    """Return one line for each wrong key of an error of pydantic.

    Args:
        error: of ``adapter``, which has the keys that are allowed.
        prefix: is put before every key.
        top: name of the object that has the keys, used without a prefix.
    """
    # Key -> name, messages and ending. A value that fits no member of a union has one message each.
    lines: dict[str, tuple[str, dict[str, None], str]] = {}
    for detail in error.errors(include_url=False):
        *parents, last = [
            prefix,
            *(name for name in map(str, detail["loc"]) if not _NO_KEY.search(name)),
        ]
        above, key = (".".join(filter(None, names)) or top for names in (parents, [*parents, last]))
        name = key
        message = re.sub(r"^(?:Value error, must|\w+ should)", "must", detail["msg"])
        end = ""
        if detail["type"] == "missing":
            name = above
            message = f"needs the key {last!r}"
        elif detail["type"] == "unexpected_keyword_argument":
            known = _keys(adapter.json_schema())
            # A union has the keys of all its members.
            hint = (
                "; another choice of this section has it" if last in known else guess(last, known)
            )
            name = "unknown key"
            message = f"{key}{hint}"
        elif detail["loc"][-1:] == ("[key]",):
            name = above
            message = f"has the key {detail['input']!r}; a key {message}"
        else:
            choices = re.findall(r"'([^']*)'", message) if detail["type"] == "literal_error" else ()
            end = f", got {repr(detail['input'])[:80]}{guess(detail['input'], choices)}"
        messages = lines[key][1] if key in lines else {}
        lines[key] = (name, messages | {message: None}, end)
    return [f"{name} {', or '.join(messages)}{end}" for name, messages, end in lines.values()]


# In the place of an error of pydantic: tags and members of unions, a key that itself is wrong,
# StepSettings.splitter.
_NO_KEY = re.compile(r"[<\[(]|^(?:int|float|bool|str|none|splitter)$|^constrained-")


def _keys(schema: Any) -> set[str]:
    names = set(schema.get("properties", ()))
    return names.union(*(_keys(definition) for definition in schema.get("$defs", {}).values()))


def guess(name: Any, known: Collection[str], before: str = "") -> str:
    """Return ``; did you mean ...?`` for a misspelt name; empty if no known one is like it."""
    names = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    return f"; did you mean {before}{names[near[0]]}?" if near else ""


def limit_to(list_names: Callable[[], Collection[str]]) -> AfterValidator:
    """Check that a text is one of these names, to which :mod:`prime_ext.extend` may add."""

    def check(value: str) -> str:
        names = list_names()
        if value not in names:
            *first, last = (f"'{name}'" for name in names)
            raise PydanticCustomError(
                "literal_error", "must be {expected}", {"expected": f"{', '.join(first)} or {last}"}
            )
        return value

    return AfterValidator(check)


def choose_by(
    key: str, remedy: str, list_also: Callable[[], Collection[str]] = tuple
) -> Discriminator:
    """Choose among sections, tagged ``<value>``, by the value of their ``key``.

    ``remedy`` is how to choose another. The section tagged ``<also>`` is that of the other values
    that ``list_also`` returns.
    """

    def tag(values: Any) -> str:
        value = values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)
        return "<also>" if value in list_also() else f"<{value}>"

    return Discriminator(tag, "choice", f"must be chosen as a whole: {remedy}")


class Section:
    """The settings of a complete section, with rules that types cannot express."""

    section: ClassVar[str]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], find_conflicts: bool = True) -> Self:
        """Build from the resolved section. Raises :class:`SettingsError`.

        Without ``find_conflicts`` only keys and single values are checked.
        """
        settings = read(cls, values, cls.section)
        conflicts = settings.problems() if find_conflicts else ()
        refuse([*find_omitted(settings, values, cls.section), *conflicts])
        return settings

    @classmethod
    def from_config(cls, config: DictConfig, find_conflicts: bool = True) -> Self:
        """Build from the complete configuration. Raises :class:`SettingsError`."""
        values: Any = config.get(cls.section)
        resolved: Any = OmegaConf.to_container(values, resolve=True) if values else values
        return cls.from_mapping(resolved, find_conflicts)

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        raise NotImplementedError
