# SPDX-License-Identifier: Apache-2.0
"""What the files of a run must hold, and one clear line where they do not."""

import json
from collections.abc import Mapping
from typing import Any


class BadRun(ValueError):
    """A folder holds no run that can be reported; the message is one line."""


# Types by field.
NUMBER = (int, float)
RUN = {"model": dict, "versions": dict, "seed": int, "settings": dict, "tasks": dict}
TASK = {
    "title": str,
    "grader": str,
    "split": str,
    "prompt": str,
    "prompt_sha256": str,
    "data_sha256": str,
    "decoding": dict,
    "metrics": list,
    "summary": dict,
    "choice": (dict, type(None)),
    "failed_responses": int,
    "references": list,
    "notes": str,
}
SUMMARY = {
    "problems": int,
    "samples_per_problem": int,
    "grader_failures": int,
    "scores": dict,
    "no_answer": NUMBER,
    "truncated": NUMBER,
    "tokens": dict,
    "groups": dict,
}
ESTIMATE: dict[str, Any] = {"value": NUMBER, "standard_error": (*NUMBER, type(None)), "low": (*NUMBER, type(None))}
ESTIMATE |= {"high": (*NUMBER, type(None)), "problems": int, "left_out": int}
DECODING: dict[str, Any] = {
    "name": str,
    "n": int,
    "do_sample": bool,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": int,
}
DECODING |= {"num_beams": int, "min_new_tokens": int, "max_new_tokens": int}
REFERENCE = {"metric": str, "source": str, "values": dict}
ROW = {
    "problem": str,
    "sample": int,
    "groups": dict,
    "prompt": (str, list),
    "response": str,
    "gold": str,
    "verdict": str,
    "score": (*NUMBER, type(None)),
    "extracted": (str, type(None)),
    "grader_failure": bool,
    "detail": str,
    "tokens": int,
    "truncated": bool,
}


def need(value: Any, fields: Mapping[str, Any], where: str) -> None:
    """Raise :class:`BadRun` unless ``value`` is an object with these fields of these types."""
    if not isinstance(value, dict):
        raise BadRun(f"{where} is a {type(value).__name__}, not an object")
    for name, kind in fields.items():
        if name not in value:
            raise BadRun(f"{where} has no {name!r}")
        # True is an int to Python, but no number in a file.
        bad = isinstance(value[name], bool) and kind is not bool
        if bad or not isinstance(value[name], kind):
            raise BadRun(f"{where}: {name} has the wrong type, {type(value[name]).__name__}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def parse(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in ``content``.

    Raises:
        BadRun: there is none.
    """
    try:
        value = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRun(f"{where} is broken or half-written: {error}") from error
    if not isinstance(value, dict):
        raise BadRun(f"{where} is a {type(value).__name__}, not an object")
    return value
