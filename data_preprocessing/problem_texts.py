# SPDX-License-Identifier: Apache-2.0
"""What a row asks, without templates and answers: the texts that are compared with those of other rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from prime_ext.tasks.cells import is_whole
from prime_ext.utils.rows import BadRow

# The first set of columns that a row has wholly.
KNOWN_COLUMNS = (
    ("premise", "hypothesis"),
    ("statement1", "statement2"),
    ("sentence1", "sentence2"),
    ("question",),
    ("problem",),
    ("prompt",),
    ("instruction",),
    ("text",),
)


def problem_texts(row: Mapping[str, Any], columns: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, ...]:
    """The texts of a row.

    Rows of verl's schema may say them in ``extra_info.texts``, or one in ``extra_info.question``; otherwise it is what
    the user says in ``prompt``, instructions included.

    Args:
        row: a row of any benchmark.
        columns: names of columns, by default the first of :data:`KNOWN_COLUMNS` that the row has.
        remove: literal texts to cut out, for instructions that all rows share.

    Raises:
        BadRow: there is no such column, or no text in it.
    """
    extra = row.get("extra_info")
    if not columns and isinstance(extra, Mapping) and (extra.get("texts") or extra.get("question")):
        found = list(extra["texts"]) if extra.get("texts") else [extra["question"]]
    else:
        names = columns or next((known for known in KNOWN_COLUMNS if all(name in row for name in known)), ())
        missing = [name for name in names if name not in row]
        if missing or not names:
            raise BadRow(f"no column {missing[0] if missing else 'with a question'}; it has {', '.join(map(str, row))}")
        found = [_said(row[name]) for name in names]
    for text in remove:
        found = [part.replace(text, " ") for part in found]
    if any(not isinstance(part, str) or not part.strip() for part in found):
        raise BadRow("an empty text")
    if not all(is_whole(part) for part in found):
        raise BadRow("half a character (a lone surrogate)")
    return tuple(part.strip() for part in found)


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(message, Mapping) for message in value):
        return "\n".join(str(message.get("content", "")) for message in value if message.get("role") == "user")
    raise BadRow(f"neither a text nor chat messages but {str(value)[:40]!r}")
