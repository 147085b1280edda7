# SPDX-License-Identifier: Apache-2.0
"""The keys of a task file that say where the rows are, and what of them is shown: source, fields."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from prime_ext.tasks.cells import Composed
from prime_ext.tasks.last_digit_chain import GENERATED
from prime_ext.tasks.task import Source
from prime_ext.tasks.task_checks import (
    Wrong,
    addresses_of,
    by_split,
    list_of,
    mapping,
    number_of,
    paths_of,
    pattern_of,
    range_of,
    text_of,
    texts_of,
)


def source_keys(value: Any) -> Source:
    """Where the rows are."""
    given = mapping(value, "source", known=[f.name for f in fields(Source)])
    if "generated" in given:
        return _generated(given)
    if not ("hub" in given and "files" in given) and "url" not in given and "local" not in given:
        raise Wrong("source needs hub and files, url, local, or generated")
    if ("hub" in given) != ("files" in given) or ("revision" in given and "hub" not in given):
        raise Wrong("source.hub, source.files and source.revision belong together")
    if "hub" in given and "url" in given:
        raise Wrong("source has hub and url; rows are fetched from one of them")
    parts: dict[str, Any] = {key: text_of(given[key], f"source.{key}") for key in ("hub", "revision") if key in given}
    for key, check in (("files", texts_of), ("url", addresses_of), ("local", paths_of)):
        if key in given:
            parts[key] = by_split(given[key], f"source.{key}", check)
    if "between" in given:
        between = mapping(given["between"], "source.between")
        parts["between"] = {column: range_of(ends, f"source.between.{column}") for column, ends in between.items()}
    if "where" in given:
        where = mapping(given["where"], "source.where")
        parts["where"] = {column: pattern_of(found, f"source.where.{column}") for column, found in where.items()}
    if "origin" in given:
        parts["origin"] = text_of(given["origin"], "source.origin")
    if "rows" in given:
        parts["rows"] = by_split(given["rows"], "source.rows", lambda n, key: number_of(n, key, 1, 1e9))
    return Source(**parts)


def _generated(given: Mapping[str, Any]) -> Source:
    mapping(given, "source", known=("generated", "rows"), needed=("rows",))
    if given["generated"] not in GENERATED:
        raise Wrong(f"source.generated must be one of {', '.join(GENERATED)}, got {given['generated']!r}")
    rows = by_split(given["rows"], "source.rows", lambda n, key: number_of(n, key, 1, 1e9))
    return Source(generated=given["generated"], rows=rows)


def fields_of(value: Any) -> dict[str, tuple[str, ...] | Composed]:
    """What prompts may show of a row."""
    found: dict[str, tuple[str, ...] | Composed] = {}
    for name, item in mapping(value, "fields").items():
        key = f"fields.{name}"
        if not re.fullmatch(r"\w+", name):
            raise Wrong(f"{key}: the name of a field has only letters, digits and underscores")
        if isinstance(item, Mapping):
            given = mapping(item, key, known=("first_of",), needed=("first_of",))
            texts = texts_of(list_of(given["first_of"], f"{key}.first_of"), f"{key}.first_of")
            found[name] = Composed(texts)
        else:
            found[name] = texts_of(item, key)
    return found
