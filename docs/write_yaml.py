# SPDX-License-Identifier: Apache-2.0
"""Write the YAML files in prime_ext/config whose keys are those of settings classes.

python docs/write_yaml.py

Names, defaults and help come from the classes. The head of such a file names this program.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from prime_ext.config import step_scorer_settings
from prime_ext.config.step_rule import StepSettings
from prime_ext.methods.anchor.settings import AnchorSettings
from prime_ext.methods.chains import CHAINS
from prime_ext.methods.kl.settings import KLSettings
from prime_ext.methods.prm_settings import PRMSettings, TrainedPRMSettings
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.step_scorer.settings import StepScorerSettings
from prime_ext.methods.steps.settings import StepRewardSettings
from prime_ext.methods.tokens.settings import TokenSettings
from prime_ext.methods.turns.settings import TurnSettings
from prime_ext.methods.variants import VARIANTS, Variant
from prime_ext.step_rm.train_settings import StepRMSettings
from prime_ext.utils.files import write_text
from prime_ext.verl_adapter.offline_prm.offline_settings import OfflineSettings

CONFIG = Path(__file__).resolve().parents[1] / "prime_ext" / "config"
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
WRITTEN = "# Written by docs/write_yaml.py; change the settings class.\n"
# The key that names a choice; its help is that of the class.
CHOICES = ("form", "kind")
WIDTH = 100
_CHAIN = ("/chain@_here_: plain", "_self_")
_CHAINED = ("accumulation", "shaping")


def format_files() -> dict[str, str]:
    """Return the text of every file, by its path below ``prime_ext/config``."""
    files = {
        "prime/prime.yaml": format_section(
            PrimeSettings, without=("process", "turns", "anchor"), head=read_help(PrimeSettings)
        ),
        "prime/process/kl.yaml": format_section(KLSettings),
        "prime/process/tokens.yaml": format_section(TokenSettings),
        "prime/process/steps.yaml": format_section(StepRewardSettings, _CHAIN, without=_CHAINED),
        "prime/process/step_scorer.yaml": format_section(
            StepScorerSettings, _CHAIN, without=_CHAINED
        ),
        "prime/anchor/ema.yaml": format_section(AnchorSettings, head=read_help(AnchorSettings)),
        "prime/turns/rewards.yaml": format_section(TurnSettings, head=read_help(TurnSettings)),
        "prm/frozen.yaml": format_section(
            PRMSettings, ("/prm_model@_here_: verl", "_self_"), head=read_help(PRMSettings)
        ),
        "prm/implicit_prm.yaml": format_section(
            TrainedPRMSettings,
            ("frozen", "_self_"),
            without=set(read_fields(PRMSettings)) - {"update_mode"},
            head=read_help(TrainedPRMSettings),
        ),
        "offline_prm_settings.yaml": format_section(
            OfflineSettings, head=read_help(OfflineSettings)
        ),
        "step_rm.yaml": format_section(StepRMSettings, head=read_help(StepRMSettings)),
    }
    for kind in (
        step_scorer_settings.LocalScorerSettings,
        step_scorer_settings.ServerSettings,
        step_scorer_settings.TokenClassifierSettings,
        step_scorer_settings.JudgeSettings,
    ):
        name = read_fields(kind)["kind"].default
        files[f"step_scorer/{name}.yaml"] = format_section(kind)
    for name, (help_text, chain) in CHAINS.items():
        head = f"How the scores of a response's steps become one reward. {help_text}"
        files[f"chain/{name}.yaml"] = format_section(
            type(chain), without=("credit",), head=head, values=chain
        )
    for name, variant in VARIANTS.items():
        files[f"variant/{name}.yaml"] = format_variant(name, variant)
    return files


def read_fields(kind: type) -> dict[str, Any]:
    """Return pydantic's fields of a settings class by name, the one of a choice first."""
    found = kind.__pydantic_fields__  # type: ignore[attr-defined]
    return {name: found[name] for name in sorted(found, key=lambda name: name not in CHOICES)}


def read_help(kind: type) -> str:
    """Return the docstring of a class in one line."""
    return " ".join((inspect.getdoc(kind) or "").replace("``", "").split())


def find_description(kind: type, name: str) -> str:
    """Return the help of a field, from the class nearest to ``kind`` that has one."""
    for base in kind.__mro__:
        field = getattr(base, "__pydantic_fields__", {}).get(name)
        if field is not None and field.description:
            return " ".join(field.description.split())
    return read_help(kind) if name in CHOICES else ""


def format_section(
    kind: type,
    defaults: Sequence[str] = (),
    without: Iterable[str] = (),
    head: str = "",
    values: Any = None,
) -> str:
    """Return the file of a settings class, with its defaults or the ``values`` of an object."""
    lines = [LICENSE, WRITTEN, *format_comment(head)]
    if defaults:
        lines += ["defaults:\n", *(f"  - {entry}\n" for entry in defaults)]
    lines += format_keys(kind, values, frozenset(without), "")
    return "".join(lines)


def format_keys(kind: type, values: Any, without: frozenset[str], indent: str) -> Iterator[str]:
    """Yield the lines of the keys of a section."""
    for name, field in read_fields(kind).items():
        if name in without:
            continue
        value = field.get_default(call_default_factory=True)
        if values is not None:
            value = getattr(values, name)
        yield "\n"
        yield from format_comment(find_description(kind, name), indent)
        if is_dataclass(value) and not isinstance(value, StepSettings):
            yield f"{indent}{name}:\n"
            yield from format_keys(type(value), value, frozenset(), f"{indent}  ")
        else:
            yield f"{indent}{name}: {format_value(value)}\n"


def format_comment(text: str, indent: str = "") -> Iterator[str]:
    """Yield the lines of a comment."""
    for line in textwrap.wrap(
        text, WIDTH - len(indent) - 2, break_on_hyphens=False, break_long_words=False
    ):
        yield f"{indent}# {line}\n"


def format_value(value: Any) -> str:
    """Return a value in YAML."""
    if isinstance(value, StepSettings):
        value = value.splitter
    if isinstance(value, str):
        plain = re.fullmatch(r"[\w./:${},?@-]+", value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def format_variant(name: str, variant: Variant) -> str:
    """Return the file of a variant."""
    written = WRITTEN.replace("settings class", "table of variants")
    lines = ["# @package _global_\n", LICENSE, written, *format_comment(variant.help)]
    lines.append("defaults:\n")
    lines += [f"  - /{group}: {choice}\n" for group, choice in variant.adds.items()]
    lines += ["  - _self_\n"] * bool(variant.adds)
    lines += [f"  - override /{group}: {choice}\n" for group, choice in variant.choices.items()]
    tree: dict[str, Any] = {"prime": {"variant": name}}
    for key, value in variant.values.items():
        section = tree
        *parents, last = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return "".join([*lines, *format_tree(tree)])


def format_tree(tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of nested sections without help; an empty line before each at the top."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield "" if indent else "\n"
            yield f"{indent}{name}:\n"
            yield from format_tree(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {format_value(value)}\n"


if __name__ == "__main__":
    for path, text in format_files().items():
        write_text(CONFIG / path, text)
