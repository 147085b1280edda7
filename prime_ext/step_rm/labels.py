# SPDX-License-Identifier: Apache-2.0
"""The three classes of a step and how a model's numbering of them is read. No torch."""

from collections.abc import Mapping
from typing import Any

from prime_ext.utils.run_store import RunError

# Class 0, 1, 2 of a model trained here: the order of PSPO's reward model (arXiv 2411.11681,
# released code).
LABELS = (-1, 0, 1)
ID2LABEL = {number: str(label) for number, label in enumerate(LABELS)}
LABEL2ID = {name: number for number, name in ID2LABEL.items()}
_NAMES = {"-1": -1, "0": 0, "1": 1, "+1": 1, "negative": -1, "neutral": 0, "positive": 1}


class StepRMError(RunError):
    """A step reward model, its server or its data that cannot work; the message is one line."""


def find_label(name: str) -> int | None:
    """Return the label that a name stands for; None for no such name."""
    return _NAMES.get(name.strip().lower())


def class_order(id2label: Mapping[Any, Any] | None, where: str) -> tuple[int, int, int]:
    """Return the label of each class from a model's label map.

    Its names are -1, 0, 1, or negative, neutral, positive. Raises ``StepRMError``, which names the
    model by ``where``: no label map, not three labels, or other names.
    """
    names = [str((id2label or {})[key]) for key in sorted(id2label or {}, key=int)]
    if not names or all(name.upper() == f"LABEL_{number}" for number, name in enumerate(names)):
        raise StepRMError(
            f"{where} has no label map; set id2label in its config.json, for example {ID2LABEL}"
        )
    if len(names) != len(LABELS):
        raise StepRMError(
            f"{where} has {len(names)} labels ({', '.join(names[:6])}), a step reward model has"
            " three"
        )
    order = tuple(find_label(name) for name in names)
    if set(order) != set(LABELS):
        raise StepRMError(
            f"{where} has the labels {', '.join(names)}, which are not -1, 0 and 1 (negative, ...)"
        )
    return order  # type: ignore[return-value]
